"""Pairs of several runs side by side: before and after an upgrade, one dtype and another, one
device and another.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...numerics.arrays import DataFrame, Record
from ...text import multiple, percent
from ...verdict import IDENTICAL
from ..file.records import StoredPair
from ..reader import RunReader
from .verdicts import shown_verdict, ulp_percentile

# Name of a figure, its label with the unit of the values, and whether more of it is more divergence
# (a ratio says something then). Counts over all positions are rates: runs have different totals.
FIGURES = (
    ("flips_share", "flips, share of positions", True),
    ("near_ties_share", "near ties, share of positions", True),
    ("neq_share", "share of values that differ", True),
    ("noise_ratio", "RMS / noise floor", True),
    ("rms_row_ulps", "RMS, row ULPs", True),
    ("rms", "RMS difference, {unit}", True),
    ("max_abs", "largest difference, {unit}", True),
    ("median_ulps", "median ULPs", True),
    ("p99_ulps", "99th percentile ULPs", True),
    ("mean_kl", "mean KL, nats", True),
    ("min_margin", "smallest margin, {unit}", False),
)
_DISTRIBUTION = """
SELECT * FROM (
    SELECT distance,
        sum(elements) OVER (ORDER BY distance DESC) / sum(elements) OVER () AS share
    FROM ulp_histogram WHERE pair = ?)
