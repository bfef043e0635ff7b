"""Key/value caches while a run is written: the reference's wait on disk, and every variant's are
compared with them.

Only figures are stored: complete caches of a long prompt are as large as the model's own memory for
it, and pages show at which places and by how much they differ.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ...errors import UsageError
from ...numerics.arrays import Bits
from ...numerics.formats import FLOAT32, FloatFormat
from ...text import plural
from ..file.table import Table
from .differences import DECLARED, columns_of, figures_of, first_position

KV = Table(
    "kv",
    """
    -- KV caches and running states of a pair after the whole prompt, by layer, kind and head; no
    -- rows if a side keeps none
    pair INTEGER -- index of the pair
    prompt INTEGER -- index of the prompt
    layer INTEGER -- 0-based layer of the model
    kind VARCHAR -- key, value, latent, rotary key, indexer key, or a running state by its name in
    -- transformers: conv state, recurrent state, linear cache; one that the model keeps in float32
    -- counts ULPs of float32
    head INTEGER -- 0-based key/value head, or head of the state
    elements BIGINT -- elements compared: positions that both caches hold x width of the head
    """
    + DECLARED.format(of="cache", dtype="the compute dtype", row="one key or value of a head")
    + """
    first_position INTEGER NULL -- lowest position of the prompt where an element differs, null if
    -- none does
    first_element INTEGER NULL -- index in the head of the first element that differs there; null
    -- likewise
    """,
)

KV_POSITION = Table(
    "kv_position",
    """
    -- KV caches by position, all heads together
    pair INTEGER -- index of the pair
    prompt INTEGER -- index of the prompt
    layer INTEGER -- 0-based layer of the model
    kind VARCHAR -- key, value, latent, rotary key or indexer key
    position INTEGER -- 0-based token index in its prompt whose key or value it is
    neq BIGINT -- elements whose values differ
    rms DOUBLE -- root mean square of the difference, unit of the cache
    max_ulps BIGINT -- largest distance, ULPs of the compute dtype
    max_row_ulps DOUBLE NULL -- largest difference in row ULPs, as in kv
    """,
)
# kinds that have an entry for each position
BY_POSITION = ("key", "value", "latent", "rotary key", "indexer key")


@dataclass(frozen=True)
class KvPart:
    """The keys, the values or a state of one layer after one prompt, as far as the cache still
    holds them.

    bits: [heads, positions, width] of the compute dtype, for the positions of the prompt from
    `first_position` on (a sliding window drops the earliest, a state is that of the last one). A
    state may be in float32.
    """

    prompt: int
    layer: int
    kind: str
    first_position: int
    bits: Bits

    @property
    def key(self) -> tuple[int, int, str]:
        return self.prompt, self.layer, self.kind


def kv_rows(
    pair: int,
    reference: KvPart,
    variant: KvPart,
    fmt: FloatFormat,
) -> tuple[pa.Table, pa.Table]:
    """Figures of one part, over the positions that both caches hold: rows of KV and of
    KV_POSITION. fmt: of the run
    """
    if variant.bits.dtype.itemsize == 4:
        fmt = FLOAT32
    heads, _, width = reference.bits.shape
    other_heads, _, other_width = variant.bits.shape
    if (heads, width) != (other_heads, other_width):
        raise UsageError(
            f"layer {variant.layer}: KV caches have different shapes: {plural(heads, 'head')} x"
            f" {width} vs. {plural(other_heads, 'head')} x {other_width}.",
        )
    # a sliding window drops the earliest positions, on either side at another place
    first = max(reference.first_position, variant.first_position)
    stop = min(part.first_position + part.bits.shape[1] for part in (reference, variant))
    positions = np.arange(first, max(first, stop))
    a, b = (
        part.bits[:, first - part.first_position :][:, : len(positions)].reshape(-1, width)
        for part in (reference, variant)
    )
    figures = figures_of(a, b, fmt).reshape(heads, len(positions))
    first_element = pa.nulls(heads, pa.int32())
    is_other = figures["neq"] > 0
    if is_other.any():
        # of each head's first differing position
        rows = np.arange(heads) * len(positions) + is_other.argmax(axis=1)
        by_element = figures_of(a[rows].reshape(-1, 1), b[rows].reshape(-1, 1), fmt)
        places = by_element["neq"].reshape(heads, -1).argmax(axis=1)
        first_element = pa.array(places.astype(np.int32), mask=~is_other.any(axis=1))
    keys = {"pair": pair, "prompt": variant.prompt, "layer": variant.layer, "kind": variant.kind}
    by_head = KV.arrow(
        **keys,
        head=np.arange(heads),
        elements=len(positions) * width,
        **columns_of(KV, figures, axis=1),
        first_position=first_position(figures, positions),
        first_element=first_element,
    )
    by_position = columns_of(KV_POSITION, figures, axis=0)
    return by_head, KV_POSITION.arrow(**keys, position=positions, **by_position)
