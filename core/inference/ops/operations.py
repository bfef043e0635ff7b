"""The operations that are probed: one entry each, with its sizes and how it is called.

A row is one element of the batch axis; its result depends on that row and on what all rows share. Sizes are those of
language models from small to large, and the two of the public claims (mm at 4096 x 4096, and sums of a million).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from .inputs import Draws, Inputs, Outline

Make = Callable[..., Inputs]
Run = Callable[[Inputs], torch.Tensor]
INPUT_BYTES = 128 << 20  # of float32 rows in one probe; larger batches of long rows are left out


@dataclass(frozen=True)
class Operation:
    """One torch operation. axes: what the numbers of a size mean, in words with a {} for each.

    make(source, rows, *size): float32 inputs; run: its result [rows, ...], a float tensor; exact: the same in float64
    where `run` cannot; backend: of attention; devices: where it exists; has_rows: False where the result sums over the
    batch, so that only repeats are asked of it; batches: sizes beyond the common ones, by size; quick: how many of its
    sizes a quick probe takes.
    """

    name: str
    axes: str
    sizes: tuple[tuple[int, ...], ...]
    make: Make
    run: Run
    exact: Run | None = None
    backend: str = ""
    devices: tuple[str, ...] = ("cpu", "cuda")
    has_rows: bool = True
    batches: dict[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict)
    quick: int = 1
    modules: str = ""

    def size_words(self, size: tuple[int, ...]) -> str:
        return self.axes.format(*size)

    def inputs(self, seed: int, batch: int, size: tuple[int, ...]) -> Inputs:
        """float32 on the CPU. Backends of one operation get the same: their results may be compared."""
        return self.make(Draws(seed, self.name, *map(str, size)), batch, *size)


def _matrix(source: Draws, rows: int, into: int, out: int) -> Inputs:
    """x [rows, in], and w [in, out]"""
    shared = source.values(into, out)
    return Inputs((source.values(rows, into),), (shared,))


def _linear(source: Draws, rows: int, into: int, out: int) -> Inputs:
    """x [rows, in], weight [out, in] as nn.Linear keeps it"""
    shared = source.values(out, into)
    return Inputs((source.values(rows, into),), (shared,))


def _biased(source: Draws, rows: int, into: int, out: int) -> Inputs:
    """x [rows, in], w [in, out], bias [out]"""
    shared = (source.values(into, out), source.values(out))
    return Inputs((source.values(rows, into),), shared)


def _biased_linear(source: Draws, rows: int, into: int, out: int) -> Inputs:
    """x [rows, in], weight [out, in], bias [out]"""
    shared = (source.values(out, into), source.values(out))
    return Inputs((source.values(rows, into),), shared)


def _matrices(source: Draws, rows: int, high: int, inner: int, wide: int) -> Inputs:
    """a [rows, m, k], b [rows, k, n]: a row is a pair of matrices. Row by row, so that row 0 is the same at every
    batch.
    """
    made = [(source.values(high, inner), source.values(inner, wide)) for _ in range(rows)]
    return Inputs((torch.stack([a for a, _ in made]), torch.stack([b for _, b in made])))


def _vectors(source: Draws, rows: int, width: int) -> Inputs:
    """x [rows, width]"""
    return Inputs((source.values(rows, width),))


def _scaled(source: Draws, rows: int, width: int) -> Inputs:
    """x [rows, width], weight and bias [width]"""
    shared = (source.values(width), source.values(width))
    return Inputs((source.values(rows, width),), shared)


def _heads(source: Draws, rows: int, heads: int, queries: int, keys: int, width: int) -> Inputs:
    """q [rows, heads, queries, width], k and v [rows, heads, keys, width]"""
    shapes = ((heads, queries, width), (heads, keys, width), (heads, keys, width))
    made = [tuple(source.values(*shape) for shape in shapes) for _ in range(rows)]
    return Inputs(tuple(torch.stack([row[part] for row in made]) for part in range(3)))


def _scattered(source: Draws, rows: int, width: int, places: int) -> Inputs:
    """values [rows, width], an index into `places` for each, zeros [rows, places]: about width/places values meet in
    each place.
    """
    index = source.indices(places, width)
    return Inputs((source.values(rows, width), index.expand(rows, -1).contiguous(), torch.zeros(rows, places)))


def _indexed(source: Draws, rows: int, width: int, places: int) -> Inputs:
    """values [rows, width], one index into `places` for all rows, zeros [rows, places]."""
    index = source.indices(places, width)
    return Inputs((source.values(rows, width), torch.zeros(rows, places)), (index,))


def _gradients(source: Draws, rows: int, tokens: int, places: int, width: int) -> Inputs:
    """Gradients [rows, tokens, width] and token ids [rows, tokens] of a vocabulary of `places`, in zeros [places]"""
    made = [(source.values(tokens, width), source.indices(places, tokens)) for _ in range(rows)]
    return Inputs((torch.stack([a for a, _ in made]), torch.stack([b for _, b in made])), (torch.zeros(places),))


def _topk(inputs: Inputs) -> torch.Tensor:
    """The 20 largest values and where they stand, beside each other: of equal values either may come first. [rows,
    60]
    """
    values, indices = inputs.rows[0].topk(20, dim=-1)
    # An index as two numbers of at most 256, which every dtype here holds exactly.
    return torch.cat([values, (indices % 128).to(values.dtype), (indices // 128).to(values.dtype)], dim=-1)


def _attention(inputs: Inputs) -> torch.Tensor:
    query, key, value = inputs.rows
    return functional.scaled_dot_product_attention(query, key, value, is_causal=query.shape[2] > 1)


def _by(backend: SDPBackend) -> Run:
    def run(inputs: Inputs) -> torch.Tensor:
        only: AbstractContextManager = sdpa_kernel([backend])
        with only:
            return _attention(inputs)

    return run


def linear_operation(into: int, out: int, has_bias: bool, modules: str) -> Operation:
    """`linear` at a size of a model's own."""
    return Operation(
        "linear with bias" if has_bias else "linear",
        "{} to {}",
        ((into, out),),
        _biased_linear if has_bias else _linear,
        _apply_linear,
        modules=modules,
    )


