"""Search for the precision that a side may have been lowered to, by what each leaves of the side's distance from the
model over a few positions of one prompt. docs/verdict_calibration.md has the method.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from ....errors import CaptureError
from ....judging.divergence import mean_squares
from ...models.model import LoadedModel
from ...models.torch_errors import foreign_errors_stop
from ...paths.engines import RunnableSide
from ..drawn_roundings import PREFILL
from ..rounding_floor import divergence
from .catalogue import CACHE, LAYERS, Precision, Stored, catalogue, ways_to_store, weights_are_of_16_bits

SCREENED = 48  # positions from the first that differs on, by which precisions are told apart
MOST_LEFT = 0.5  # of a side's distance, beyond which a precision explains nothing
# Of its distance to float32. Between two values of 8 bits, 16 bits often fall to the other one than float32 does: an
# fp8 cache of a tiny Gemma 2 leaves 0.96. Whether it is that precision is a question to roundings drawn anew.
MOST_LEFT_16_BITS = 1.0
_NEAR, _STEPS = 2, 3  # positions at a time, and times, that the one is moved at which a cache begins to be rounded
_SOME = 0.2  # of the positions that differ: a fault on top may be everywhere else
_INFINITE = float("inf")
Squares = NDArray[np.float64]


@dataclass(frozen=True)
class PrecisionFit:
    """A precision, and the share of the side's distance that it leaves at the positions that it explains best."""

    precision: Precision
    left: float


class PrecisionSearch:
    """One side beside the model, on one prompt, the shortest that differs.

    loaded: in the dtype that precisions are computed in; limit: mean square beyond which a position differs by more
    than rounding; offered: precisions that are tried; is_noisy: the side has 16 bits, whose rounding hides at which
    position a cache begins to be rounded, so that all are tried, by what they leave over all positions, from the first
    that differs on and from where the distance rises.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        ids: Sequence[int],
        wanted: torch.Tensor,
        differs: NDArray[np.bool_],
        limit: float,
        offered: Sequence[Precision],
        *,
        is_noisy: bool = False,
    ) -> None:
        """ids: of the prompt; wanted: the side's logits [positions, vocab]; differs: from the model by more than
        rounding [positions], somewhere.
        """
        self._loaded, self._limit, self._offered, self._is_noisy = loaded, limit, offered, is_noisy
        self._first = int(np.flatnonzero(differs)[0])
        self._ids = ids[: self._first + SCREENED]
        self._differs = differs[: len(self._ids)]
        self._wanted = wanted[: len(self._ids)]
        self._most_left = MOST_LEFT_16_BITS if is_noisy else MOST_LEFT
        self._left: dict[Precision, Squares | None] = {}
        plain = self._squares(PREFILL, len(self._ids))
        assert plain is not None
        self._distance = plain

    def found(self) -> list[PrecisionFit]:
        """Precisions that explain something, by what they leave, least first."""
        if self._first == 0 or self._is_noisy:
            tried = list(self._offered)
        else:  # weights, products and what is rounded before it is read show at position 0 already
            tried = []
        starts = dict.fromkeys([self._first, *([_rises(self._distance)] if self._is_noisy else [])])
        stored = [each for start in starts for each in self._stored_from(start)]
        return self._begun_nearby(self._best([*tried, *stored], self._differs))

    def _begun_nearby(self, found: list[PrecisionFit]) -> list[PrecisionFit]:
        """`found` with the best of its stored caches begun a little earlier and later too, and from there again, where
        16 bits hide when.
        """
        begin = 0
        for _ in range(_STEPS if self._is_noisy else 0):
            cache = next((each.precision for each in found if each.precision.stored), None)
            if cache is None or cache.stored is None or cache.stored.first == begin:
                break
            begin = cache.stored.first
            ways = [way for start in range(max(1, begin - _NEAR), begin + _NEAR + 1) for way in ways_to_store(start)]
            nearby = [replace(cache, stored=way) for way in ways]
            known = {each.precision for each in found}
            more = self._best([each for each in nearby if each not in known], self._differs)
            found = sorted([*found, *more], key=lambda each: each.left)
        return found

    def _stored_from(self, start: int) -> list[Precision]:
        """Caches of every format that are rounded after the forward that wrote them, the first one of `start` tokens,
        in every way that tokens may come after it.
        """
        if not start:
            return []
        caches = [each for each in self._offered if each.part == CACHE]
        chosen = [replace(each, stored=way) for each in caches for way in ways_to_store(start)]
        if self._is_noisy:
            return chosen
        formats = set()
        for each in caches:
            left = self._squares(replace(each, stored=Stored(start, 1)).side, start + 1)
            if left is not None and left[start] < self._most_left**2 * self._distance[start]:
                formats.add(each.format)
        return [each for each in chosen if each.format in formats]

    def _best(self, tried: Sequence[Precision], where: NDArray[np.bool_]) -> list[PrecisionFit]:
        """Those that explain something of the positions `where`, least left first."""
        found = []
        for each in tried:
            left = self._left_by(each)
            found.append(PrecisionFit(each, self._share_of_all(left) if self._is_noisy else self._share(left, where)))
        return sorted((each for each in found if each.left < self._most_left), key=lambda each: each.left)

    def _share(self, left: Squares, where: NDArray[np.bool_]) -> float:
        # of so many positions at least: a value between two of them would be that of the worse one
        return float(np.sqrt(np.quantile(left[where] / self._distance[where], _SOME, method="lower")))

    def _share_of_all(self, left: Squares) -> float:
        return float(np.sqrt(left.mean() / self._distance.mean()))

    def _left_by(self, precision: Precision) -> Squares:
        """Mean squares that a precision leaves; infinity where the model cannot be computed so."""
        if precision not in self._left:
            self._left[precision] = self._squares(precision.side, len(self._ids))
        found = self._left[precision]
        return np.full(len(self._ids), _INFINITE) if found is None else found

    def _squares(self, one: RunnableSide, stop: int) -> Squares | None:
        """None where the model cannot be computed so: attention that it has no eager form of, a cache of its own
        kind, values beyond the format's range, which the finite logits alone would not show.
        """
        try:
            with foreign_errors_stop(one.name, "leave it out"):
                apart = divergence(self._wanted[:stop], one.run_on(self._loaded), self._ids[:stop])
        except CaptureError:
            return None
        return None if apart.nonfinite_mismatch else mean_squares([apart])


def _rises(left: Squares) -> int:
    """Position from which on more is left: that at which two levels of its logarithm part best; 0 where none rises."""
    logs = np.log(np.maximum(left, np.finfo(np.float64).tiny))
    count = np.arange(1, len(logs))
    sums = np.cumsum(logs)
    rise = (sums[-1] - sums[:-1]) / (len(logs) - count) - sums[:-1] / count
    score = count * (len(logs) - count) * np.maximum(rise, 0.0) ** 2
    return int(count[np.argmax(score)]) if score.any() else 0


def precisions_offered(loaded: LoadedModel, given: Sequence[Precision], *, is_fixed: bool = False) -> list[Precision]:
    """Precisions to try. Those of weights in float64 too where values in the middle of two are many, as in a checkpoint
    of 16 bits, or where the side cannot be asked in float64.
    """
    offered = [*given, *catalogue(loaded)]
    if not (is_fixed or weights_are_of_16_bits(loaded.model)):
        return offered
    return [*offered, *(each.weights_in_float64 for each in offered if each.part == LAYERS)]
