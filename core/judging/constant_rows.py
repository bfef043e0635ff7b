"""Rows that one single value fills, and tokens that a mask left out: a dump cut to its top k, a masked vocabulary."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..numerics.formats import FloatFormat, values_of

_SAMPLED = 32  # places of a row that are looked at before it is counted
_LEAST_VOCAB = 32  # smaller ones say nothing: of two logits that tie, one value fills all
_SHARE = 0.5  # of a row that one value fills; of real logits the commonest value is a few per cent, also in bfloat16
_GAP = 3.0  # spreads of all other values that a masked value lies below them
_LEAST_SPREAD = 10.0  # logits
_FAR_BELOW = 1000.0  # logits below the largest: where masks that were added to logits are looked for


def is_left_out(values: NDArray[np.floating]) -> NDArray[np.bool_]:
    """Tokens of a row that a mask left out: -inf, or a number as -1e9 or the lowest of a dtype that lies far below all
    others. [vocab]
    """
    left_out = np.isneginf(values)
    rest = values[np.isfinite(values)]
    while len(rest) > 1:
        low, high = float(rest.min()), float(rest.max())
        if high - low < _GAP * _LEAST_SPREAD or low >= 0:
            break
        others = rest[rest > low]
        least = float(others.min())
        if least - low <= _GAP * max(high - least, _LEAST_SPREAD):  # not one value: a mask added to logits
            below = rest[rest < high - _FAR_BELOW]
            others = rest[rest >= high - _FAR_BELOW]
            if not len(below) or below.max() > -_FAR_BELOW / 2:
                break
            least, highest_below = float(others.min()), float(below.max())
            gap = least - highest_below
            if gap <= max(_GAP * max(high - least, _LEAST_SPREAD), 10 * (highest_below - low)):
                break
        left_out |= values < least
        rest = others
    return left_out


@dataclass
class Filling:
    """One side as it passes by. rows: how many are filled by one value to more than a half; kept, most_kept: the least
    and the largest number of other logits in such a row.
    """

    fmt: FloatFormat
    rows: int = 0
    kept: int = 0
    most_kept: int = 0
    value: float = float("nan")
    first_row: int | None = None
    _seen: int = field(default=0, repr=False)

    def see(self, bits: NDArray[np.unsignedinteger]) -> None:
        """The next rows. [rows, vocab] bits of the compute dtype.

        A row is counted whole only where a third of 32 evenly spread places agree: a row of which one value fills more
        than nine tenths is missed with a chance below 1e-15, and looking at places costs nothing beside reading.
        """
        if bits.shape[1] < _LEAST_VOCAB:
            return
        places = np.unique(np.linspace(0, bits.shape[1] - 1, min(_SAMPLED, bits.shape[1])).astype(np.int64))
        sampled = np.sort(bits[:, places], axis=1)
        need = max(2, len(places) // 3)
        is_run = sampled[:, need - 1 :] == sampled[:, : sampled.shape[1] - need + 1]
        for row in np.flatnonzero(is_run.any(axis=1)):
            value = sampled[row, int(np.argmax(is_run[row]))]
            number = float(values_of(np.array([value]), self.fmt)[0])
            others = bits.shape[1] - int((bits[row] == value).sum())
            if number == number and others < (1 - _SHARE) * bits.shape[1]:
                self._add(self._seen + int(row), others, number)
        self._seen += len(bits)

    def _add(self, row: int, others: int, value: float) -> None:
        if self.first_row is None:
            self.first_row, self.kept, self.value = row, others, value
        self.kept, self.most_kept = min(self.kept, others), max(self.most_kept, others)
        self.rows += 1
