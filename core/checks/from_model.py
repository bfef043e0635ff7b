"""Is each recorded side what the model computes for these tokens?"""

from collections.abc import Mapping, Sequence
from typing import Annotated

from ..evidence import FAILED, MISSING, OWN_DTYPE, Check, CheckFigures, Evidence, Subject
from ..numerics.arrays import Floats
from ..numerics.statistic import rms_ratio
from ..text import number

# noise floors: a side further than this from the model's own logits is not what the model computes
FOREIGN = 10.0


class FromModelFigures(CheckFigures):
    reference_noise_ratio: Annotated[float, "reference to the model, in noise floors"]
    variant_noise_ratio: Annotated[float, "variant to the model, in noise floors"]


FROM_MODEL = Check("each side against the model", OWN_DTYPE, FromModelFigures)


def from_model_row(
    subject: Subject, squares: Mapping[str, Floats], floor: Floats
) -> Evidence | None:
    """Return the row on a side that is not; if neither is, its floor says nothing. None if both
    are.

    squares: mean squares of each side to the model's own prefill.
    """
    reference, variant = (rms_ratio(squares[name], floor) for name in subject.names)
    says, far = foreign(subject.names, (reference, variant))
    if not says:
        return None
    return Evidence(
        FROM_MODEL,
        f"each side compared with the model's own prefill in {subject.dtype}",
        FromModelFigures(reference_noise_ratio=reference, variant_noise_ratio=variant),
        FAILED if far else MISSING,
        says,
        far,
    )


def foreign(names: Sequence[str], ratios: Sequence[float]) -> tuple[str, str | None]:
    """Return a sentence if a side is not what the model computes, else ''; the side's name if it is
    only one.

    ratios: of each side to the model, in noise floors.
    """
    (least, near), (most, far) = sorted(zip(ratios, names, strict=True))
    ratio = number(least)
    away = number(most)
    if least > FOREIGN:
        says = (
            f"Neither side is what the model computes: they are {ratio} and {away} noise floors"
            " away. Another checkpoint, or other tokens?"
        )
        return says, None
    if most > FOREIGN:
        says = (
            f"'{far}' is not what the model computes: {away} noise floors from it ('{near}':"
            f" {ratio})."
        )
        return says, far
    return "", None
