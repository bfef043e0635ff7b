"""The verdict of a pair, from all of its evidence, in the order of docs/explanation/verdict.md."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from ..cause import Cause
from ..runs.file import evidence as checks
from ..runs.file import records
from ..runs.file.evidence import (
    FAILED,
    FLOAT32,
    MISSING,
    NOTED,
    OWN_DTYPE,
    PASSED,
    Check,
    CheckFigures,
    Evidence,
    Verdict,
)
from ..text import multiple
from .limits import STANDS_OUT
from .places import words_of
from .shrink import STANDS_OUT_ALONE

# times as far as from one call to the next, beyond which other prompts are a leak
_MORE_THAN_A_RERUN = 4.0
_LONGEST = 25  # words of a verdict's sentence
# verdicts whose sentence is that of a common cause, if there is one
_BY_CAUSE = (
    records.INVALID_DUMP,
    records.BUG_SUSPECTED,
    records.IDENTICAL,
    records.UNDECIDED,
)
# sentences of verdicts that no check gave
_BY_ITSELF = {
    records.IDENTICAL: "Both sides are equal bit for bit.",
    records.UNDECIDED: "The pair in float32, compared with a noise floor, decides.",
}


def conclude(
    evidence: Sequence[Evidence],
    *,
    is_bit_identical: bool,
    noise_ratio: float | None = None,
    first_place: tuple[int, int] | None = None,
    lengths: Sequence[int] = (),
    find_token: Callable[[], int | None] = lambda: None,
    module: str = "",
    causes: Sequence[Cause] = (),
) -> Verdict:
    """Name the verdict and say why; a check that is not available decides nothing.

    first_place: (prompt, position) of a fault; lengths: of the prompts; find_token: returns the
    only token that differs, if it is one; module: the first at fault; causes: common causes that
    explain the difference, best first.
    """
    rows = tuple(sorted(_without_leaks_of_unsteady_sides(evidence), key=lambda row: row.order))
    name, row = _decide(rows, is_bit_identical)
    cause = next(iter(causes), None)
    if name not in _BY_CAUSE or (row is not None and _is_of_a_nan(row)):
        cause = None
    because = _BY_ITSELF[name] if row is None else row.says
    if cause is not None:
        because = cause.says
    if name == records.BUG_SUSPECTED and row is not None:
        has_place = _names_position(row.figures) if cause is None else cause.names_positions
        clauses = []
        if first_place is not None and not has_place:
            clauses.append(f", from {words_of(first_place, lengths)}")
        token = find_token()  # for which a model runs once more
        if token is not None:
            clauses.append(f", at token {token}")
        if module:
            clauses.append(f", at {module}")
        doubt = _undeclared_precision(row, rows) if cause is None else ""
        because = doubt or _with_clauses(because, clauses)
    return Verdict(name, because, rows, noise_ratio, first_place)


def _decide(rows: Sequence[Evidence], is_bit_identical: bool) -> tuple[str, Evidence | None]:
    """Return the verdict's name and the row whose sentence says why, None if no check does."""

    def first(group: str, outcome: str = FAILED) -> Evidence | None:
        """Return the first row of a group with an outcome, one that names the side before
        others.
        """
        some = [row for row in rows if row.group == group and row.outcome == outcome]
        return min(some, key=lambda row: row.side is None, default=None)

    if (invalid := first(checks.VALIDITY)) is not None:
        return records.INVALID_DUMP, invalid
    # both sides may be in one, each nothing else
    precisions = [row for row in rows if row.group == checks.PRECISION]
    is_lower = bool(precisions) and all(row.outcome == PASSED for row in precisions)
    deciding = [checks.SAMPLER, checks.NEIGHBOURS]
    if not is_lower:
        deciding += [FLOAT32, OWN_DTYPE]
    bug = next(filter(None, map(first, deciding)), None)
    rerun = first(checks.RERUN)
    if bug is None and rerun is not None and getattr(rerun.figures, "beyond_noise_floor", False):
        bug = rerun
    if bug is not None:
        return records.BUG_SUSPECTED, first(checks.PRECISION) or bug
    if rerun is not None:
        return records.NONDETERMINISTIC, rerun
    if is_lower:
        return records.LOWER_PRECISION, precisions[0]
    if is_bit_identical:
        return records.IDENTICAL, None
    screening = next((row for row in rows if row.group == checks.SCREENING), None)
    if screening is not None and screening.outcome == FAILED:
        return records.BUG_SUSPECTED, screening
    doubt = next(filter(_is_open_in_16_bits, rows), None)
    if doubt is not None:  # float32 says nothing of a fault that 16 bits alone have
        return records.UNDECIDED, doubt
    for row in rows:
        if row.outcome == PASSED and (row.group == FLOAT32 or row.check is Check.LIST_FLOOR):
            return records.ROUNDING, row
    draws = [row for row in rows if row.check is Check.DRAWN]
    if draws and all(row.outcome == PASSED for row in draws):
        return records.LIKELY_ROUNDING, max(draws, key=_ratio)
    if screening is not None and screening.outcome == PASSED:
        return records.LIKELY_ROUNDING, screening
    has_controls = any(
        row.figures.controls for row in rows if isinstance(row.figures, checks.Unmeasured)
    )
    if screening is not None and not has_controls:
        return records.UNDECIDED, screening
    return records.UNDECIDED, first(FLOAT32, MISSING) or first(OWN_DTYPE, MISSING)


