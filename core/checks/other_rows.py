"""Do other prompts in the batch, or another row of it, change a side's logits?"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from msgspec import structs

from ..evidence import (
    FAILED,
    NEIGHBOURS,
    NOTED,
    PASSED,
    Check,
    CheckFigures,
    Dtype,
    Evidence,
    Mismatches,
    Outliers,
    Subject,
    WorstRatio,
)
from ..numerics.arrays import Floats
from ..numerics.statistic import floor_test
from ..text import multiple
from .pair import WIDE, Pair
from .rerun import RerunFigures

# times as far as from one call to the next, beyond which other prompts are a leak
_MORE_THAN_A_RERUN = 4.0


class OtherPromptsFigures(CheckFigures, kw_only=True):
    """rows: of a model; neq, rms_logits: of a dump, uploaded again."""

    rows: Annotated[int | None, "rows in the batch"] = None
    bit_identical: Annotated[bool, "bit-identical"]
    neq: Annotated[int | None, "logits that differ"] = None
    rms_logits: Annotated[float | None, "RMS to the first call, logits"] = None


class OtherRowFigures(CheckFigures):
    rows: Annotated[int, "rows in the batch"]
    row: Annotated[int, "the row"]
    other_row: Annotated[int, "the other row"]
    bit_identical: Annotated[bool, "bit-identical"]


class OtherRowFloorFigures(OtherRowFigures):
    compute_dtype: Dtype
    noise_ratio: Annotated[float | None, "RMS difference / noise floor"]
    worst_position_ratio: WorstRatio
    positions_beyond: Outliers
    nonfinite_mismatch: Mismatches

    @property
    def names_position(self) -> bool:
        return self.nonfinite_mismatch > 0


OTHER_PROMPTS = Check("other prompts", NEIGHBOURS, OtherPromptsFigures)
OTHER_ROW = Check("another row", NEIGHBOURS, OtherRowFigures)
OTHER_ROW_FLOOR = Check("another row, against the floor", NEIGHBOURS, OtherRowFloorFigures)


@dataclass(frozen=True)
class OtherRows:
    """A side computed with other prompts in the other rows, or in another row. figures: of the
    check; difference: of the logits in a dtype with a noise floor, None if the bits are the same or
    it cannot be measured.
    """

    side: str
    control: str
    figures: OtherPromptsFigures | OtherRowFigures
    dtype: str = ""
    difference: Pair | None = None


def other_rows_row(subject: Subject, rows: OtherRows, floor: Floats | None) -> Evidence:
    """Return the row on other rows. floor: in the dtype of the difference, None without one."""
    bits = rows.figures
    figures: CheckFigures = bits
    check = OTHER_ROW
    outcome = PASSED
    if isinstance(bits, OtherPromptsFigures):
        check = OTHER_PROMPTS
        side = f"'{rows.side}'"
        says = f"Other prompts in the batch do not change a bit of {side}."
        if not bits.bit_identical and subject.has_experts:
            shared = "in a mixture of experts rows share products, so no leak"
            outcome, says = NOTED, f"Other prompts change bits of {side}: {shared}."
        elif not bits.bit_identical:
            outcome = FAILED
            says = (
                f"Other prompts in the batch change the logits of {side}: data leaks between rows."
            )
    elif rows.difference is None or floor is None:
        same = "the same bits as"
        if not bits.bit_identical:
            outcome, same = NOTED, "other bits than"
        says = f"Row {bits.other_row} of {bits.rows} gives {same} row {bits.row}."
    else:
        check = OTHER_ROW_FLOOR
        mismatch = rows.difference.not_finite
        test = floor_test(rows.difference.sizes, floor, WIDE)
        size = f"{multiple(max(test.ratio, test.worst or 0.0))} the noise floor in {rows.dtype}"
        differs = f"Row {bits.other_row} of {bits.rows} differs from row {bits.row}"
        outcome, says = FAILED, f"{differs} by up to {size}: the result depends on the row."
        if mismatch:
            says = f"{differs}: {mismatch.says(subject.lengths)}."
        elif test.is_passed:
            outcome, says = PASSED, f"{differs} by {size}, as rounding does."
        elif subject.chooses_keys:
            outcome, says = NOTED, f"{differs}: other keys, by near ties of the indexer?"
        figures = OtherRowFloorFigures(
            **structs.asdict(bits),
            compute_dtype=rows.dtype,
            noise_ratio=test.noise_ratio,
            worst_position_ratio=test.worst,
            positions_beyond=len(test.outliers),
            nonfinite_mismatch=mismatch.logits if mismatch else 0,
        )
    return Evidence(check, rows.control, figures, outcome, says, rows.side)


def without_leaks_of_unsteady_sides(evidence: Sequence[Evidence]) -> list[Evidence]:
    """Rows in which a side that does not repeat its own bits is not accused of a leak because they
    moved again next to other prompts, if that is at most _MORE_THAN_A_RERUN times as far.
    """
    far: dict[str | None, float | None] = {}
    for row in evidence:
        if isinstance(row.figures, RerunFigures):
            far |= dict.fromkeys(row.figures.not_repeatable, row.figures.rerun_rms_logits)

    def is_unsteady(row: Evidence) -> bool:
        if not isinstance(row.figures, OtherPromptsFigures) or row.outcome != FAILED:
            return False
        rms, again = row.figures.rms_logits, far.get(row.side)
        if rms is None or again is None:
            return row.side in far
        return rms <= _MORE_THAN_A_RERUN * again

    rows = list(evidence)
    for index, row in enumerate(rows):
        if is_unsteady(row):
            says = (
                f"Other prompts change bits of '{row.side}', but so does a rerun: no leak is shown."
            )
            rows[index] = replace(row, outcome=NOTED, says=says)
    return rows