WHERE distance > 0 ORDER BY distance
"""


class RunPair(NamedTuple):
    """A pair of a run, and its figures by position."""

    run: RunReader
    pair: StoredPair
    table: DataFrame

    @property
    def verdict(self) -> str:
        """Verdict of the pair as it is shown."""
        kind = self.run.header.provenance.kind
        return shown_verdict(kind, self.pair.summary.bit_identical, self.pair.verdict)

    @property
    def facts(self) -> Record:
        """Provenance of the pair."""
        about, header = self.run.header.provenance, self.run.header
        return {
            "run": self.run.run_id,
            "name": header.name,
            "reference": self.pair.reference,
            "variant": self.pair.variant,
            "verdict": self.pair.verdict or "not judged",
            "compute_dtype": header.compute_dtype,
            "model": about.model,
            "revision": about.revision,
            "device": f"{about.device} {about.device_name}".strip(),
            "positions": header.rows,
            "vocab": header.vocab or "",
            "created": f"{self.run.created:%Y-%m-%d %H:%M}",
            **about.versions,
        }


def machine(run: RunReader) -> Record:
    """Return what a run records of its machine."""
    about = run.header.provenance
    # of the model, not of the machine
    versions = {name: value for name, value in about.versions.items() if name != "weights"}
    return {"device": about.device, "chip": about.device_name, **versions}


def figures(run_pairs: Sequence[RunPair]) -> DataFrame:
    """Return FIGURES, one row per run, null if undefined; a column that is undefined for all is
    left out.
    """
    import pandas as pd

    rows = []
    for one in run_pairs:
        summary, positions = one.pair.summary, len(one.table)
        histogram = one.run.histogram(one.pair.index)
        own = {
            "flips_share": _share(summary.flips, positions),
            "near_ties_share": _share(summary.near_ties, positions),
            "rms": np.sqrt((one.table["rms"] ** 2).mean()),
            "noise_ratio": _noise_ratio(one),
            "median_ulps": ulp_percentile(histogram, 0.5),
            "p99_ulps": ulp_percentile(histogram, 0.99),
        }
        rows.append(vars(summary) | own)
    names = [name for name, *_ in FIGURES]
    return pd.DataFrame(rows, columns=names).astype(float).dropna(axis="columns", how="all")


def _noise_ratio(one: RunPair) -> float | None:
    """Return the ratio of a pair, None if none was measured; 0 of an identical one, whose checks
    measure its distance from an exact result.
    """
    is_identical = one.pair.summary.bit_identical and one.pair.verdict in (None, IDENTICAL)
    ratio = one.pair.noise_ratio
    return 0.0 if ratio is not None and is_identical else ratio


def _share(count: int | None, positions: int) -> float | None:
    """Return the share of the positions; None if the count is unknown, as of chosen tokens."""
    return None if count is None else count / positions


def distribution(one: RunPair) -> DataFrame:
    """Return the share of elements that differ by at least so many ULPs: distance, share, from 1
    ULP on. Elements that are not finite on both sides are not counted.
    """
    return one.run.query(_DISTRIBUTION, one.pair.index)


def flips(run_pairs: Sequence[RunPair]) -> DataFrame:
    """Return one row per flip of a run: prompt, position, run (its place), reference_token,
    variant_token, runs (number that flip there); those of all runs first. Positions are compared by
    number: call `same_tokens` first.
    """
    import pandas as pd

    columns = ["prompt", "position", "reference_token", "variant_token"]
    parts = [
        one.table.loc[one.table["is_flip"], columns].assign(run=place)
        for place, one in enumerate(run_pairs)
    ]
    whole = pd.concat(parts, ignore_index=True)
    whole["runs"] = whole.groupby(["prompt", "position"])["run"].transform("count")
    order = ["runs", "prompt", "position", "run"]
    return whole.sort_values(order, ascending=[False, True, True, True], ignore_index=True)


def same_tokens(run_pairs: Sequence[RunPair]) -> bool | None:
    """Return whether all runs are of the same prompts, token by token; None if one of them does not
    know its tokens and the others do not differ.
    """
    prompts = {tuple(prompt.token_ids for prompt in one.run.header.prompts) for one in run_pairs}
    known = {ids for ids in prompts if all(ids)}
    if len(known) > 1:
        return False
    return True if known == prompts else None


def differing_inputs(run_pairs: Sequence[RunPair]) -> list[str]:
    """Return what of the inputs differs between runs or is known of some only, as
    `different models`."""
    texts = []
    is_same = same_tokens(run_pairs)
    if not is_same:
        texts.append("unknown tokens" if is_same is None else "different tokens")
    headers = [one.run.header for one in run_pairs]
    inputs: dict[str, set] = {
        "models": {header.provenance.model for header in headers},
        "vocabularies": {header.vocab for header in headers},
        "units": {header.unit for header in headers},
    }
    for name, values in inputs.items():
        if len(values) > 1:
            # a run may not name its model, and lists not their vocabulary
            texts.append(f"different {name}" if all(values) else f"unknown {name}")
    # few runs say which
    weights = {header.provenance.versions.get("weights") for header in headers} - {None}
    if len(weights) > 1:
        texts.append("different weights")
    return texts


def movements(run_pairs: Sequence[RunPair]) -> tuple[list[str], list[str]]:
    """Return what moved from run to run, as `flips 7.3% → 5.3% of positions`, and what did not."""
    are_lists = any(one.run.header.is_list for one in run_pairs)
    elements = "values that differ" if are_lists else "logits that differ"
    texts = []
    for one in run_pairs:
        summary = one.pair.summary
        ratio = _noise_ratio(one)
        texts.append(
            {
                "verdict": one.verdict,
                "RMS / noise floor": "not measured" if ratio is None else multiple(ratio),
                elements: _known_percent(summary.neq_share),
                "positions that flip": _known_percent(_share(summary.flips, len(one.table))),
            },
        )
    moved, unchanged = [], []
    for name in texts[0]:
        row = [of_run[name] for of_run in texts]
        if len(set(row)) > 1:
            moved.append(f"{name} {' → '.join(row)}")
        else:
            unchanged.append(f"{name} {row[0]}")
    return moved, unchanged


def _known_percent(share: float | None) -> str:
    return "unknown" if share is None else percent(share)


def shared_flips(run_pairs: Sequence[RunPair], flip_rows: DataFrame) -> str:
    """Say how many flips all runs share. flip_rows: `flips`, if the runs are of the same tokens."""
    places = flip_rows.drop_duplicates(["prompt", "position"])
    shared = (places["runs"] == len(run_pairs)).sum()
    return f"Flips in every run: {shared:,} of {len(places):,}." if len(places) else ""
