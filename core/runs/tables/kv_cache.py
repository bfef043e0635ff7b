"""Key/value caches while a run is written: the reference's wait on disk, and every variant's are compared with them.

Only figures are stored: complete caches of a long prompt are as large as the model's own memory for it, and pages show
at which places and by how much they differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...errors import UsageError
from ...numerics.differences import differences, max_row_ulps, rms_row_ulps
from ...numerics.formats import FloatFormat
from ...text import plural
from ..file.table import Table, null_if_nan

KV = Table(
    "kv",
    """
    -- KV caches of a pair after the whole prompt, by layer, kind and head; no rows if a side keeps none
    pair INTEGER -- index of the pair
    prompt INTEGER -- index of the prompt
    layer INTEGER -- 0-based layer of the model
    kind VARCHAR -- key or value
    head INTEGER -- 0-based key/value head
    elements BIGINT -- elements compared: positions that both caches hold x width of the head
    neq BIGINT -- elements whose values differ; +0 equals -0, NaN equals NaN
    finite BIGINT -- elements finite on both sides, over which distances are taken
    max_abs DOUBLE -- largest absolute difference, unit of the cache, over elements finite on both sides
    rms DOUBLE -- root mean square of the difference, unit of the cache
    max_ulps BIGINT -- largest distance, ULPs of the compute dtype
    mean_ulps DOUBLE -- mean distance, ULPs of the compute dtype
    max_row_ulps DOUBLE NULL -- largest difference over the spacing of the compute dtype at the largest finite
    -- magnitude of the reference's row (one key or value of a head); null if undefined
    rms_row_ulps DOUBLE NULL -- root mean square of the difference in those; null likewise
    nonfinite_mismatch BIGINT -- elements with a NaN or infinity on one side only
    first_position INTEGER NULL -- lowest position of the prompt where an element differs, null if none does
    """,
)

KV_POSITION = Table(
    "kv_position",
    """
    -- KV caches by position, all heads together
    pair INTEGER -- index of the pair
    prompt INTEGER -- index of the prompt
    layer INTEGER -- 0-based layer of the model
    kind VARCHAR -- key or value
    position INTEGER -- 0-based token index in its prompt whose key or value it is
    neq BIGINT -- elements whose values differ
    rms DOUBLE -- root mean square of the difference, unit of the cache
    max_ulps BIGINT -- largest distance, ULPs of the compute dtype
    max_row_ulps DOUBLE NULL -- largest difference in row ULPs, as in kv
    """,
)
KINDS = ("key", "value")


@dataclass(frozen=True)
class KvPart:
    """The keys or the values of one layer after one prompt, as far as the cache still holds them.

    bits: [heads, positions, width] of the compute dtype, for the positions of the prompt from `first_position` on (a
    sliding window drops the earliest).
    """

    prompt: int
    layer: int
    kind: str
    first_position: int
    bits: NDArray[np.unsignedinteger]

    @property
    def key(self) -> tuple[int, int, str]:
        return self.prompt, self.layer, self.kind


class KvSpool:
    """Parts of the reference in one file, removed with its directory; memory holds their offsets."""

    def __init__(self, path: Path, fmt: FloatFormat) -> None:
        self._path, self._fmt = path, fmt
        self._places: dict[tuple[int, int, str], tuple[int, tuple[int, ...], int]] = {}
        self._end = 0

    def keep(self, part: KvPart) -> None:
        with self._path.open("ab") as file:
            file.write(np.ascontiguousarray(part.bits).data)
        self._places[part.key] = (self._end, part.bits.shape, part.first_position)
        self._end += part.bits.nbytes

    def reference_of(self, part: KvPart) -> KvPart | None:
        """Return the reference's part of the same prompt, layer and kind, or None if it kept none."""
        if part.key not in self._places:
            return None
        offset, shape, first = self._places[part.key]
        count = int(np.prod(shape))
        bits = np.fromfile(self._path, self._fmt.carrier, count, offset=offset).reshape(shape)
        return KvPart(*part.key, first, bits)


def kv_rows(pair: int, reference: KvPart, variant: KvPart, fmt: FloatFormat) -> tuple[pa.Table, pa.Table]:
    """Figures of one part, over the positions that both caches hold: rows of KV and of KV_POSITION."""
    heads, _, width = reference.bits.shape
    if (variant.bits.shape[0], variant.bits.shape[2]) != (heads, width):
        ours, theirs = (f"{plural(part.bits.shape[0], 'head')} x {part.bits.shape[2]}" for part in (reference, variant))
        raise UsageError(f"layer {variant.layer}: KV caches have different shapes: {ours} vs. {theirs}.")
    first = max(reference.first_position, variant.first_position)
    stop = min(part.first_position + part.bits.shape[1] for part in (reference, variant))
    count = max(0, stop - first)
    a, b = (
        part.bits[:, first - part.first_position :][:, :count].reshape(heads * count, width)
        for part in (reference, variant)
    )
    by_row = differences(a, b, fmt)

    def of(name: str) -> NDArray[Any]:
        """Of every head and position. [heads, positions]"""
        return getattr(by_row, name).reshape(heads, count)

    def figures(axis: int) -> dict[str, object]:
        """Figures that both tables have."""
        return {
            "pair": pair,
            "prompt": variant.prompt,
            "layer": variant.layer,
            "kind": variant.kind,
            "neq": of("neq").sum(axis),
            "rms": np.sqrt(of("sum_squares").sum(axis) / np.maximum(of("finite").sum(axis), 1)),
            "max_ulps": of("max_ulps").max(axis, initial=0),
            "max_row_ulps": null_if_nan(max_row_ulps(of("max_row_ulps"), axis)),
        }

    neq, finite = of("neq"), of("finite").sum(1)
    begins = np.argmax(neq > 0, axis=1) if count else np.zeros(heads, np.int64)
    by_head = figures(1) | {
        "head": np.arange(heads),
        "elements": count * width,
        "finite": finite,
        "max_abs": of("max_abs").max(1, initial=0.0),
        "mean_ulps": of("sum_ulps").sum(1) / np.maximum(finite, 1),
        "rms_row_ulps": null_if_nan(rms_row_ulps(of("row_squares"), of("finite"), 1)),
        "nonfinite_mismatch": of("nonfinite_mismatch").sum(1),
        "first_position": pa.array((first + begins).astype(np.int32), mask=neq.sum(1) == 0),
    }
    by_position = figures(0) | {"position": np.arange(first, first + count)}
    return KV.arrow(**by_head), KV_POSITION.arrow(**by_position)