def _ratio(row: Evidence) -> float:
    """Return the noise ratio of a row, infinite if the difference has no size."""
    ratio = getattr(row.figures, "noise_ratio", None)
    return math.inf if ratio is None else ratio


def _is_of_a_nan(row: Evidence) -> bool:
    """Return whether a dump is invalid for a NaN, which says more than what caused it."""
    return isinstance(row.figures, checks.NumbersFigures) and row.figures.token is not None


def _is_open_in_16_bits(row: Evidence) -> bool:
    """Return whether 16 bits were compared and do not decide: errors beyond rounding that nothing
    measures.
    """
    if row.outcome != MISSING:
        return False
    return row.check is Check.NARROWING or isinstance(row.figures, checks.DrawnFigures)


def _names_position(figures: CheckFigures) -> bool:
    """Return whether the sentence of a failed check says at which position it failed."""
    match figures:
        case checks.SamplerFigures() | checks.SingleLogitFigures():
            return True
        case checks.ShrinkFigures():
            return figures.worst_position_ratio > STANDS_OUT_ALONE
        case checks.NarrowingFigures():
            return (figures.worst_position_ratio or 0.0) > STANDS_OUT
        case checks.RerunFigures():
            return figures.rerun_noise_ratio is not None
        case checks.ExplainedFigures() | checks.DrawnPrecisionFigures():
            return figures.positions_beyond > 0
        case checks.OtherRowFloorFigures() | checks.NotFiniteFigures():
            return figures.nonfinite_mismatch > 0
        case checks.PairFigures() | checks.DrawnFigures():
            # a size beyond the limit over all says no position
            is_small = (figures.noise_ratio or math.inf) <= figures.largest_ratio_allowed
            has_outliers = is_small and figures.positions_beyond > 0
            return has_outliers or figures.nonfinite_mismatch > 0
    return False


def _undeclared_precision(row: Evidence, rows: Sequence[Evidence]) -> str:
    """Return a sentence if modules alone, in float32, show fewer bits and nothing else."""
    pair = row.figures
    if row.group != FLOAT32 or not isinstance(pair, checks.PairFigures):
        return ""
    for each in reversed(rows):
        alone = each.figures
        if (
            isinstance(alone, checks.AloneFigures)
            and alone.bits is not None
            and alone.first is None
        ):
            size = f"{multiple(_ratio(row))} the noise floor in {pair.compute_dtype}"
            part = f"{alone.kind} of {alone.blocks} layers computes to {alone.bits:.0f} bits"
            return f"{size}: a bug, or an undeclared lower precision ({part})."
    return ""


def _with_clauses(sentence: str, clauses: Sequence[str]) -> str:
    """Add the clauses with which the sentence is not too long."""
    for clause in clauses:
        longer = f"{sentence.rstrip('.')}{clause}."
        if len(longer.split()) <= _LONGEST:
            sentence = longer
    return sentence


def _without_leaks_of_unsteady_sides(evidence: Sequence[Evidence]) -> list[Evidence]:
    """Rows in which a side that does not repeat its own bits is not accused of a leak because they
    moved again next to other prompts, if that is at most _MORE_THAN_A_RERUN times as far.
    """
    far: dict[str | None, float | None] = {}
    for row in evidence:
        if isinstance(row.figures, checks.RerunFigures):
            far |= dict.fromkeys(row.figures.not_repeatable, row.figures.rerun_rms_logits)

    def is_unsteady(row: Evidence) -> bool:
        if not isinstance(row.figures, checks.OtherPromptsFigures) or row.outcome != FAILED:
            return False
        rms, again = row.figures.rms_logits, far.get(row.side)
        if rms is None or again is None:
            return row.side in far
        return rms <= _MORE_THAN_A_RERUN * again

    def without_leak(row: Evidence) -> Evidence:
        says = f"Other prompts change bits of '{row.side}', but so does a rerun: no leak is shown."
        return replace(row, outcome=NOTED, says=says)

    return [without_leak(row) if is_unsteady(row) else row for row in evidence]
