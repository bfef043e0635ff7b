"""Is a side the model in a lower precision, and has it a fault on top of it?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from msgspec import structs

from ..evidence import (
    FAILED,
    NOTED,
    PRECISION,
    Check,
    CheckFigures,
    Dtype,
    Evidence,
    Outliers,
    Ratio,
    WorstRatio,
)
from ..numerics.arrays import Ints
from ..places import place_in_words
from ..text import multiple
from .choices import ChoicesFigures
from .drawn import DrawnFigures
from .outliers import structure_of


@dataclass(frozen=True)
class PrecisionVerdict:
    """Evidence on the lower precision of one side. place: (prompt, position) of a fault on top of
    it; is_of_choices: it takes other experts or keys.
    """

    evidence: Evidence
    place: tuple[int, int] | None = None
    is_of_choices: bool = False


class PrecisionsFigures(CheckFigures):
    noise_ratio: Ratio
    precision: Annotated[str | None, "the precision"] = None
    share_left: Annotated[float | None, "share of the difference that remains"] = None


class ExplainedFigures(CheckFigures):
    """A side compared with the model in one lower precision, over that precision's own noise
    floor.
    """

    noise_ratio: Ratio
    precision: Annotated[str, "the precision"]
    compute_dtype: Dtype
    share_left: Annotated[float, "share of the difference that remains"]
    left_noise_ratio: Annotated[
        float | None,
        "what remains / that precision's own noise floor, RMS",
    ]
    worst_position_ratio: WorstRatio
    position_ratio_allowed: Annotated[float, "limit of the ratio at one position"]
    positions_beyond: Outliers
    left_noise_ratio_bfloat16: Annotated[float | None, "the same in bfloat16"] = None
    left_noise_ratio_float16: Annotated[float | None, "the same in float16"] = None

    @property
    def names_position(self) -> bool:
        return self.positions_beyond > 0


class DrawnPrecisionFigures(DrawnFigures, kw_only=True):
    """A side of 16 bits compared with the model in a lower precision and random roundings."""

    precision: Annotated[str, "the precision"]
    ratio_over_draws: Annotated[float, "error over that of randomized rounding"]

    @property
    def names_position(self) -> bool:
        return self.positions_beyond > 0


PRECISIONS = Check("precisions that engines offer", PRECISION, PrecisionsFigures)
ONE_PRECISION = Check("one lower precision", PRECISION, ExplainedFigures)
DRAWN_PRECISION = Check("one precision in 16 bits", PRECISION, DrawnPrecisionFigures)


def no_precision(side: str, ratio: float, faulty_walks: Sequence[float]) -> PrecisionVerdict:
    """Say that no precision explains a side. ratio: its noise ratio; faulty_walks: noise ratios of
    the model's own forwards of precisions that cannot be tried for that.
    """
    says = f"No lower precision explains the difference of '{side}'."
    if faulty_walks:
        size = multiple(max(faulty_walks))
        says += (
            " At full precision, too, the model's forwards of this path differ from 'prefill' by"
            f" {size} the noise floor."
        )
    return PrecisionVerdict(
        _row(PRECISIONS, PrecisionsFigures(noise_ratio=ratio), NOTED, says, side)
    )


def one_precision(
    side: str,
    ratio: float,
    figures: ExplainedFigures | DrawnPrecisionFigures,
    outcome: str,
    outliers: Ints,
    lengths: Sequence[int],
) -> PrecisionVerdict:
    """Say what explains a side, wholly or but for a fault on top. ratio: its noise ratio; outliers:
    positions beyond the precision's noise.
    """
    name, place = figures.precision, None
    size = f"{multiple(ratio)} the noise floor"
    says = f"'{side}' is the model with {name}: {size}; what remains is rounding-sized."
    if outcome == FAILED:
        place = structure_of(outliers, lengths).first
        start = f", from {place_in_words(outliers[0], lengths)}" if len(outliers) else ""
        says = f"A fault besides a lower precision, {name}{start}."
    return PrecisionVerdict(
        _row(
            ONE_PRECISION if isinstance(figures, ExplainedFigures) else DRAWN_PRECISION,
            figures,
            outcome,
            says,
            side,
        ),
        place,
    )


def fault_of_16_bits(row: Evidence, precision: str, dtype: str, ratio: float) -> PrecisionVerdict:
    """Say that what explains float32 in a row does not explain 16 bits. ratio: over rounding."""
    size = f"{multiple(ratio)} the error of rounding"
    return PrecisionVerdict(
        _row(
            row.check,
            structs.replace(row.figures, **{f"left_noise_ratio_{dtype}": ratio}),
            FAILED,
            f"{precision} explains float32 but not {dtype} ({size}): a fault of the {dtype}"
            " kernels.",
            row.side,
        )
    )


def fault_of_choices(row: Evidence, choices: Evidence) -> PrecisionVerdict:
    """Say that the precision in a row does not explain the choices of its side, which are another
    row.
    """
    assert isinstance(row.figures, ExplainedFigures | DrawnPrecisionFigures)
    assert isinstance(choices.figures, ChoicesFigures)
    verdict = _row(
        row.check,
        row.figures,
        FAILED,
        f"A fault of choices besides a lower precision, {row.figures.precision}.",
        row.side,
    )
    return PrecisionVerdict(verdict, choices.figures.first, is_of_choices=True)


def _row(
    check: Check,
    figures: CheckFigures,
    outcome: str,
    says: str,
    side: str | None,
) -> Evidence:
    return Evidence(
        check, f"'{side}' compared with the model in lower precisions", figures, outcome, says, side
    )
