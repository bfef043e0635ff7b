"""Sides that have nothing but 16 bits, or answer on a grid of them: beside roundings drawn anew."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from msgspec import structs

from ....errors import CaptureError
from ....judging.judge import DRAWN
from ....judging.statistic import FloorTest
from ....judging.structure import structure_of
from ....runs.file.evidence import (
    FAILED,
    MISSING,
    NOTED,
    PASSED,
    Check,
    DrawnFigures,
    DrawnPrecisionFigures,
    Evidence,
    PrecisionsFigures,
)
from ....text import three_digits
from ...models.dtypes import converted, in_float32
from ...models.model import LoadedModel
from ...paths.engines import PLAIN, RunnableSide, whole_side
from ..answer_precision import grid_of
from ..drawn_roundings import sixteen_rows
from ..rounding_floor import EXACT_BYTES, as_many_as
from .catalogue import CACHE, LAYERS, Precision
from .lowered_side import Far, Lowered, Question, answering
from .search import PrecisionFit, fits, precisions_offered

_EXCESS_LEFT = 0.5  # of the squared error beyond rounding to 16 bits
_FEWEST_EXPLAINED = 3  # positions before a fault, by which the precision under it is known
_NEARLY = 1.2  # times what the best one leaves: two ways of storing a cache that 16 bits may not tell apart
_LEAST_OF_WHOLE = 0.5  # of what rounding drawn anew is from float32: a model in 16 bits throughout is no nearer


def whole_model(question: Question, loaded: LoadedModel, far: Far) -> Lowered | None:
    """A side of 16-bit answers, beside the model in that dtype throughout, drawn anew; None if they are not."""
    name, ratio = far.side.name, far.ratio
    chosen = as_many_as(question.prompts, EXACT_BYTES // (4 * loaded.vocab_size))
    answers = [whole_side(far.side.run_on(loaded), ids).float() for ids in chosen]
    grid = grid_of(answers)
    if grid is None:
        return None
    dtype = grid[0]
    all_of_it = f"All logits of '{name}' are {dtype} values"
    try:
        with converted(loaded, dtype) as narrowed:
            recorded = answering(name, chosen, answers)
            (row,), (failed,) = sixteen_rows(narrowed, chosen, [recorded], question.blocks, question.say)
    except CaptureError as error:
        says = f"{all_of_it}, and beside the model in {dtype} it cannot be held: {error}"
        nearest = PrecisionsFigures(noise_ratio=ratio, precision=dtype)
        return Lowered(Evidence(Check.PRECISIONS, far.control, nearest, NOTED, says, name))
    figures = _beside_draws(row, ratio, f"all of it in {dtype}")
    error_over_draws, own = figures.ratio_over_draws, float(np.median(figures.model_ways_ratios))
    outcome, place = NOTED, None
    computes = f"'{name}' computes in {dtype}, {three_digits(ratio)} rounding floors from float32."
    says = f"{all_of_it}. {row.says}"
    is_as_near = error_over_draws <= own / _LEAST_OF_WHOLE and not figures.nonfinite_mismatch
    if row.outcome != FAILED and error_over_draws < _LEAST_OF_WHOLE * own:
        says = f"{all_of_it}, but it is nearer to float32 than a model in {dtype} throughout is."
    elif row.outcome == PASSED:
        outcome, says = PASSED, f"{computes} {row.says}"
    elif row.outcome == MISSING and is_as_near:  # the draws are no measure by position
        outcome = PASSED
        says = (
            f"{computes} Its error is {error_over_draws / own:.2f} times that of the model's own ways in {dtype}, whose"
            " roundings are no measure position by position (near ties of a router): faults below"
            f" {1 / _LEAST_OF_WHOLE:g} times the rounding over all positions are not seen."
        )
    elif row.outcome == FAILED:
        outcome = FAILED
        place = structure_of(failed.outliers, [len(ids) for ids in chosen]).first if failed else None
    return Lowered(Evidence(Check.DRAWN_PRECISION, far.control, figures, outcome, says, name), place)


def _beside_draws(row: Evidence, ratio: float, precision: str) -> DrawnPrecisionFigures:
    """Figures of a side in a lower precision. row: of its error beside roundings drawn anew; ratio: over the floor."""
    assert isinstance(row.figures, DrawnFigures)
    of_draws = structs.asdict(row.figures) | {"noise_ratio": ratio}
    return DrawnPrecisionFigures(**of_draws, precision=precision, ratio_over_draws=row.figures.noise_ratio)


def lowered_in_16_bits(question: Question, loaded: LoadedModel, side: RunnableSide, failed: FloorTest) -> Lowered:
    """`lowered` for a side that has nothing but 16 bits. loaded: in its 16 bits; failed: its error's test."""
    outliers = np.zeros(sum(question.lengths), bool)
    outliers[failed.outliers] = True
    everywhere = np.ones_like(outliers)
    ids, differs = question.shortest(outliers if outliers.any() else everywhere) or (question.prompts[0], everywhere)
    wanted = whole_side(side.run_on(loaded), ids)
    offered = [each for each in precisions_offered(loaded, question.given) if _is_coarser(each, loaded.torch_dtype)]
    question.say("other precisions")
    with in_float32(loaded) as widened:
        found = fits(widened, ids, wanted, differs, offered, is_noisy=True)

    def lowered(
        figures: DrawnPrecisionFigures | PrecisionsFigures, outcome: str, says: str, place: tuple[int, int] | None
    ) -> Lowered:
        check = Check.DRAWN_PRECISION if isinstance(figures, DrawnPrecisionFigures) else Check.PRECISIONS
        control = (
            f"'{side.name}' in {loaded.dtype} against the model's own float32 forward in precisions that engines offer"
        )
        return Lowered(Evidence(check, control, figures, outcome, says, side.name), place)

    tried: list[tuple[Precision, Evidence, FloorTest]] = []
    for precision in _as_good(found):
        question.say(f"roundings drawn anew with {precision.name}")
        (row,), (test,) = sixteen_rows(
            loaded, question.prompts, [side], question.blocks, question.say, precision.side, [PLAIN]
        )
        if row.outcome == PASSED and test.holds_its_precisions and explains(failed.ratio, test.ratio):
            says = (
                f"'{side.name}' is the model's own function in {loaded.dtype} with its {precision.name},"
                f" {three_digits(failed.ratio)} times the rounding from float32. Beside that precision: {row.says}"
            )
            return lowered(_beside_draws(row, failed.ratio, precision.name), PASSED, says, None)
        tried.append((precision, row, test))
    if not tried:
        says = "No precision of caches or weights explains it."
        return lowered(PrecisionsFigures(noise_ratio=failed.ratio), NOTED, says, None)
    parts = [each for each in tried if each[1].outcome == FAILED and _is_part(failed, each[2])]
    # with a fault on top, which has fewer places than what another precision would leave
    precision, row, test = min(parts, key=lambda each: len(each[2].outliers), default=tried[0])
    figures = _beside_draws(row, failed.ratio, precision.name)
    if parts:
        says = (
            f"A lower precision is part of it: its {precision.name}. Beside that precision a fault is left on top of"
            f" it. {row.says}"
        )
        return lowered(figures, FAILED, says, structure_of(test.outliers, question.lengths).first)
    why = row.says
    if row.outcome == PASSED:
        why = f"Beside it the error is still {figures.ratio_over_draws:.2f} times that of rounding drawn anew."
        if not test.holds_its_precisions:
            why = "The error is as large as that precision makes it, and not what that precision makes."
    says = f"{precision.name} comes nearest and does not explain it. {why}"
    return lowered(figures, NOTED, says[0].upper() + says[1:], None)


