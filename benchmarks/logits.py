"""Pairs to measure with: logits of about the spread a language model has, the variant off by about
what rounding does.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from core.numerics.formats import FloatFormat, bits_of

POSITIONS = 256
VOCAB = 128256  # Llama 3


def pair(fmt: FloatFormat, rows: int = POSITIONS, vocab: int = VOCAB) -> tuple[NDArray, NDArray]:
    """Bits of two sides [rows, vocab]: standard deviation 3, a difference of 0.03 (float32: 3e-6)
    before both are rounded.
    """
    rng = np.random.default_rng(0)
    sides = np.empty((2, rows, vocab), fmt.carrier)
    for row in range(rows):
        logits = rng.standard_normal(vocab) * 3
        sides[0, row] = bits_of(logits.astype(np.float32).astype(fmt.values))
        noisy = logits + rng.standard_normal(vocab) * (3e-6 if fmt.bits == 32 else 0.03)
        sides[1, row] = bits_of(noisy.astype(np.float32).astype(fmt.values))
    return sides[0], sides[1]
