"""Verdict of a pair, as people read it: a name, a sentence, and every rung of the ladder, run or not.

Only what is stored is said: the pair's row, its evidence and its floor by position. A pair that was never judged has no
evidence; what can be said of it without controls is that it is identical, and otherwise nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...command_name import COMMAND
from ...text import plural, three_digits
from ..file.evidence import (
    FAILED,
    FLOAT32,
    MISSING,
    MODULES,
    NEIGHBOURS,
    NOTED,
    ONE_ORDER,
    OWN_DTYPE,
    PASSED,
    PRECISION,
    RERUN,
    RUNGS,
    SAMPLER,
    SCREENING,
    STRUCTURE,
    SYMMETRY,
    VALIDITY,
    AloneFigures,
    Check,
    Evidence,
    ModulesFigures,
    RatioFigures,
    ShrinkFigures,
    StructureFigures,
    Unmeasured,
)
from ..file.records import BUG_SUSPECTED, IDENTICAL, NOT_JUDGED, ROUNDING, UNDECIDED, Provenance
from ..reader import RunReader, StoredPair
from .flips import noise_sentence

if TYPE_CHECKING:
    import pandas as pd

_JUDGE = f"`{COMMAND} judge` runs it."
_MODEL = f"Where the model is at hand, `{COMMAND} verdict {{run}} --model MODEL`; the dump needs its token_ids."

# What would supply a rung of which nothing is stored, for captures and for uploads.
_SUPPLY = {
    "capture": {
        VALIDITY: "It is for dumps; the logits of a capture come from the model itself.",
        SAMPLER: "It needs tokens that an engine emitted beside its logits; the tokens of a capture are given.",
        RERUN: _JUDGE,
        NEIGHBOURS: "It needs a variant with other rows beside the prompt's, such as `decode+batch:8`.",
        OWN_DTYPE: _JUDGE,
        FLOAT32: _JUDGE,
        SYMMETRY: _JUDGE,
        STRUCTURE: "It follows from the float32 rung.",
        MODULES: "It follows from the float32 rung.",
        ONE_ORDER: "It is asked where the sides differ and both can run in one order.",
    },
    "upload": {
        VALIDITY: "This run was stored before dumps were checked; export it and ingest the npz.",
        SAMPLER: (
            "Save the tokens that each side emitted in the dump, as `emitted:SIDE`, with -1 where the next token was"
            " given."
        ),
        RERUN: f"Call each side once more, and `{COMMAND} verdict {{run}} --rerun AGAIN.npz`.",
        NEIGHBOURS: (
            f"Run the same prompt beside other requests, as many and as long, and `{COMMAND} verdict {{run}}"
            " --neighbours BESIDE_OTHERS.npz`."
        ),
        OWN_DTYPE: _MODEL,
        FLOAT32: f"Compute both sides in float32, and `{COMMAND} verdict {{run}} --float32 PAIR_IN_FLOAT32.npz`.",
        SYMMETRY: _MODEL,
        STRUCTURE: "It says where differences begin.",
        MODULES: "It needs the engine: `judge` takes it as a callable, beside the model.",
        ONE_ORDER: "It needs the engine: `judge` takes it as a callable, beside the model.",
    },
}
_GRAVEST = (FAILED, MISSING, NOTED, PASSED)
_NOT_ASKED = "It was not asked when this run was judged."


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
    about = run.header.provenance
    evidence = run.evidence(pair.index)
    tried = tried_of(evidence)
    rungs = tuple(
        Rung(
            name,
            tuple(row for row in evidence if row.rung == name),
            _supply(about, name, run.header.compute_dtype, run.run_id, tried=tried, is_judged=pair.verdict is not None),
        )
        for name in RUNGS
        if name not in (PRECISION, SCREENING) or any(row.rung == name for row in evidence)  # asked only in some cases
    )
    name = shown_verdict(about.kind, pair.summary.bit_identical, pair.verdict)
    if pair.verdict is None:
        return Finding(name, _not_judged(about, pair.summary.bit_identical), rungs, False)
    more: list[str] = []
    if name == ROUNDING:
        more = [_in_own_dtype(evidence, run.header.compute_dtype), noise_sentence(positions)]
    elif name == BUG_SUSPECTED:
        more = [
            row.says
            for row in evidence
            if (isinstance(row.figures, StructureFigures) and (row.check is Check.OUTLIERS or row.figures.block))
            or (isinstance(row.figures, ModulesFigures) and row.figures.first_module)
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


def _supply(
    about: Provenance, rung: str, compute_dtype: str, run_id: str, *, tried: frozenset[str], is_judged: bool
) -> str:
    if rung == OWN_DTYPE and compute_dtype == "float32":
        return "The run's own dtype is float32, which is the next rung."
    if rung in (OWN_DTYPE, SYMMETRY) and "model" in tried:
        return "The model that was given computes other logits than this dump's, so it says nothing here."
    if about.kind == "capture" and is_judged and _SUPPLY["capture"].get(rung) == _JUDGE:
        return _NOT_ASKED
    return _SUPPLY[about.kind].get(rung, _JUDGE).replace("{run}", run_id)


def _not_judged(about: Provenance, is_bit_identical: bool) -> str:
    if is_bit_identical:
        return "Both sides are equal bit for bit."
    if about.kind == "upload":
        return (
            "This dump was stored before uploads were judged, and whether rounding explains the difference is never"
            " guessed. The same pair in float32 would decide it."
        )
    return "No controls were run, so nothing here says whether rounding explains the difference."


def times(ratio: float) -> str:
    """`0.96`, `24`, `15,300`: a ratio in the digits that matter."""
    if not np.isfinite(ratio):
        return "infinitely many"
    if ratio < 10:
        return f"{ratio:.2f}"
    return three_digits(ratio)


def _in_own_dtype(evidence: Sequence[Evidence], compute_dtype: str) -> str:
    """`In bfloat16 it is 1.25 times the floor.`; '' where the rung was not passed or its row has no ratio."""
    row = next((row for row in evidence if row.rung == OWN_DTYPE and row.outcome == PASSED), None)
    if row is None or not isinstance(row.figures, RatioFigures) or row.figures.noise_ratio is None:
        return ""
    return f"In {compute_dtype} it is {times(row.figures.noise_ratio)} times the floor."


def position_ratios(
    pair_rms: NDArray[np.float64], floor_rms: NDArray[np.float64], compute_dtype: str
) -> NDArray[np.float64]:
    """Pair over floor at every position of all prompts, as the verdict takes it. [positions]

    A position whose floor is next to 0 has no scale of its own: in 16 bits it is held against the mean floor where that
    is larger, in wider dtypes against a hundredth of the median one (core.judging.ladder.noise_ratio.floor_test).
    """
    floor = floor_rms**2
    least = float(floor.mean()) if compute_dtype in ("bfloat16", "float16") else float(np.median(floor)) * 1e-4
    return pair_rms / np.sqrt(np.maximum(floor, max(least, np.finfo(np.float64).tiny)))
