"""Verdict of a pair from all of its evidence, in the order of docs/explanation/verdict.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

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
    Evidence,
    Verdict,
)

# times as far as from one call to the next, beyond which other prompts are a leak
_MORE_THAN_A_RERUN = 4.0


def conclude(
    evidence: Sequence[Evidence],
    *,
    is_bit_identical: bool,
    noise_ratio: float | None = None,
    first_place: tuple[int, int] | None = None,
    causes: Sequence[str] = (),
) -> Verdict:
    """Name the verdict; a check that is not available decides nothing.

    causes: sentences of common causes that explain the difference, best first; they replace the
    check's sentence.
    """
    rows = tuple(sorted(_without_leaks_of_unsteady_sides(evidence), key=lambda row: row.order))
    cause = causes[0] if causes else ""

    def first(group: str, *outcomes: str) -> Evidence | None:
        """Return the first row of a group with one of these outcomes, one that names the side
        before others.
        """
        some = [
            row for row in rows if row.group == group and row.outcome in (outcomes or (FAILED,))
        ]
        return min(some, key=lambda row: row.side is None, default=None)

    def verdict(name: str, because: str) -> Verdict:
        return Verdict(name, because, rows, noise_ratio, first_place)

    if (invalid := first(checks.VALIDITY)) is not None:
        is_nan = (
            isinstance(invalid.figures, checks.NumbersFigures) and invalid.figures.token is not None
        )
        return verdict(records.INVALID_DUMP, invalid.says if is_nan else cause or invalid.says)
    # both sides may be in one, each nothing else
    precisions = [row for row in rows if row.group == checks.PRECISION]
    is_lower = bool(precisions) and all(row.outcome == PASSED for row in precisions)
    deciding = (checks.SAMPLER, checks.NEIGHBOURS, *(() if is_lower else (FLOAT32, OWN_DTYPE)))
    bug, rerun = next(filter(None, map(first, deciding)), None), first(checks.RERUN)
    if bug is None and rerun is not None and getattr(rerun.figures, "beyond_noise_floor", False):
        bug = rerun
    if bug is not None:
        return verdict(records.BUG_SUSPECTED, cause or (first(checks.PRECISION) or bug).says)
    if rerun is not None:
        return verdict(records.NONDETERMINISTIC, rerun.says)
    if is_lower:
        return verdict(records.LOWER_PRECISION, precisions[0].says)
    if is_bit_identical:
        return verdict(records.IDENTICAL, cause or "Both sides are equal bit for bit.")
    screening = next((row for row in rows if row.group == checks.SCREENING), None)
    if screening is not None and screening.outcome == FAILED:
        return verdict(records.BUG_SUSPECTED, cause or screening.says)
    doubt = next(filter(_is_open_in_16_bits, rows), None)
    if doubt is not None:  # float32 says nothing of a fault that 16 bits alone have
        return verdict(records.UNDECIDED, cause or doubt.says)
    for row in rows:
        if row.outcome == PASSED and (row.group == FLOAT32 or row.check is Check.LIST_FLOOR):
            return verdict(records.ROUNDING, row.says)
    draws = [row for row in rows if row.check is Check.DRAWN]
    if draws and all(row.outcome == PASSED for row in draws):
        largest = max(draws, key=lambda row: row.figures.noise_ratio)  # type: ignore[attr-defined]
        return verdict(records.LIKELY_ROUNDING, largest.says)
    if screening is not None and screening.outcome == PASSED:
        return verdict(records.LIKELY_ROUNDING, screening.says)
    wide, own = first(FLOAT32, MISSING), first(OWN_DTYPE, MISSING)
    has_controls = any(
        getattr(row.figures, "controls", ())
        for row in rows
        if type(row.figures) is checks.Unmeasured
    )
    missing = screening if screening is not None and not has_controls else wide or own
    lacking = (
        "The pair in float32, compared with a noise floor, decides."
        if missing is None
        else missing.says
    )
    return verdict(records.UNDECIDED, cause or lacking)


def _is_open_in_16_bits(row: Evidence) -> bool:
    """Return whether 16 bits were compared and do not decide: errors beyond rounding that nothing
    measures.
    """
    if row.outcome != MISSING:
        return False
    return row.check is Check.NARROWING or isinstance(row.figures, checks.DrawnFigures)


def _without_leaks_of_unsteady_sides(evidence: Sequence[Evidence]) -> list[Evidence]:
    """Rows in which a side that does not repeat its own bits is not accused of a leak because they
    moved again next to other prompts, if that is at most _MORE_THAN_A_RERUN times as far.
    """
    far: dict[str | None, float | None] = {}
    rows = []
    for row in evidence:
        if isinstance(row.figures, checks.RerunFigures):
            far |= dict.fromkeys(row.figures.not_repeatable, row.figures.rerun_rms_logits)
    for row in evidence:
        if (
            isinstance(row.figures, checks.OtherPromptsFigures)
            and row.outcome == FAILED
            and row.side in far
        ):
            rms, again = row.figures.rms_logits, far[row.side]
            if rms is None or again is None or rms <= _MORE_THAN_A_RERUN * again:
                says = (
                    f"Other prompts change bits of '{row.side}', but so does a rerun: no leak is"
                    " shown."
                )
                row = replace(row, outcome=NOTED, says=says)
        rows.append(row)
    return rows
