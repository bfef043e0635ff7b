"""The verdict that all evidence of a pair comes to: what fails first on the ladder decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...errors import UsageError
from ...runs.file.evidence import (
    FAILED,
    FLOAT32,
    MISSING,
    NEIGHBOURS,
    NOTED,
    OWN_DTYPE,
    PASSED,
    PRECISION,
    RERUN,
    RUNGS,
    SAMPLER,
    SCREENING,
    VALIDITY,
    Evidence,
    OtherPromptsFigures,
    RerunFigures,
)
from ...runs.file.records import (
    BUG_SUSPECTED,
    IDENTICAL,
    INVALID_DUMP,
    LIKELY_ROUNDING,
    LOWER_PRECISION,
    NONDETERMINISTIC,
    ROUNDING,
    UNDECIDED,
    VERDICTS,
)
from .noise_ratio import LARGEST_RATIO


@dataclass(frozen=True)
class Verdict:
    """The conclusion of all evidence. `because`: one sentence; noise_ratio: of the float32 pair where it was measured,
    else of the pair.

    first_place: (prompt, position) where a fault shows first, None where none does.
    """

    name: str
    because: str
    evidence: tuple[Evidence, ...]
    noise_ratio: float | None = None
    first_place: tuple[int, int] | None = None

    @property
    def is_bug_suspected(self) -> bool:
        return self.name == BUG_SUSPECTED

    def table(self) -> str:
        """The evidence as plain text, a line a row: rung, outcome, what it says."""
        rungs = max((len(row.rung) for row in self.evidence), default=0)
        outcomes = max((len(row.outcome) for row in self.evidence), default=0)
        rows = [f"  {row.rung:<{rungs}}  {row.outcome:<{outcomes}}  {row.says}" for row in self.evidence]
        return "\n".join([f"{self.name}: {self.because}", *rows])

    def check(self, *, allowed: Sequence[str] = (IDENTICAL, ROUNDING)) -> Verdict:
        """Check a verdict in a test: AssertionError with the evidence unless it is of `allowed`; returns itself."""
        __tracebackhide__ = True
        unknown = [name for name in allowed if name not in VERDICTS]
        if unknown:
            raise UsageError(f"'{unknown[0]}' is no verdict; there are {', '.join(VERDICTS)}.")
        if self.name not in allowed:
            raise AssertionError(self.table())
        return self


def conclude(
    evidence: Sequence[Evidence],
    *,
    is_bit_identical: bool,
    noise_ratio: float | None = None,
    first_place: tuple[int, int] | None = None,
) -> Verdict:
    """The verdict that rows of evidence come to; what fails first on the ladder decides, and what is missing decides
    nothing.
    """
    rows = tuple(sorted(_without_leaks_of_unsteady_sides(evidence), key=lambda row: row.height))
    found = {rung: [row for row in rows if row.rung == rung] for rung in RUNGS}

    def failed(rung: str) -> Evidence | None:
        return next((row for row in found[rung] if row.outcome == FAILED), None)

    def passed(rung: str) -> bool:
        return any(row.outcome == PASSED for row in found[rung]) and failed(rung) is None

    def verdict(name: str, because: str) -> Verdict:
        return Verdict(name, because, rows, noise_ratio, first_place)

    invalid = failed(VALIDITY)
    if invalid is not None:
        return verdict(INVALID_DUMP, invalid.says)
    # both sides may be in one, and each has to be nothing else
    is_lower = bool(found[PRECISION]) and all(row.outcome == PASSED for row in found[PRECISION])
    lower = " ".join(row.says for row in found[PRECISION]) if is_lower else None
    deciding = (SAMPLER, NEIGHBOURS, FLOAT32, OWN_DTYPE) if lower is None else (SAMPLER, NEIGHBOURS)
    bug = next((row for rung in deciding if (row := failed(rung)) is not None), None)
    rerun = failed(RERUN)
    if bug is None and rerun is not None and _is_beyond_the_floor(rerun):
        bug, rerun = rerun, None
    if bug is not None:
        also = [row.says for row in (failed(PRECISION), rerun) if row is not None]
        return verdict(BUG_SUSPECTED, " ".join([bug.says, *also]))
    if lower is not None:
        if rerun is not None:
            return verdict(NONDETERMINISTIC, f"{rerun.says} Beyond that it is a lower precision: {lower}")
        return verdict(LOWER_PRECISION, lower)
    if is_bit_identical and rerun is None:
        return verdict(IDENTICAL, "Both sides are equal bit for bit.")
    if passed(FLOAT32):
        decided = next(row for row in found[FLOAT32] if row.outcome == PASSED)
        if rerun is not None:
            return verdict(NONDETERMINISTIC, f"{rerun.says} Beyond that it is rounding: {decided.says}")
        return verdict(ROUNDING, decided.says)
    lacking = next(
        (row.says for row in found[FLOAT32] if row.outcome == MISSING),
        "The same pair in float32, against a float32 rounding floor, is missing.",
    )
    screened = next(iter(found[SCREENING]), None)
    if screened is not None and screened.outcome == FAILED:
        because = screened.says if rerun is None else f"{screened.says} {rerun.says}"
        return verdict(BUG_SUSPECTED, because)
    if rerun is not None:
        return verdict(NONDETERMINISTIC, f"{rerun.says} Whether there is more to it is undecided: {lacking}")
    if screened is None:
        return verdict(UNDECIDED, lacking)
    name = LIKELY_ROUNDING if screened.outcome == PASSED else UNDECIDED
    return verdict(name, f"{screened.says} {lacking}")


def _is_beyond_the_floor(rerun: Evidence) -> bool:
    return isinstance(rerun.figures, RerunFigures) and bool(rerun.figures.beyond_noise_floor)


def _without_leaks_of_unsteady_sides(evidence: Sequence[Evidence]) -> list[Evidence]:
    """Rows in which a side that does not repeat its own bits is not accused of a leak because they moved again beside
    other prompts. Where it is known how far, by no more than LARGEST_RATIO times as far as from one call to the next.
    """
    far: dict[str, float | None] = {}
    for row in evidence:
        if isinstance(row.figures, RerunFigures):
            far |= dict.fromkeys(row.figures.not_repeatable, row.figures.rerun_rms_logits)
    found = []
    for row in evidence:
        if isinstance(row.figures, OtherPromptsFigures) and row.outcome == FAILED and row.side in far:
            here, again = row.figures.rms_logits, far[row.side]
            if here is None or again is None or here <= LARGEST_RATIO * again:
                says = (
                    f"'{row.side}' gives other bits beside other prompts, but it does not give the same bits twice"
                    " beside the same ones either: that shows no leak."
                )
                row = replace(row, outcome=NOTED, says=says)
        found.append(row)
    return found
