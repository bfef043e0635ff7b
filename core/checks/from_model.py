"""Is each recorded side what the model computes for these tokens?"""

from collections.abc import Mapping
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
    says, far = foreign(dict(zip(subject.names, (reference, variant), strict=True)))
    if not says:
        return None
    figures = FromModelFigures(reference_noise_ratio=reference, variant_noise_ratio=variant)
    control = f"each side compared with the model's own prefill in {subject.dtype}"
    outcome = MISSING if far is None else FAILED
    return Evidence(FROM_MODEL, control, figures, outcome, says, far)


def foreign(ratios: Mapping[str, float]) -> tuple[str, str | None]:
    """Return a sentence if a side is not what the model computes, else ''; the side's name if it is
    only one.

    ratios: of each side to the model, in noise floors.
    """
    near, far = sorted(ratios, key=ratios.__getitem__)
    ratio, away = number(ratios[near]), number(ratios[far])
    if ratios[near] > FOREIGN:
        sizes = f"they are {ratio} and {away} noise floors away"
        says = (
            f"Neither side is what the model computes: {sizes}. Another checkpoint, or other"
            " tokens?"
        )
        return says, None
    if ratios[far] > FOREIGN:
        says = (
            f"'{far}' is not what the model computes: {away} noise floors from it ('{near}':"
            f" {ratio})."
        )
        return says, far
    return "", None
