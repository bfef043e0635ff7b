"""Digests of logits: of their values, whatever dtype they were stored in, so that equal ones are known as equal
wherever they lie.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...numerics.formats import BFLOAT16, FLOAT16, FloatFormat
from .source_dtype import moved

_FIRST = 4096  # elements that are looked at before all: of logits that a narrower dtype does not hold, hardly any does


class SideDigest:
    """SHA-256 of a side's bits, rows in order, little-endian: as they are stored (`stored`), and in the dtype its
    values are of (`values`).

    That is bfloat16 where every value is one, else float16 where every value is one, else float32. So a side has the
    same digest beside a side of another dtype, upcast, or in a run of its own.
    """

    def __init__(self, fmt: FloatFormat) -> None:
        self._fmt = fmt
        self._stored = hashlib.sha256()
        self._narrower: dict[FloatFormat, Any] = {
            target: hashlib.sha256() for target in (BFLOAT16, FLOAT16) if target is not fmt and fmt is not BFLOAT16
        }

    def update(self, bits: NDArray[np.unsignedinteger]) -> None:
        """The next rows. [rows, vocab], contiguous"""
        self._stored.update(bits.data)
        for target, digest in list(self._narrower.items()):
            is_first = moved(bits.reshape(-1)[:_FIRST], self._fmt, target) is not None
            found = moved(bits, self._fmt, target) if is_first else None
            if found is None:
                del self._narrower[target]
            else:
                digest.update(np.ascontiguousarray(found).data)

    def stored(self) -> str:
        """Digest of the stored bits, hexadecimal."""
        return self._stored.hexdigest()

    def values(self) -> tuple[str, str]:
        """(digest, name of the dtype whose bits it is of)."""
        for target, digest in self._narrower.items():
            return digest.hexdigest(), target.name
        return self.stored(), self._fmt.name
