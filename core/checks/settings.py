"""Do an engine's settings explain a side that differs from the model?"""

from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np

from ..evidence import FAILED, PASSED, PRECISION, Check, CheckFigures, Evidence, Ratio
from ..numerics.arrays import Floats
from ..numerics.statistic import FloorTest
from ..text import multiple
from .lower_precision import PrecisionVerdict
from .outliers import structure_of
from .pair import WIDE


class SettingsFigures(CheckFigures):
    """A side of another engine with its settings at their widest."""

    noise_ratio: Ratio
    settings: Annotated[tuple[str, ...], "settings that round coarser than float32"]
    widest_noise_ratio: Annotated[float, "RMS difference / noise floor with all at full precision"]
    bits: Annotated[int, "bits of the coarsest setting's significand"]
    share_of_rounding_in_bits: Annotated[
        float,
        "distance over that of the model with every product in so many bits",
    ]


SETTINGS = Check("an engine's settings", PRECISION, SettingsFigures)


def settings_row(
    side: str,
    settings: Mapping[str, str],
    ratio: float,
    *,
    test: FloorTest,
    widest_ratio: float,
    bits: int,
    share: float,
    over_allowed: Floats,
    lengths: Sequence[int],
) -> PrecisionVerdict:
    """Judge a side by what its settings do.

    settings: values by name; ratio: noise ratio with them; test, widest_ratio: of the side with all
    at full precision; bits: of the coarsest; share, over_allowed: distance over that of the model
    with every product in so many bits, over all and at each position [positions].
    """
    # at a place nine settings of llama.cpp and CTranslate2 reach 1.2 times as far
    outliers = np.flatnonzero(over_allowed > WIDE.at_a_place)
    is_rounding = share <= 1.0 and not len(outliers)
    words = [f"{name}:{value}" for name, value in settings.items()]
    cause = f"The setting {', '.join(words)}"
    if settings.keys() == {"kv"}:
        cause = f"The {settings['kv']} KV cache"
    sizes = f"{multiple(ratio)} the noise floor with it, {multiple(test.ratio)} at full precision"
    says = f"{cause} explains the difference: {sizes}."
    if not test.is_passed:
        worst = multiple(max(test.ratio, test.worst or 0.0))
        says = (
            f"With every setting at full precision '{side}' is still {worst} the noise floor"
            " from the model."
        )
    elif not is_rounding:
        farthest = multiple(max(share, over_allowed.max()))
        says = (
            f"{', '.join(words)} move '{side}' {farthest} as far as {bits}-bit rounding: a fault."
        )
    place = structure_of(outliers if test.is_passed else test.outliers, lengths).first
    return PrecisionVerdict(
        Evidence(
            SETTINGS,
            f"'{side}' compared with the model, with its settings at full precision",
            SettingsFigures(
                noise_ratio=ratio,
                settings=tuple(words),
                widest_noise_ratio=widest_ratio,
                bits=bits,
                share_of_rounding_in_bits=share,
            ),
            PASSED if test.is_passed and is_rounding else FAILED,
            says,
            side,
        ),
        place,
    )
