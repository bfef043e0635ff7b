"""Find rows that one value fills, and tokens that a mask left out: a dump cut to its top k, a
masked vocabulary.
"""

from dataclasses import dataclass

import numpy as np

from .arrays import Bits, Flags, Values
from .formats import FloatFormat, values_of

# places of a row that are looked at before it is counted, and how many of them agree
_SAMPLED, _ALIKE = 32, 10
_LEAST_VOCAB = 32  # smaller ones say nothing: of two logits that tie, one value fills all
_GAP = 3.0  # spreads of all other values that a masked value lies below them
_LEAST_SPREAD = 10.0  # logits
_FAR_BELOW = 1000.0  # logits below the largest, at least, of masks that were added to logits


def is_left_out(values: Values) -> Flags:
    """Return which tokens of a row a mask left out: -inf, a number such as -1e9 or the lowest of a
    dtype that lies far below all others, or logits that such a number was added to. [vocab]
    """
    rest = values[np.isfinite(values)]
    if not len(rest) or rest.min() >= 0 or rest.max() <= rest.min() + _GAP * _LEAST_SPREAD:
        return np.isneginf(values)
    rest = np.sort(rest).astype(np.float64)
    while len(rest) > 1 and rest[0] < 0:
        low = rest[:-1]
        above = rest[-1] - rest[1:]
        gap = np.diff(rest)
        spread = low - rest[0]
        was_added = (low < min(rest[-1], _FAR_BELOW / 2) - _FAR_BELOW) & (gap > 10 * spread)
        is_wide = gap > _GAP * np.maximum(above, _LEAST_SPREAD)
        splits = np.flatnonzero(is_wide & ((spread == 0) | was_added))
        if not len(splits):
            break
        rest = rest[splits[0] + 1 :]
    return values < rest[0]


@dataclass
class Filling:
    """Rows of one side that one value fills to more than a half, counted as they pass by.

    rows: how many; value: of the first; others: the least number of other logits in such a row;
    whole: how many rows have no other logit.
    """

    fmt: FloatFormat
    rows: int = 0
    others: int = 0
    whole: int = 0
    value: float = float("nan")

    def see(self, bits: Bits) -> None:
        """Take in the next rows. [rows, vocab] bits of the compute dtype.

        A row is counted only if a third of 32 evenly spread places agree; one that a value fills to
        more than nine tenths is missed with a chance below 1e-15.
        """
        vocab = bits.shape[1]
        if vocab < _LEAST_VOCAB:
            return
        places = np.linspace(0, vocab - 1, _SAMPLED).astype(np.int64)
        samples = np.sort(bits[:, places], axis=1)
        is_run = samples[:, _ALIKE - 1 :] == samples[:, : 1 - _ALIKE]
        for row in np.flatnonzero(is_run.any(axis=1)):
            filler = samples[row, np.argmax(is_run[row])]
            value = float(values_of(np.array([filler]), self.fmt)[0])
            others = int((bits[row] != filler).sum())
            if not np.isnan(value) and 2 * others < vocab:
                self.others = min(self.others, others) if self.rows else others
                self.value = self.value if self.rows else value
                self.rows += 1
                self.whole += others == 0
