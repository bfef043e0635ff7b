"""The check of a batch's rows: the same prompt in another one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from ...errors import CaptureError
from ...judging.divergence import mean_squares
from ...judging.ladder.noise_ratio import FloorTest, floor_test
from ...runs.file.evidence import FAILED, NOTED, PASSED, Check, Evidence, OtherRowFigures, OtherRowFloorFigures
from ...text import three_digits
from ..models.float64 import in_float64
from ..paths.engines import RunnableSide, digests_of, divergences_of
from .judging_session import JudgingSession
from .rounding_floor import in_float32, not_finite_of


def other_row_evidence(
    session: JudgingSession,
    side: RunnableSide,
    digest: str,
    measured: Mapping[str, NDArray[np.float64]],
    say: Callable[[str], None],
) -> Evidence | None:
    """Run the same prompt in another row of the batch; None where the side has no other. Kernels may sum rows in
    different orders (on a CPU they do, by thread), which is rounding and is held against the floor like any other; what
    is more than that depends on the row.

    digest: of the side's bits as it stands; measured: mean squares [seeds, positions] of the reorderings by dtype.
    """
    if side.rows < 2:
        return None
    here = int(side.value_of("row") or 0)
    there = (here + side.rows // 2) % side.rows if here else side.rows - 1
    moved = side.with_modifier("row", there)
    say("another row")
    control = f"'{moved.name}' against '{side.name}'"
    (found,) = digests_of(session.loaded, session.prompts, [moved])
    figures = OtherRowFigures(rows=side.rows, row=here, other_row=there, bit_identical=found == digest)
    gives = f"Row {there} of {side.rows} gives"
    if figures.bit_identical:
        says = f"{gives} the same bits as row {here}."
        return Evidence(Check.OTHER_ROW, control, figures, PASSED, says, side.name)
    dtype = next((name for name in ("float64", "float32") if name in measured), None)
    test = None if dtype is None else _row_test(session, dtype, (side, moved), measured[dtype])
    if dtype is None or test is None:
        says = f"{gives} other bits than row {here}; whether by more than rounding takes a floor."
        return Evidence(Check.OTHER_ROW, control, figures, NOTED, says, side.name)
    beside = OtherRowFloorFigures(
        **vars(figures),
        compute_dtype=dtype,
        noise_ratio=test.noise_ratio,
        worst_position_ratio=test.finite_worst,
        positions_beyond=len(test.outliers),
        nonfinite_mismatch=test.nonfinite,
    )
    if test.is_passed:
        says = f"{gives} other bits than row {here}, by {test.ratio:.2f} times the rounding floor in {dtype}."
        return Evidence(Check.OTHER_ROW_FLOOR, control, beside, PASSED, says, side.name)
    how_far = (
        f"up to {three_digits(max(test.ratio, test.worst))} times the rounding floor in {dtype}"
        if test.not_finite is None
        else f"in {dtype}, {test.not_finite.says([len(ids) for ids in session.prompts])}"
    )
    says = (
        f"The same prompt in row {there} of {side.rows} gives other logits than in row {here}: {how_far}. What is"
        " computed depends on the row."
    )
    return Evidence(Check.OTHER_ROW_FLOOR, control, beside, FAILED, says, side.name)


def _row_test(
    session: JudgingSession, dtype: str, sides: tuple[RunnableSide, RunnableSide], floor: NDArray[np.float64]
) -> FloorTest | None:
    """Both rows held against the floor in this dtype; None where they cannot be run in it."""
    try:
        with in_float64(session.loaded) if dtype == "float64" else in_float32(session.loaded) as widened:
            apart = divergences_of(widened, session.prompts, (session.kept(sides[0]), sides[1]))
    except CaptureError:
        return None
    not_finite = not_finite_of(session.loaded, apart, (sides[0].name, sides[1].name))
    return floor_test(mean_squares(apart), floor, not_finite=not_finite)
