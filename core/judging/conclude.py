"""The verdict of a pair, from all of its evidence, in the order of docs/explanation/verdict.md."""

from collections.abc import Callable, Sequence

from ..cause import Cause
from ..checks.drawn import DRAWN
from ..checks.modules_alone import undeclared_precision
from ..checks.not_finite import NumbersFigures
from ..checks.other_rows import without_leaks_of_unsteady_sides
from ..evidence import (
    FAILED,
    FLOAT32,
    MISSING,
    NEIGHBOURS,
    OWN_DTYPE,
    PASSED,
    PRECISION,
    RERUN,
    SAMPLER,
    SCREENING,
    STATE,
    VALIDITY,
    Evidence,
    Unmeasured,
)
from ..places import words_of
from ..verdict import (
    BUG_SUSPECTED,
    IDENTICAL,
    INVALID_DUMP,
    LIKELY_ROUNDING,
    LOWER_PRECISION,
    NONDETERMINISTIC,
    ROUNDING,
    UNDECIDED,
    Verdict,
)

_LONGEST = 25  # words of a verdict's sentence
# verdicts whose sentence is that of a common cause, if there is one
_BY_CAUSE = (
    INVALID_DUMP,
    BUG_SUSPECTED,
    IDENTICAL,
    UNDECIDED,
)
# sentences of verdicts that no check gave
_BY_ITSELF = {
    IDENTICAL: "Both sides are equal bit for bit.",
    UNDECIDED: "To decide, bring the pair in float32 and a noise floor.",
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
    has_experts: bool = False,
) -> Verdict:
    """Name the verdict and say why; a check that is not available decides nothing.

    first_place: (prompt, position) of a fault; lengths: of the prompts; find_token: returns the
    only token that differs, if it is one; module: the first at fault; causes: common causes that
    explain the difference, best first; has_experts: a router chooses, so positions may be further
    apart than they round.
    """
    rows = tuple(sorted(without_leaks_of_unsteady_sides(evidence), key=lambda row: row.check.order))
    name, row = _decide(rows, is_bit_identical, has_experts=has_experts)
    cause = next(iter(causes), None)
    # a NaN says more than what caused it
    is_of_a_nan = row and isinstance(row.figures, NumbersFigures) and row.figures.token is not None
    if name not in _BY_CAUSE or is_of_a_nan:
        cause = None
    because = row.says if row else _BY_ITSELF[name]
    if cause:
        because = cause.says
    if name == BUG_SUSPECTED and row:
        has_place = cause.names_positions if cause else row.figures.names_position
        clauses = []
        if first_place and not has_place:
            clauses.append(f", from {words_of(first_place, lengths)}")
        token = find_token()  # for which a model runs once more
        if token is not None:
            clauses.append(f", at token {token}")
        if module:
            clauses.append(f", at {module}")
        doubt = "" if cause else undeclared_precision(row, rows)
        if doubt:
            because = doubt
            clauses = []
        for clause in clauses:
            longer = f"{because.rstrip('.')}{clause}."
            if len(longer.split()) <= _LONGEST:
                because = longer
    return Verdict(name, because, rows, noise_ratio, first_place)


def _decide(
    rows: Sequence[Evidence],
    is_bit_identical: bool,
    *,
    has_experts: bool,
) -> tuple[str, Evidence | None]:
    """Return the verdict's name and the row whose sentence says why, None if no check does."""

    def first(group: str, outcome: str = FAILED) -> Evidence | None:
        """Return the first row of a group with an outcome, one that names the side before
        others.
        """
        some = [row for row in rows if row.group == group and row.outcome == outcome]
        return min(
            some,
            key=lambda row: not row.side,
            default=None,
        )

    if invalid := first(VALIDITY):
        return INVALID_DUMP, invalid
    # both sides may be in one, each nothing else
    precisions = [row for row in rows if row.group == PRECISION]
    is_lower = {row.outcome for row in precisions} == {PASSED}
    deciding = [SAMPLER, NEIGHBOURS, STATE]
    if not is_lower:
        deciding += [FLOAT32, OWN_DTYPE]
    bug = next(filter(None, map(first, deciding)), None)
    rerun = first(RERUN)
    if not bug and rerun and getattr(rerun.figures, "beyond_noise_floor", False):
        bug = rerun
    if bug:
        return BUG_SUSPECTED, first(PRECISION) or bug
    if rerun:
        return NONDETERMINISTIC, rerun
    if is_lower:
        return LOWER_PRECISION, precisions[0]
    if is_bit_identical:
        return IDENTICAL, None
    screening = next((row for row in rows if row.group == SCREENING), None)
    if screening and screening.outcome == FAILED:
        return BUG_SUSPECTED, screening
    for row in rows:
        if row.outcome == MISSING and row.figures.leaves_16_bits_open:
            return UNDECIDED, row  # float32 says nothing of a fault that 16 bits alone have
    for row in rows:
        if row.outcome == PASSED and row.check.if_passed == ROUNDING:
            return ROUNDING, row
    likely = [
        row for row in rows if row.outcome != MISSING and row.check.if_passed == LIKELY_ROUNDING
    ]
    if {row.outcome for row in likely} == {PASSED}:
        # each side is as far from the exact result as its roundings are, at every position
        is_measured = any(row.check == DRAWN for row in likely) and not has_experts
        name = ROUNDING if is_measured else LIKELY_ROUNDING
        return name, max(likely, key=lambda row: (row.group == OWN_DTYPE, row.figures.ratio))
    has_controls = any(row.figures.controls for row in rows if isinstance(row.figures, Unmeasured))
    if screening and not has_controls:
        return UNDECIDED, screening
    return UNDECIDED, first(FLOAT32, MISSING) or first(OWN_DTYPE, MISSING)
