"""Verdict of a pair, as people read it: a name, a sentence, and every rung of the ladder, run or not.

Only what is stored is said: the pair's row, its evidence and its floor by position. A pair that was never judged has no
evidence; what can be said of it without controls is that it is identical, and otherwise nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...command_name import COMMAND
from ...text import number, plural, three_digits
from ..file.evidence import (
    FAILED,
    FLOAT32,
    MISSING,
    MODULES,
    NEIGHBOURS,
    NOTED,
    OWN_DTYPE,
    PASSED,
    PRECISION,
    RERUN,
    RUNGS,
    SAMPLER,
    SCREENING,
    STRUCTURE,
    VALIDITY,
    AloneFigures,
    Check,
    Evidence,
    PairFigures,
    RatioFigures,
    ShrinkFigures,
    StructureFigures,
    Unmeasured,
)
from ..file.records import BUG_SUSPECTED, IDENTICAL, LIKELY_ROUNDING, NOT_JUDGED, ROUNDING, UNDECIDED
from ..reader import RunReader, StoredPair
from .flips import noise_sentence

if TYPE_CHECKING:
    import pandas as pd

_JUDGE = f"`{COMMAND} judge` runs it."
_MODEL = f"`{COMMAND} verdict {{run}} --model MODEL`; the dump needs its token_ids."
# How to run a check of which nothing is stored, for captures and for uploads.
_SUPPLY = {
    "capture": {
        VALIDITY: "It is for dumps.",
        SAMPLER: "It needs tokens that an engine emitted.",
        NEIGHBOURS: "It needs a variant with other rows in the batch, such as `decode+batch:8`.",
        STRUCTURE: "It follows from the float32 check.",
        MODULES: "It runs on a pair that fails.",
    },
    "upload": {
        VALIDITY: "Export this run and ingest the npz.",
        SAMPLER: "Save the emitted tokens in the dump as `emitted:SIDE`, -1 if the next token was given.",
        RERUN: f"Run each side once more, then `{COMMAND} verdict {{run}} --rerun AGAIN.npz`.",
        NEIGHBOURS: f"Run the prompt in a batch, then `{COMMAND} verdict {{run}} --neighbours BESIDE_OTHERS.npz`.",
        OWN_DTYPE: _MODEL,
        FLOAT32: f"Compute both sides in float32, then `{COMMAND} verdict {{run}} --float32 PAIR_IN_FLOAT32.npz`.",
        STRUCTURE: "It says where differences begin.",
        MODULES: "It needs the engine as a callable of `judge`.",
    },
}
_OF_LISTS = {  # what could be run for a run of lists
    RERUN: f"`{COMMAND} probe URL` sends each request twice.",
    OWN_DTYPE: f"`{COMMAND} verdict {{run}} --model MODEL` measures the noise floor of the model that is served.",
}
_GRAVEST = (FAILED, MISSING, NOTED, PASSED)


@dataclass(frozen=True)
class Rung:
    """A rung of the ladder with its rows of evidence; where there is none, `supply` says what would bring one."""

    name: str
    rows: tuple[Evidence, ...]
    supply: str


@dataclass(frozen=True)
class Finding:
    """A pair's verdict for people. `name`: a verdict or 'not judged'; because: why, as it was judged; more: what the
    figures add to that; is_judged: whether a verdict is stored.
    """

    name: str
    because: str
    rungs: tuple[Rung, ...]
    is_judged: bool
    more: str = ""

    @property
    def sentence(self) -> str:
        """The sentences on the verdict, in order."""
        return " ".join(part for part in (self.because, self.more) if part)


def shown_verdict(kind: str, is_bit_identical: bool, verdict: str | None) -> str:
    """The stored verdict; of a pair that was not judged, what no evidence comes to: a dump's pair is undecided, never
    guessed.
    """
    if verdict is not None:
        return verdict
    if is_bit_identical:
        return IDENTICAL
    return UNDECIDED if kind == "upload" else NOT_JUDGED


def finding(run: RunReader, pair: StoredPair, positions: pd.DataFrame) -> Finding:
    """`positions`: the pair's figures by position, as `run.positions` gives them."""
    kind = run.header.provenance.kind
    evidence = run.evidence(pair.index)
    tried = tried_of(evidence)
    by_name = {name: tuple(row for row in evidence if row.rung == name) for name in RUNGS}
    rungs = tuple(
        Rung(name, rows, _supply(run, pair, name, tried))
        for name, rows in by_name.items()
        if rows or (name not in (PRECISION, SCREENING) if run.header.k is None else name in _OF_LISTS)
    )
    name = shown_verdict(kind, pair.summary.bit_identical, pair.verdict)
    if pair.verdict is None:
        because = "No controls were run, so nothing here says whether rounding explains the difference."
        if pair.summary.bit_identical:
            because = "Both sides are equal bit for bit."
        elif kind == "upload":
            because = "This dump was not judged. The same pair in float32 would decide it."
        return Finding(name, because, rungs, False)
    more: list[str] = []
    if name == ROUNDING:
        more = [_in_own_dtype(evidence, run.header.compute_dtype), noise_sentence(positions)]
    elif name == BUG_SUSPECTED:
        more = [
            row.says
            for row in evidence
            if (isinstance(row.figures, StructureFigures) and (row.check is Check.OUTLIERS or row.figures.block))
            or (isinstance(row.figures, AloneFigures) and row.figures.modules_beyond)
        ]
    return Finding(name, pair.because or "", rungs, True, " ".join(filter(None, more)))


