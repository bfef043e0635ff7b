"""Digests of logits: of their values, independent of the stored dtype."""

import hashlib
from typing import Any

import numpy as np

from ...numerics.arrays import Bits
from ...numerics.formats import BFLOAT16, FLOAT16, FloatFormat
from .source_dtype import convert

# elements that are checked first: logits that do not fit a narrower dtype rarely fit here
_FIRST = 4096


class SideDigest:
    """SHA-256 of a side's bits, rows in order, little-endian: as stored (`stored_digest`), and in
    the narrowest dtype that holds them (`values`): bfloat16, else float16, else float32.

    So a side has the same digest in a run of another dtype, upcast, or in a run of its own.
    """

    def __init__(self, fmt: FloatFormat) -> None:
        self._fmt = fmt
        self._stored = hashlib.sha256()
        self._narrower: dict[FloatFormat, Any] = {
            target: hashlib.sha256()
            for target in (BFLOAT16, FLOAT16)
            if target is not fmt and fmt is not BFLOAT16
        }

    def update(self, bits: Bits) -> None:
        """Return the next rows. [rows, vocab], contiguous"""
        self._stored.update(bits.data)
        for target, digest in list(self._narrower.items()):
            is_first = convert(bits.reshape(-1)[:_FIRST], self._fmt, target) is not None
            converted = convert(bits, self._fmt, target) if is_first else None
            if converted is None:
                del self._narrower[target]
            else:
                digest.update(np.ascontiguousarray(converted).data)

    def stored_digest(self) -> str:
        """Digest of the stored bits, hexadecimal."""
        return self._stored.hexdigest()

    def values(self) -> tuple[str, str]:
        """(digest, name of the dtype whose bits it is of)."""
        for target, digest in self._narrower.items():
            return digest.hexdigest(), target.name
        return self.stored_digest(), self._fmt.name
