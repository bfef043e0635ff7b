"""The operations that `ops` probes. A row is one element of the batch axis; its result depends on it and on inputs that
all rows share.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from string import Formatter

import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers.pytorch_utils import Conv1D

from ..paths.modifiers import SDPA


@dataclass(frozen=True)
class Operation:
    """A torch operation. words: a size in words; rows, shared: axes of its inputs; modules: of a model."""

    name: str
    words: str
    rows: tuple[str, ...]
    shared: tuple[str, ...]
    run: Callable[..., torch.Tensor]
    sizes: tuple[tuple[int, ...], ...]
    backend: str = ""
    is_on_cpu: bool = True
    modules: str = ""

    def size(self, numbers: tuple[int, ...]) -> str:
        return self.words.format(**self._axes(numbers))

    def shapes(self, numbers: tuple[int, ...]) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
        """Return the shapes of a row's inputs and of the shared ones."""
        axes = self._axes(numbers)
        rows, shared = (
            [tuple(axes[axis] for axis in one.split()) for one in many] for many in (self.rows, self.shared)
        )
        return rows, shared

    def _axes(self, numbers: tuple[int, ...]) -> dict[str, int]:
        names = [name for _, name, _, _ in Formatter().parse(self.words) if name]
        return dict(zip(names, numbers, strict=True))


def _places(x: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (zeros [rows, places], an index into them for each value of a row)."""
    return x.new_zeros(len(x), len(places)), torch.arange(x.shape[1], device=x.device) * 7919 % len(places)


def _scatter_add(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    zeros, index = _places(x, places)
    return zeros.scatter_add(1, index.expand_as(x), x)


def _index_add(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    zeros, index = _places(x, places)
    return zeros.index_add(1, index, x)


def _attention(backend: SDPBackend) -> Callable[..., torch.Tensor]:
    def run(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel([backend]):
            return functional.scaled_dot_product_attention(query, key, value, is_causal=query.shape[2] > 1)

    return run


_TO, _WIDE, _HEADS, _INTO = "{k} to {n}", "width {w}", "{h} heads, q {q}, kv {k}, width {d}", "{w} values into {p}"
_SQUARES = ((256, 256), (1024, 1024))
_WIDTHS = ((256,), (4096,), (32_768,))
_SUMS = ((256,), (4096,), (65_536,), (1_048_576,))
_NORMS = ((256,), (1024,), (4096,))
_BMM = ((1, 64, 256), (16, 64, 64), (64, 256, 64))
_HEAD_SIZES = ((8, 64, 64, 64), (8, 1, 512, 64), (8, 1, 2048, 64))
_ADDED = ((4096, 64), (16_384, 64))

OPERATIONS = (
    Operation("mm", _TO, ("k",), ("k n",), torch.mm, (*_SQUARES, (4096, 4096))),
    Operation("addmm", _TO, ("k",), ("k n", "n"), lambda x, w, b: torch.addmm(b, x, w), (*_SQUARES, (4096, 1024))),
    Operation("linear", _TO, ("k",), ("n k",), functional.linear, (*_SQUARES, (1024, 4096))),
    Operation("bmm", "{m} x {k} by {n}", ("m k", "k n"), (), torch.bmm, _BMM),
    Operation("sum", _WIDE, ("w",), (), lambda x: x.sum(-1, keepdim=True), _SUMS),
    Operation("mean", _WIDE, ("w",), (), lambda x: x.mean(-1, keepdim=True), _SUMS[:3]),
    Operation("softmax", _WIDE, ("w",), (), lambda x: x.softmax(-1), _WIDTHS),
    Operation("log_softmax", _WIDE, ("w",), (), lambda x: x.log_softmax(-1), _WIDTHS),
    Operation("rms_norm", _WIDE, ("w",), ("w",), lambda x, g: functional.rms_norm(x, x.shape[1:], g), _NORMS),
    Operation(
        "layer_norm", _WIDE, ("w",), ("w", "w"), lambda x, g, b: functional.layer_norm(x, x.shape[1:], g, b), _NORMS
    ),
    *(
        Operation(
            "sdpa",
            _HEADS,
            ("h q d", "h k d", "h k d"),
            (),
            _attention(SDPA[name]),
            _HEAD_SIZES,
            backend=name,
            is_on_cpu=name in ("math", "flash"),
        )
        for name in ("math", "flash", "efficient", "cudnn")
    ),
    Operation("cumsum", _WIDE, ("w",), (), lambda x: x.cumsum(-1), _SUMS[1:]),
    Operation("scatter_add", _INTO, ("w",), ("p",), _scatter_add, _ADDED),
    Operation("index_add", _INTO, ("w",), ("p",), _index_add, _ADDED),
    Operation("topk", "20 of {w}", ("w",), (), lambda x: x.topk(20, dim=-1).values, _WIDTHS[1:]),
)


def linear_operations(model: nn.Module) -> tuple[Operation, ...]:
    """Return `linear` at every (in, out) of a model, with the names of its modules."""
    modules: dict[tuple[int, int, bool], dict[str, None]] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            shape = (module.in_features, module.out_features, module.bias is not None)
        elif isinstance(module, Conv1D):  # GPT-2's linear map
            shape = (module.nx, module.nf, True)
        else:
            continue
        modules.setdefault(shape, {})[name.rsplit(".", 1)[-1]] = None
    operations = []
    for (into, out, has_bias), names in modules.items():
        name, shared = ("linear with bias", ("n k", "n")) if has_bias else ("linear", ("n k",))
        sizes = ((into, out),)
        operations.append(Operation(name, _TO, ("k",), shared, functional.linear, sizes, modules=", ".join(names)))
    return tuple(operations)
