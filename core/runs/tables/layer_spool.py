"""Module outputs of a model, part by part, and the file in which one side's outputs wait for the other's.

Paths change weights, threads and kernels of the whole process, so two of them cannot run in step: the reference is
through before a variant begins, and waits on disk (decision 0008).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...errors import UsageError
from ...numerics.formats import FloatFormat, format_named

KINDS = ("embedding", "norm", "projection", "attention", "mlp", "residual", "head", "other")
Key = tuple[int, int]  # prompt, ordinal


@dataclass(frozen=True)
class LayerModule:
    """One module of a model. ordinal: place in the order in which the modules first put something out; block: None
    outside the blocks.
    """

    ordinal: int
    name: str
    kind: str
    block: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS or self.ordinal < 0 or not self.name:
            raise UsageError(f"module '{self.name}' of kind '{self.kind}' is none; there are {', '.join(KINDS)}.")


@dataclass(frozen=True)
class LayerPart:
    """Outputs of a module at some of the positions that are looked at, consecutive among them, from number `first` on.

    bits: [positions, width] of `dtype`, the module's own. A width of 0: what it put out is not understood, and nothing
    of it counts.
    """

    prompt: int
    module: LayerModule
    first: int
    bits: NDArray[np.unsignedinteger]
    dtype: str

    def __post_init__(self) -> None:
        if self.bits.ndim != 2 or not len(self.bits) or self.bits.dtype != self.format.carrier or self.first < 0:
            raise UsageError(
                f"{self.module.name}: {self.bits.shape} {self.bits.dtype} is no [positions, width] of {self.dtype}."
            )

    @property
    def format(self) -> FloatFormat:
        return format_named(self.dtype)

    @property
    def key(self) -> Key:
        return self.prompt, self.module.ordinal

    @property
    def stop(self) -> int:
        return self.first + len(self.bits)


@dataclass
class _Region:
    """Region of the file that holds a module's outputs for a prompt, and which positions have been written. seen:
    [positions looked at]
    """

    offset: int
    width: int
    format: FloatFormat
    seen: NDArray[np.bool_]


class LayerSpool:
    """Outputs of one side in one file; memory holds where each module's begin. A position that comes twice is
    overwritten.
    """

    def __init__(self, path: Path, counts: Sequence[int]) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        self._counts = counts
        self._regions: dict[Key, _Region] = {}
        self._end = 0

    def keep(self, part: LayerPart) -> None:
        region = self._regions.get(part.key)
        width = part.bits.shape[1]
        if region is None:
            count = self._counts[part.prompt]
            region = self._regions[part.key] = _Region(self._end, width, part.format, np.zeros(count, bool))
            self._end += count * width * part.format.itemsize
        if (region.width, region.format) != (width, part.format):
            region.width = 0  # it changes its shape from forward to forward: not to be compared
            return
        view = np.ascontiguousarray(part.bits).data.cast("B")
        place = region.offset + part.first * width * part.format.itemsize
        while view:
            written = os.pwrite(self._file, view, place)
            view, place = view[written:], place + written
        region.seen[part.first : part.stop] = True

    def reference_of(self, part: LayerPart) -> tuple[NDArray[np.unsignedinteger], FloatFormat] | None:
        """Bits of the same module at the same positions; None where there are none of that width."""
        region = self._regions.get(part.key)
        if region is None or region.width != part.bits.shape[1]:
            return None
        row_bytes = region.width * region.format.itemsize
        found = os.pread(self._file, len(part.bits) * row_bytes, region.offset + part.first * row_bytes)
        if len(found) < len(part.bits) * row_bytes:
            return None  # beyond what was ever written
        return np.frombuffer(found, region.format.carrier).reshape(part.bits.shape), region.format

    def is_whole(self, key: Key) -> bool:
        """Did the module put out every position that is looked at, in one width?"""
        region = self._regions.get(key)
        return region is not None and region.width > 0 and bool(region.seen.all())

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
