"""Search for the precision that a side may have been lowered to, by what each leaves of the side's distance from the
model over a few positions of one prompt. docs/verdict_calibration.md has the method.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from ....errors import CaptureError
from ....judging.divergence import mean_squares
from ...models.model import LoadedModel
from ...models.torch_errors import foreign_errors_stop
from ...paths.engines import PLAIN, RunnableSide, divergence
from .catalogue import CACHE, LAYERS, Precision, Stored, catalogue, ways_to_store, weights_are_of_16_bits

SCREENED = 48  # positions from the first that differs on, by which precisions are told apart
MOST_LEFT = 0.5  # of a side's distance, beyond which a precision explains nothing
# Of its distance to float32. Between two values of 8 bits, 16 bits often fall to the other one than float32 does: an
# fp8 cache of a tiny Gemma 2 leaves 0.96. Whether it is that precision is a question to roundings drawn anew.
MOST_LEFT_16_BITS = 1.0
_NEAR, _STEPS = 2, 3  # positions at a time, and times, that the one is moved at which a cache begins to be rounded
_SOME = 0.2  # of the positions that differ: a fault on top may be everywhere else


@dataclass(frozen=True)
class PrecisionFit:
    """A precision, and the share of the side's distance that it leaves at the positions that it explains best."""

    precision: Precision
    left: float


def fits(
    loaded: LoadedModel,
    ids: Sequence[int],
    wanted: torch.Tensor,
    differs: NDArray[np.bool_],
    offered: Sequence[Precision],
    *,
    is_noisy: bool = False,
) -> list[PrecisionFit]:
    """Precisions that explain something of one side on one prompt, by what they leave, least first.

    wanted: the side's logits [positions, vocab]; differs: from the model by more than rounding [positions]; offered:
    precisions that are tried; is_noisy: 16 bits hide where a cache begins to be rounded, so all are tried, by what they
    leave over all positions.
    """
    first = int(np.flatnonzero(differs)[0])
    ids, differs, wanted = ids[: first + SCREENED], differs[: first + SCREENED], wanted[: first + SCREENED]
    most_left = MOST_LEFT_16_BITS if is_noisy else MOST_LEFT

    def squares(side: RunnableSide, stop: int) -> NDArray[np.float64] | None:
        """None if the model cannot be computed so, or a value is beyond the format's range."""
        try:
            with foreign_errors_stop(side.name, "leave it out"):
                apart = divergence(wanted[:stop], side.run_on(loaded), ids[:stop])
        except CaptureError:
            return None
        return None if apart.nonfinite_mismatch else mean_squares([apart])

    distance = squares(PLAIN, len(ids))
    assert distance is not None

    @cache
    def fit(precision: Precision) -> PrecisionFit:
        left = squares(precision.side, len(ids))
        if left is None:
            share = np.inf
        elif is_noisy:
            share = left.mean() / distance.mean()
        else:  # of so many positions at least: a value between two of them would be that of the worse one
            share = np.quantile(left[differs] / distance[differs], _SOME, method="lower")
        return PrecisionFit(precision, float(np.sqrt(share)))

    def best(tried: Iterable[Precision]) -> list[PrecisionFit]:
        return sorted((each for each in map(fit, tried) if each.left < most_left), key=lambda each: each.left)

    def stored_from(start: int) -> list[Precision]:
        """Caches that are rounded after the forward that wrote them, the first one of `start` tokens."""
        caches = [each for each in offered if each.part == CACHE and start]
        if not is_noisy:
            alone = [squares(replace(each, stored=Stored(start, 1)).side, start + 1) for each in caches]
            caches = [
                each
                for each, left in zip(caches, alone, strict=True)
                if left is not None and left[start] < most_left**2 * distance[start]
            ]
        return [replace(each, stored=way) for each in caches for way in ways_to_store(start)]

    # weights, products and what is rounded before it is read show at position 0 already
    tried = list(offered) if first == 0 or is_noisy else []
    starts = dict.fromkeys([first, *([_rises(distance)] if is_noisy else [])])
    found = best([*tried, *(each for start in starts for each in stored_from(start))])
    begin = 0
    for _ in range(_STEPS if is_noisy else 0):  # the best cache begun a little earlier and later, and from there again
        cached = next((each.precision for each in found if each.precision.stored), None)
        if cached is None or cached.stored is None or cached.stored.first == begin:
            break
        begin = cached.stored.first
        ways = [way for start in range(max(1, begin - _NEAR), begin + _NEAR + 1) for way in ways_to_store(start)]
        known = {each.precision for each in found}
        nearby = best(each for each in (replace(cached, stored=way) for way in ways) if each not in known)
        found = sorted([*found, *nearby], key=lambda each: each.left)
    return found


def _rises(left: NDArray[np.float64]) -> int:
    """Position from which on more is left: that at which two levels of its logarithm part best; 0 where none rises."""
    logs = np.log(np.maximum(left, np.finfo(np.float64).tiny))
    count = np.arange(1, len(logs))
    sums = np.cumsum(logs)
    rise = (sums[-1] - sums[:-1]) / (len(logs) - count) - sums[:-1] / count
    score = count * (len(logs) - count) * np.maximum(rise, 0.0) ** 2
    return int(count[np.argmax(score)]) if score.any() else 0


def precisions_offered(loaded: LoadedModel, given: Sequence[Precision], *, is_fixed: bool = False) -> list[Precision]:
    """Precisions to try; weights rounded in float64 too if values in the middle of two are many, or is_fixed."""
    offered = [*given, *catalogue(loaded)]
    if not (is_fixed or weights_are_of_16_bits(loaded.model)):
        return offered
    return [*offered, *(each.weights_in_float64 for each in offered if each.part == LAYERS)]