def ladder_in_words(rungs: Sequence[Rung]) -> str:
    """`6 of 10 rungs run: 6 passed`: how many were climbed, and with what outcome, a rung's gravest counting."""
    outcomes = [min((row.outcome for row in rung.rows), key=_GRAVEST.index) for rung in rungs if rung.rows]
    counted = [f"{outcomes.count(outcome)} {outcome}" for outcome in _GRAVEST if outcome in outcomes]
    return f"{len(outcomes)} of {plural(len(rungs), 'rung')} run" + (f": {', '.join(counted)}" if counted else "")


def tried_of(evidence: Sequence[Evidence]) -> frozenset[str]:
    """Controls that were given when the pair was judged and that did not decide: `float32`, `floor`, `model`, `rerun`,
    `neighbours`.
    """
    rows = (row.figures for row in evidence if row.rung == FLOAT32 and row.outcome == MISSING)
    return frozenset(
        name for figures in rows if isinstance(figures, Unmeasured | ShrinkFigures) for name in figures.tried or ()
    )


def deciding_controls(run: RunReader, evidence: Sequence[Evidence]) -> dict[str, str]:
    """Return the controls that would decide about a dump, most telling first: options of `ulpscope verdict` -> what
    they bring. Empty for captures, and if every control was tried.
    """
    header, tried = run.header, tried_of(evidence)
    if header.provenance.kind != "upload":
        return {}
    has_ids = all(prompt.token_ids for prompt in header.prompts)
    if header.k is not None:
        served = "the model that is served, which measures the noise floor on the same tokens"
        return {"--model MODEL": served} if has_ids else {}
    is_wide = header.compute_dtype == "float32"
    pair = "--float32 PAIR_IN_FLOAT32.npz"
    first = "" if is_wide else f"{pair} "  # figures of an earlier pair in float32 are stored, not its logits
    controls = [
        ("float32", pair, "the same two sides in float32, with the same weights and tokens", not is_wide),
        (
            "floor",
            f"{first}--floor WAYS_IN_FLOAT32.npz",
            "a noise floor: the reference in float32 on three or more paths that are equal in exact arithmetic (batch"
            " sizes, kernels)",
            True,
        ),
        ("model", f"{first}--model MODEL", "the model, which measures the noise floor on this dump's tokens", has_ids),
        ("rerun", "--rerun AGAIN.npz", "whether a kernel is nondeterministic: each side called once more", True),
    ]
    return {options: what for name, options, what, is_open in controls if is_open and name not in tried}


