"""Pairs of several runs side by side: before and after an upgrade, one dtype and another, one device and another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...numerics.metrics import Summary
from ...text import percent
from ..reader import RunReader, StoredPair
from .headline import noise_ratios, ulp_percentile

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Compared:
    """One pair of one run, and its figures by position."""

    run: RunReader
    pair: StoredPair
    table: pd.DataFrame

    @property
    def elements(self) -> int:
        return self.run.header.rows * self.run.header.vocab


# What is laid side by side: name, figure, and whether more of it is more divergence (a ratio says something then).
# Counts over all positions are rates: runs have different totals.
FLIPS, NEAR_TIES, NOISE = "flips, share of positions", "near ties, share of positions", "rms / noise floor"
MEASURES: tuple[tuple[str, str, bool], ...] = (
    (FLIPS, "flips", True),
    (NEAR_TIES, "near_ties", True),
    ("differing logits, share", "neq_share", True),
    (NOISE, "noise_ratio", True),
    ("rms row ULPs", "rms_row_ulps", True),
    ("rms difference, logits", "rms", True),
    ("largest difference, logits", "max_abs", True),
    ("median ULPs", "median_ulps", True),
    ("99th percentile ULPs", "p99_ulps", True),
    ("mean KL, nats", "mean_kl", True),
    ("smallest margin, logits", "min_margin", False),
)
_PERCENTILES = {"median_ulps": 0.5, "p99_ulps": 0.99}


def headline(compared: Sequence[Compared], histograms: Sequence[Mapping[int, int]]) -> list[dict[str, object]]:
    """One row a measure: `measure`, `values` (one a run, None if undefined), `ratios` to the first run (None if they
    say nothing). histograms: of each run's ULP distances.
    """
    rows: list[dict[str, object]] = []
    for title, name, is_more in MEASURES:
        values = [_figure(one, name, histogram) for one, histogram in zip(compared, histograms, strict=True)]
        if name == "noise_ratio" and not any(values):
            continue
        first = values[0]
        ratios = [value / first if is_more and value is not None and first else None for value in values]
        rows.append({"measure": title, "values": values, "ratios": ratios})
    return rows


def sentence(compared: Sequence[Compared]) -> str:
    """Sentences on the share of logits that differ and of positions that flip in each run, in markdown."""
    shares = [percent(one.pair.summary.neq_share) for one in compared]
    flips = [percent(one.pair.summary.flips / one.run.header.rows) for one in compared]
    said = f"**Logits that differ: {' vs '.join(shares)}. Positions that flip: {' vs '.join(flips)}.**"
    found = [] if same_tokens(compared) is False else flip_sets(compared)
    if not found:
        return said
    shared = sum(one.is_shared for one in found)
    return f"{said} Flips in every run: {shared:,} of {len(found):,}."


def _figure(one: Compared, name: str, histogram: Mapping[int, int]) -> float | None:
    summary: Summary = one.pair.summary
    if name in ("flips", "near_ties"):
        return getattr(summary, name) / one.run.header.rows
    if name == "noise_ratio":
        return next((each.ratio for each in noise_ratios(one.run.evidence(one.pair.index))), None)
    if name in _PERCENTILES:
        return ulp_percentile(histogram, _PERCENTILES[name])
    if name == "rms":
        squares = one.table["rms"].to_numpy(float) ** 2
        return float(np.sqrt(squares.mean()))
    value = getattr(summary, name)
    return None if value is None else float(value)


def same_tokens(compared: Sequence[Compared]) -> bool | None:
    """True where all runs are of the same prompts, token by token. None where one of them does not know its tokens."""
    prompts = [tuple(prompt.token_ids for prompt in one.run.header.prompts) for one in compared]
    if any(not ids for of_run in prompts for ids in of_run):
        return None
    return all(of_run == prompts[0] for of_run in prompts)


@dataclass(frozen=True)
class FlipSet:
    """A position at which some run's argmax flips. flips: of each run, whether it does; tokens: (reference, variant)
    where it does.
    """

    prompt: int
    position: int
    flips: tuple[bool, ...]
    tokens: tuple[tuple[int, int] | None, ...]

    @property
    def is_shared(self) -> bool:
        return all(self.flips)


def flip_sets(compared: Sequence[Compared]) -> list[FlipSet]:
    """Every position at which any run flips, those of all runs first. Positions are compared by number: ask
    `same_tokens` first.
    """
    found: dict[tuple[int, int], list[tuple[int, int] | None]] = {}
    for place, one in enumerate(compared):
        flips = one.table[one.table["is_flip"]]
        for prompt, position, reference, variant in flips[
            ["prompt", "position", "reference_token", "variant_token"]
        ].itertuples(index=False):
            entry = found.setdefault((int(prompt), int(position)), [None] * len(compared))
            entry[place] = (int(reference), int(variant))
    sets = [
        FlipSet(prompt, position, tuple(tokens is not None for tokens in entry), tuple(entry))
        for (prompt, position), entry in found.items()
    ]
    return sorted(sets, key=lambda one: (-sum(one.flips), one.prompt, one.position))


def distribution(histogram: dict[int, int]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(ULPs, share of elements that are at least so many apart), ascending: a curve that can be laid over another
    run's.

    The share at 1 ULP is that of the elements that differ; elements that are not finite on both sides are not counted.
    """
    distances = np.array(sorted(histogram), np.float64)
    counts = np.array([histogram[int(distance)] for distance in distances], np.float64)
    at_least = counts[::-1].cumsum()[::-1] / max(counts.sum(), 1.0)
    is_some = distances > 0
    return distances[is_some], at_least[is_some]
