"""The row of evidence on the outputs of a model's modules: which of them alone differ. It never decides."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..runs.file.evidence import NOTED, AloneFigures, Check, Evidence
from ..text import joined, plural, three_digits

LARGEST_ALONE = 10.0  # times a module's own rounding; docs/verdict_calibration.md has what was measured
_BLOCK = re.compile(r"\.\d+(?=\.|$)")
_NAMED = 3  # modules by name; more are told as parts of so many blocks


def alone_evidence(
    control: str,
    names: Sequence[str],
    ratios: NDArray[np.float64],
    side_rms: NDArray[np.float64],
    own_rms: NDArray[np.float64],
    side: str,
) -> Evidence:
    """The row on what each module of a side does, given what ran before it there. All [modules]: the largest ratio of a
    position to the module's own rounding, rms of the side's output and of the model's own to float64.
    """
    is_number = np.isfinite(ratios) & np.isfinite(side_rms) & np.isfinite(own_rms)
    is_beyond = (ratios > LARGEST_ALONE) | ~is_number
    within = float(ratios[~is_beyond].max()) if not is_beyond.all() else 0.0
    beyond = [name for name, is_it in zip(names, is_beyond, strict=True) if is_it]
    figures = AloneFigures(
        largest_ratio_allowed=LARGEST_ALONE,
        modules_beyond=tuple(beyond),
        largest_ratio_of_others=within,
        modules=tuple(names),
        alone_rms=tuple(float(x) if np.isfinite(x) else None for x in side_rms),
        own_rounding_rms=tuple(float(x) if np.isfinite(x) else None for x in own_rms),
    )
    fed = f"Given what ran before it in '{side}'"
    if not beyond:
        says = (
            f"{fed}, each of {plural(len(names), 'module')} puts out what the model's own does, within {within:.2f}"
            " times its own rounding: what is wrong is smaller than that, or in what they were given, or in the head."
        )
        return Evidence(Check.ALONE, control, figures, NOTED, says, side)
    found = ratios[is_beyond]
    if np.isfinite(found).all():
        low, high = three_digits(float(found.min())), three_digits(float(found.max()))
        size = f"{high if low == high else f'{low} to {high}'} times"
    else:
        size = "NaN or infinite where the model's own is not, or more than"
    others = f"the other {plural(len(names) - len(beyond), 'module')} stay within {within:.2f} times theirs"
    are, whose = ("differs", "its") if len(beyond) == 1 else ("differ", "their")
    says = f"{fed}, {in_words(beyond, names)} alone {are}, {size} {whose} own rounding; {others}."
    return Evidence(Check.ALONE, control, figures, NOTED, says, side)


def in_words(beyond: Sequence[str], names: Sequence[str]) -> str:
    """Few modules by name; many as `self_attn in 30 of 30 blocks`."""
    if len(beyond) <= _NAMED:
        return joined(beyond)
    counts: dict[str, int] = {}
    for name in beyond:
        counts[_kind_of(name)] = counts.get(_kind_of(name), 0) + 1
    all_counts = {kind: sum(_kind_of(name) == kind for name in names) for kind in counts}
    return joined(
        [
            kind if all_counts[kind] == 1 else f"{kind} in {count} of {all_counts[kind]} blocks"
            for kind, count in counts.items()
        ]
    )


def _kind_of(name: str) -> str:
    """`self_attn` of `model.layers.3.self_attn`: which part of a block it is; elsewhere its own name."""
    found = list(_BLOCK.finditer(name))
    return (name[found[-1].end() + 1 :] or "the block itself") if found else name
