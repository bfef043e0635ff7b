"""Is the difference of two lists of top tokens as large as a model's noise floor?"""

from typing import Annotated

from ..evidence import MISSING, NOTED, OWN_DTYPE, PASSED, Check, Evidence, RatioFigures, Unmeasured
from ..numerics.statistic import Limits
from ..text import multiple
from ..verdict import ROUNDING
from .from_model import foreign

# Lists over a model's reorderings: of twenty tokens a mean square varies more than of a vocabulary,
# so one position may be further. Beyond the limits a list is undecided: a cache or activations of
# fewer bits are no bug.
LISTS = Limits(over_all=4.0, at_a_place=10.0)


class ListFloorFigures(RatioFigures):
    worst_position_ratio: Annotated[float, "largest ratio at one position"]
    reference_noise_ratio: Annotated[float, "reference to the model, in noise floors"]
    variant_noise_ratio: Annotated[float, "variant to the model, in noise floors"]


LIST_FLOOR = Check("the lists over a model's floor", OWN_DTYPE, ListFloorFigures, ROUNDING)


def list_floor_row(
    model: str,
    dtype: str,
    names: tuple[str, str],
    ratios: tuple[float, float, float] | None,
    worst: float,
) -> Evidence:
    """Return the row on a pair of lists.

    ratios: of the pair, of the reference to the model and of the variant to it, in noise floors,
    None if the model's draws show no rounding; worst: of the pair at one position.
    """
    if not ratios:
        says = (
            f"'{model}' in {dtype} has no noise floor: sums in another order change no value, or"
            " one is NaN."
        )
        return Evidence(LIST_FLOOR, f"'{model}'", Unmeasured(), MISSING, says)
    ratio, *distances = ratios
    outcome, says = NOTED, foreign(names, distances)[0]
    size = (
        f"{multiple(ratio)} the noise floor of '{model}' in {dtype}, up to {multiple(worst)} at one"
        " position"
    )
    if not says and ratio <= LISTS.over_all and worst <= LISTS.at_a_place:
        outcome, says = PASSED, f"Rounding noise: the pair is {size}."
    says = says or f"The pair is {size}: a lower precision, or a fault."
    return Evidence(
        LIST_FLOOR,
        f"'{model}'",
        ListFloorFigures(
            compute_dtype=dtype,
            noise_ratio=ratio,
            worst_position_ratio=worst,
            reference_noise_ratio=distances[0],
            variant_noise_ratio=distances[1],
        ),
        outcome,
        says,
    )
