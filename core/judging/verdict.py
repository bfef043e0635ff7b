"""Verdict of a pair from all of its evidence: the first check that fails decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..runs.file.evidence import (
    CHECK_GROUPS,
    FAILED,
    FLOAT32,
    MISSING,
    NEIGHBOURS,
    NOTED,
    OWN_DTYPE,
    PASSED,
    PRECISION,
    RERUN,
    SAMPLER,
    SCREENING,
    VALIDITY,
    Check,
    Evidence,
    NumbersFigures,
    OtherPromptsFigures,
    RerunFigures,
    Unmeasured,
    Verdict,
)
from ..runs.file.records import (
    BUG_SUSPECTED,
    IDENTICAL,
    INVALID_DUMP,
    LIKELY_ROUNDING,
    LOWER_PRECISION,
    NONDETERMINISTIC,
    ROUNDING,
    UNDECIDED,
)

_MORE_THAN_A_RERUN = 4.0  # times as far as from one call to the next, beyond which other prompts are a leak


def conclude(
    evidence: Sequence[Evidence],
    *,
    is_bit_identical: bool,
    noise_ratio: float | None = None,
    first_place: tuple[int, int] | None = None,
    causes: Sequence[str] = (),
) -> Verdict:
    """Name the verdict: the first check that fails decides, and one that is not available decides nothing.

    causes: sentences of simple causes that explain the difference, best first; they replace the check's sentence.
    """
    rows = tuple(sorted(_without_leaks_of_unsteady_sides(evidence), key=lambda row: row.order))
    by_group = {group: [row for row in rows if row.group == group] for group in CHECK_GROUPS}

    def failed(group: str) -> Evidence | None:
        """The first row that failed, one that names the side before others."""
        rows = [row for row in by_group[group] if row.outcome == FAILED]
        return next((row for row in rows if row.side is not None), next(iter(rows), None))

    def verdict(name: str, because: str) -> Verdict:
        return Verdict(name, because, rows, noise_ratio, first_place)

    cause = causes[0] if causes else ""
    if (invalid := failed(VALIDITY)) is not None:
        is_nan = isinstance(invalid.figures, NumbersFigures) and invalid.figures.token is not None
        return verdict(INVALID_DUMP, invalid.says if is_nan else cause or invalid.says)
    precisions = by_group[PRECISION]  # both sides may be in one, and each has to be nothing else
    is_lower = bool(precisions) and all(row.outcome == PASSED for row in precisions)
    deciding = (SAMPLER, NEIGHBOURS) if is_lower else (SAMPLER, NEIGHBOURS, FLOAT32, OWN_DTYPE)
    bug = next((row for group in deciding if (row := failed(group)) is not None), None)
    rerun = failed(RERUN)
    if bug is None and rerun is not None and _is_beyond_the_floor(rerun):
        bug = rerun
    if bug is not None:
        part = failed(PRECISION)
        return verdict(BUG_SUSPECTED, cause or (part or bug).says)
    if rerun is not None:
        return verdict(NONDETERMINISTIC, rerun.says)
    if is_lower:
        return verdict(LOWER_PRECISION, precisions[0].says)
    if is_bit_identical:
        return verdict(IDENTICAL, cause or "Both sides are equal bit for bit.")
    decided = next(
        (row for row in rows if row.outcome == PASSED and (row.group == FLOAT32 or row.check is Check.LIST_FLOOR)), None
    )
    if decided is not None:
        return verdict(ROUNDING, decided.says)
    screened = next(iter(by_group[SCREENING]), None)
    if screened is not None and screened.outcome == FAILED:
        return verdict(BUG_SUSPECTED, cause or screened.says)
    draws = [row for row in by_group[OWN_DTYPE] if row.check is Check.DRAWN]
    if draws and all(row.outcome == PASSED for row in draws):
        largest = max(draws, key=lambda row: row.figures.noise_ratio)  # type: ignore[attr-defined]
        return verdict(LIKELY_ROUNDING, largest.says)
    if screened is not None and screened.outcome == PASSED:
        return verdict(LIKELY_ROUNDING, screened.says)
    lacking = next(
        (row.says for group in (FLOAT32, OWN_DTYPE) for row in by_group[group] if row.outcome == MISSING),
        "The pair in float32, compared with a noise floor, would decide.",
    )
    has_controls = any(isinstance(row.figures, Unmeasured) and row.figures.controls for row in by_group[FLOAT32])
    return verdict(UNDECIDED, cause or (screened.says if screened is not None and not has_controls else lacking))


def _is_beyond_the_floor(rerun: Evidence) -> bool:
    return isinstance(rerun.figures, RerunFigures) and bool(rerun.figures.beyond_noise_floor)


def _without_leaks_of_unsteady_sides(evidence: Sequence[Evidence]) -> list[Evidence]:
    """Rows in which a side that does not repeat its own bits is not accused of a leak because they moved again next to
    other prompts, if that is at most _MORE_THAN_A_RERUN times as far.
    """
    far: dict[str, float | None] = {}
    for row in evidence:
        if isinstance(row.figures, RerunFigures):
            far |= dict.fromkeys(row.figures.not_repeatable, row.figures.rerun_rms_logits)
    rows = []
    for row in evidence:
        if isinstance(row.figures, OtherPromptsFigures) and row.outcome == FAILED and row.side in far:
            rms, again = row.figures.rms_logits, far[row.side]
            if rms is None or again is None or rms <= _MORE_THAN_A_RERUN * again:
                says = f"Other prompts change bits of '{row.side}', but so does a rerun of the same: no leak shown."
                row = replace(row, outcome=NOTED, says=says)
        rows.append(row)
    return rows