def _apply_linear(inputs: Inputs) -> torch.Tensor:
    return functional.linear(inputs.rows[0], *inputs.shared)


_TO = "{} to {}"
_WIDE = "width {}"
_HEADS = "{} heads, q {}, kv {}, width {}"
_ATTENTION_SIZES = ((8, 64, 64, 64), (8, 1, 512, 64), (8, 1, 2048, 64))
_INTO = "{} values into {}"

OPERATIONS = (
    Operation(
        "mm",
        _TO,
        ((256, 256), (1024, 1024), (4096, 4096)),
        _matrix,
        lambda given: torch.mm(given.rows[0], given.shared[0]),
        batches={(4096, 4096): (512, 1024, 2048)},
        quick=2,
    ),
    Operation(
        "addmm",
        _TO,
        ((256, 256), (1024, 1024), (4096, 1024)),
        _biased,
        lambda given: torch.addmm(given.shared[1], given.rows[0], given.shared[0]),
        quick=2,
    ),
    Operation("linear", _TO, ((256, 256), (1024, 1024), (1024, 4096)), _linear, _apply_linear, quick=2),
    Operation(
        "bmm",
        "{} x {} by {}",
        ((1, 64, 256), (16, 64, 64), (64, 256, 64)),
        _matrices,
        lambda given: torch.bmm(given.rows[0], given.rows[1]),
        quick=2,
    ),
    Operation(
        "sum",
        _WIDE,
        ((256,), (4096,), (65_536,), (1_048_576,)),
        _vectors,
        lambda given: given.rows[0].sum(-1, keepdim=True),
        quick=2,
    ),
    Operation(
        "mean",
        _WIDE,
        ((256,), (4096,), (65_536,)),
        _vectors,
        lambda given: given.rows[0].mean(-1, keepdim=True),
        quick=2,
    ),
    Operation(
        "softmax", _WIDE, ((256,), (4096,), (32_768,)), _vectors, lambda given: given.rows[0].softmax(-1), quick=2
    ),
    Operation(
        "log_softmax",
        _WIDE,
        ((256,), (4096,), (32_768,)),
        _vectors,
        lambda given: given.rows[0].log_softmax(-1),
        quick=2,
    ),
    Operation(
        "rms_norm",
        _WIDE,
        ((256,), (1024,), (4096,)),
        _scaled,
        lambda given: functional.rms_norm(given.rows[0], given.rows[0].shape[1:], given.shared[0]),
        quick=2,
    ),
    Operation(
        "layer_norm",
        _WIDE,
        ((256,), (1024,), (4096,)),
        _scaled,
        lambda given: functional.layer_norm(given.rows[0], given.rows[0].shape[1:], given.shared[0], given.shared[1]),
        quick=2,
    ),
    *(
        Operation(
            "sdpa",
            _HEADS,
            _ATTENTION_SIZES,
            _heads,
            _by(backend),
            exact=_by(SDPBackend.MATH),
            backend=name,
            devices=devices,
            quick=2,
        )
        for name, backend, devices in (
            ("math", SDPBackend.MATH, ("cpu", "cuda")),
            ("flash", SDPBackend.FLASH_ATTENTION, ("cpu", "cuda")),
            ("efficient", SDPBackend.EFFICIENT_ATTENTION, ("cuda",)),
            ("cudnn", SDPBackend.CUDNN_ATTENTION, ("cuda",)),
        )
    ),
    Operation("cumsum", _WIDE, ((4096,), (65_536,), (1_048_576,)), _vectors, lambda given: given.rows[0].cumsum(-1)),
    Operation(
        "scatter_add",
        _INTO,
        ((4096, 64), (16_384, 64)),
        _scattered,
        lambda given: given.rows[2].scatter_add(1, given.rows[1], given.rows[0]),
    ),
    Operation(
        "index_add",
        _INTO,
        ((4096, 64), (16_384, 64)),
        _indexed,
        lambda given: given.rows[1].index_add(1, given.shared[0], given.rows[0]),
    ),
    Operation(
        "embedding backward",
        "{} tokens of {}, width {}",
        ((256, 64, 64), (1024, 64, 256)),
        _gradients,
        lambda given: torch.ops.aten.embedding_dense_backward(*given.rows, len(given.shared[0]), -1, False),
        has_rows=False,
    ),
    Operation("topk", "20 of {}", ((4096,), (32_768,)), _vectors, _topk),
)
"""In the order of a report."""


def common_batches(is_quick: bool) -> tuple[int, ...]:
    """Batch sizes at which every operation is asked: around the steps at which kernels are known to change."""
    return (1, 2, 3, 4, 5, 7, 8, 16, 17, 32, 33, 64, *(() if is_quick else (65, 128, 256)))


def batches_of(operation: Operation, size: tuple[int, ...], is_quick: bool) -> tuple[int, ...]:
    """The batch sizes of one probe, 1 first: the common ones as far as the inputs stay small, and the operation's
    own.
    """
    if not operation.has_rows:
        return (1, 4, 16)
    row_bytes = sum(tensor.nbytes for tensor in operation.make(Outline(), 1, *size).rows)
    asked = (*common_batches(is_quick), *(() if is_quick else operation.batches.get(size, ())))
    return tuple(batch for batch in asked if batch == 1 or batch * row_bytes <= INPUT_BYTES)