def _as_good(found: Sequence[PrecisionFit]) -> list[Precision]:
    """The precision that leaves least, and the next of its formats, stored in another way."""
    if not found:
        return []
    best = found[0]
    others = [each for each in found[1:] if each.precision.name == best.precision.name]
    return [best.precision, *(each.precision for each in others[:1] if each.left <= _NEARLY * best.left)]


def _is_part(failed: FloorTest, beside: FloorTest) -> bool:
    """Return whether a side holds a precision that explains the first positions: a fault begins behind them."""
    places = beside.outliers
    explained = failed.outliers[failed.outliers < places[0]] if len(places) else places
    return beside.holds_its_precisions and len(explained) >= _FEWEST_EXPLAINED


def _is_coarser(precision: Precision, dtype: torch.dtype) -> bool:
    """Return whether a cache or weights are rounded that are of a 16-bit dtype already."""
    if precision.part not in (CACHE, LAYERS):
        return False
    shape = (1, 1, 4, 128) if precision.part == CACHE else (4, 128)
    values = torch.linspace(-2, 2, 512).to(dtype).float().reshape(shape)
    return not torch.equal(precision.rounding(values), values)


def explains(before: float, after: float) -> bool:
    """Return whether a precision takes away half of the squared error beyond rounding: less may do so by chance."""
    return before <= DRAWN.over_all or after**2 - 1 <= _EXCESS_LEFT * (before**2 - 1)