def next_command(run: RunReader, pair: StoredPair) -> str:
    """Return the command that would decide about a pair: '' if its verdict is decided, or nothing is left to try."""
    verdict = shown_verdict(run.header.provenance.kind, pair.summary.bit_identical, pair.verdict)
    if verdict not in (UNDECIDED, LIKELY_ROUNDING):
        return ""
    options = next(iter(deciding_controls(run, run.evidence(pair.index))), "")
    return f"{COMMAND} verdict {run.run_id} {options}" if options else ""


def _supply(run: RunReader, pair: StoredPair, rung: str, tried: frozenset[str]) -> str:
    kind = run.header.provenance.kind
    if run.header.k is not None:
        return _OF_LISTS.get(rung, "").replace("{run}", run.run_id)
    if rung == OWN_DTYPE and run.header.compute_dtype == "float32":
        return "The run's own dtype is float32, which is the next check."
    if rung == OWN_DTYPE and "model" in tried:
        return "The given model computes other logits than this dump's, so it says nothing here."
    supply = _SUPPLY[kind].get(rung, _JUDGE)
    if kind == "capture" and pair.verdict is not None and supply == _JUDGE:
        return "It was left out when this run was judged."
    return supply.replace("{run}", run.run_id)


def times(ratio: float) -> str:
    """`0.96`, `24`, `15,300`: a ratio in the digits that matter."""
    if not np.isfinite(ratio):
        return "infinitely many"
    return f"{ratio:.2f}" if ratio < 10 else three_digits(ratio)


def _in_own_dtype(evidence: Sequence[Evidence], compute_dtype: str) -> str:
    """`In bfloat16 it is 1.25 times the floor.`; '' if the check was not passed or its row has no ratio."""
    row = next((row for row in evidence if row.rung == OWN_DTYPE and row.outcome == PASSED), None)
    if row is None or not isinstance(row.figures, RatioFigures) or row.figures.noise_ratio is None:
        return ""
    return f"In {compute_dtype} it is {times(row.figures.noise_ratio)} times the floor."


def position_ratios(pair_rms: NDArray[np.float64], floor_rms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Noise ratio at every position of all prompts, as core.judging.statistic.floor_test computes it. [positions]

    A position whose floor is next to 0 has no scale of its own: it is compared with a hundredth of the median floor.
    """
    floor = floor_rms**2
    return pair_rms / np.sqrt(np.maximum(floor, max(float(np.median(floor)) * 1e-4, np.finfo(np.float64).tiny)))


@dataclass(frozen=True)
class NoiseRatio:
    """rms of a pair over rms of the model's noise floor in one dtype, and the largest ratio that rounding reaches."""

    compute_dtype: str
    ratio: float
    limit: float

    @property
    def words(self) -> str:
        """`0.94x the noise floor in float32 (limit 4x)`."""
        return f"{self.multiple} the noise floor in {self.compute_dtype} (limit {number(self.limit)}x)"

    @property
    def multiple(self) -> str:
        return multiple(self.ratio)


def multiple(ratio: float) -> str:
    """`0.94x`, `35,600x`: a ratio to the noise floor."""
    return f"{times(ratio)}x" if math.isfinite(ratio) else "infinitely many times"


def ulp_percentile(histogram: Mapping[int, int], share: float) -> int | None:
    """Return the least distance that at least this share of the elements does not exceed; None of no elements.

    histogram: ULP distance to number of elements.
    """
    total = sum(histogram.values())
    seen = 0
    for distance in sorted(histogram):
        seen += histogram[distance]
        if total and seen >= share * total:
            return distance
    return None


def noise_ratios(evidence: Sequence[Evidence]) -> list[NoiseRatio]:
    """Return the measured noise ratios of a pair, the deciding one (float32) first."""
    rows = [row.figures for rung in (FLOAT32, OWN_DTYPE) for row in reversed(evidence) if row.rung == rung]
    return [
        NoiseRatio(figures.compute_dtype, figures.noise_ratio, figures.largest_ratio_allowed)
        for figures in rows
        if isinstance(figures, PairFigures) and figures.noise_ratio is not None
    ]
