"""Precisions that a side may have been lowered to: a short list of what engines offer, put on the model itself.

A side that agrees with one up to its own rounding floor differs by its precision alone; more is a fault on top. Size
and evenness would not do: an output scaled by 1.01 is as even as an 8-bit cache, and as large.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DynamicCache
from transformers.pytorch_utils import Conv1D

from ...models.model import LoadedModel
from ...paths.bases import without_cache
from ...paths.batch import Emit, Run
from ...paths.engines import RunnableSide, side_of
from ...paths.hooks import ModuleTrace

Rounding = Callable[[torch.Tensor], torch.Tensor]
"""Values -> the nearest ones that a format holds; same shape and dtype."""

CACHE, LAYERS, PRODUCTS = "KV cache", "weights of linear layers", "products"
ACTIVATIONS, HEAD, LOGITS = "activation functions", "head", "logits"
_OPERANDS = frozenset({"linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "_grouped_mm", "grouped_mm_fallback"})
_TINY = 1e-8  # least scale: a group of zeros stays zeros


@dataclass(frozen=True)
class Stored:
    """A cache rounded after it was read: `first` tokens, then `chunk`s; is_read_back: these before they are read."""

    first: int
    chunk: int
    is_read_back: bool = False


@dataclass(frozen=True)
class Precision:
    """One part of the model stored or computed in one format.

    format: in words; rounding: of keys and values [rows, heads, slots, dim], weights [out, in], operands, activations
    or logits [positions, vocab]; stored: of a cache, None if it is rounded before anything reads it; dtype: of a head
    or logits; path: of the model's own forward.
    """

    part: str
    format: str
    rounding: Rounding
    stored: Stored | None = None
    dtype: torch.dtype | None = None
    path: str = "prefill"

    @property
    def name(self) -> str:
        """`KV cache in int8, a scale for each token and head`."""
        return f"{self.part} in {self.format}" + (
            ", rounded after it was first read" if self.stored is not None else ""
        )

    @property
    def weights_in_float64(self) -> Precision:
        """The same rounded in float64: arithmetic decides what lies in the middle of two values."""
        rounding = self.rounding
        return replace(self, rounding=lambda values: rounding(values.double()).to(values.dtype))

    @property
    def side(self) -> RunnableSide:
        """The model's own forward in this precision."""
        return RunnableSide(self.name, self._open)

    @contextmanager
    def _open(self, loaded: LoadedModel, trace: ModuleTrace | None) -> Iterator[Run]:
        if self.part == CACHE:
            yield partial(self._with_cache, loaded)
            return
        lower: dict[str, Callable[[], AbstractContextManager[Any]]] = {
            LAYERS: lambda: _weights_rounded(loaded.model, _in_float32(self.rounding)),
            PRODUCTS: lambda: _RoundedOperands(self.rounding),
            ACTIVATIONS: lambda: _activations_rounded(loaded.model, self.rounding),
            HEAD: lambda: _head_in(loaded.model, self.dtype or loaded.torch_dtype),
        }
        with lower.get(self.part, nullcontext)(), side_of(self.path).open(loaded, trace) as run:
            if self.part == LOGITS:
                yield lambda ids, emit: run(ids, lambda start, logits: emit(start, self.rounding(logits)))
            else:
                yield run

    def _with_cache(self, loaded: LoadedModel, ids: Sequence[int], emit: Emit) -> None:
        model: Any = loaded.model
        cache: Any = DynamicCache(config=model.config)
        stored = self.stored or Stored(len(ids), len(ids))
        rounding = _in_float32(self.rounding)
        if self.stored is None:
            _round_as_written(cache, rounding)
        tokens = torch.tensor([list(ids)], device=loaded.device)
        start = 0
        for stop in [*range(stored.first, len(ids), stored.chunk), len(ids)]:
            emit(start, model(input_ids=tokens[:, start:stop], past_key_values=cache, use_cache=True).logits[0])
            if self.stored is not None and (start == 0 or not stored.is_read_back):
                _round_newest(cache, stop - start, rounding)
            if start == 0 and stored.is_read_back:
                _round_as_written(cache, rounding)
            start = stop


def _in_float32(rounding: Rounding) -> Rounding:
    """Scales are computed in float32 at least, as engines do whatever they compute in."""
    return lambda values: rounding(values.float()).to(values.dtype) if values.dtype.itemsize == 2 else rounding(values)


def _round_as_written(cache: Any, rounding: Rounding) -> None:
    plain = cache.update

    def update(keys: torch.Tensor, values: torch.Tensor, *rest: Any, **named: Any) -> Any:
        return plain(rounding(keys), rounding(values), *rest, **named)

    cache.update = update


def _round_newest(cache: Any, tokens: int, rounding: Rounding) -> None:
    for layer in cache.layers:
        for tensor in (getattr(layer, "keys", None), getattr(layer, "values", None)):
            if isinstance(tensor, torch.Tensor) and tensor.ndim == 4:
                tensor[:, :, -tokens:] = rounding(tensor[:, :, -tokens:])


@contextmanager
def _weights_rounded(model: torch.nn.Module, rounding: Rounding) -> Iterator[None]:
    """The matrices of linear layers but the head's; the original bits are put back."""
    originals: list[tuple[torch.nn.Parameter, torch.Tensor]] = []
    try:
        with torch.inference_mode(False), torch.no_grad():
            for module, parameter in _matrices(model):
                originals.append((parameter, parameter.data))
                across = isinstance(module, Conv1D)  # [in, out]
                rounded = rounding(parameter.data.T).T if across else rounding(parameter.data)
                parameter.data = rounded.to(parameter.dtype).contiguous()
        yield
    finally:
        with torch.inference_mode(False), torch.no_grad():
            for parameter, data in originals:
                parameter.data = data


def _matrices(model: torch.nn.Module) -> list[tuple[torch.nn.Module, torch.nn.Parameter]]:
    """Matrices of linear layers but the head's, with their modules; tied ones once."""
    head = getattr(model, "get_output_embeddings", lambda: None)()
    matrices: dict[int, tuple[torch.nn.Module, torch.nn.Parameter]] = {}
    for module in model.modules():
        if isinstance(module, torch.nn.Linear | Conv1D) and module is not head:
            weight = module._parameters["weight"]
            if weight is not None and weight.is_floating_point():
                matrices.setdefault(id(weight), (module, weight))
    return list(matrices.values())


def weights_are_of_16_bits(model: torch.nn.Module) -> bool:
    """Return whether the matrices of linear layers hold values of bfloat16 alone, or of float16, in whatever dtype."""
    matrices = [parameter.data for _, parameter in _matrices(model)]
    return any(
        all(torch.equal(each, rounding(each)) for each in matrices) for rounding in map(through, _NARROW.values())
    )


@contextmanager
def _activations_rounded(model: torch.nn.Module, rounding: Rounding) -> Iterator[None]:
    """Activation functions take and give rounded values, as those do that are looked up in a table."""
    handles = []
    for module in model.modules():
        if type(module).__module__ in ("transformers.activations", "torch.nn.modules.activation"):
            handles.append(module.register_forward_pre_hook(lambda _, given: (rounding(given[0]), *given[1:])))
            handles.append(module.register_forward_hook(lambda _, __, output: rounding(output)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _head_in(model: Any, dtype: torch.dtype) -> Iterator[None]:
    """The last product is computed in another dtype, by that dtype's own kernel."""
    head = model.get_output_embeddings()

    def change(module: Any, given: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
        bias = getattr(module, "bias", None)
        product = torch.nn.functional.linear(
            given[0].to(dtype), module.weight.to(dtype), None if bias is None else bias.to(dtype)
        )
        return product.to(output.dtype)

    hook = head.register_forward_hook(change)
    try:
        yield
    finally:
        hook.remove()


class _RoundedOperands(TorchDispatchMode):
    """Mode in which both operands of every product are rounded before it."""

    def __init__(self, rounding: Rounding) -> None:
        super().__init__()
        self._rounding = rounding

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name.split("::")[1] in _OPERANDS:
            args = [
                self._rounding(x) if isinstance(x, torch.Tensor) and x.is_floating_point() and x.ndim > 1 else x
                for x in args
            ]
        return func(*args, **(kwargs or {}))


# Formats


def through(dtype: torch.dtype) -> Rounding:
    """Round to the nearest value of a torch dtype; of 8 bits the largest one stands for what is beyond it."""
    if dtype.itemsize > 1:
        return lambda values: values.to(dtype).to(values.dtype)
    largest = torch.finfo(dtype).max
    return lambda values: values.clamp(-largest, largest).to(dtype).to(values.dtype)


def mantissa(bits: int) -> Rounding:
    """Rounding to `bits` bits after the leading one, half to even; the exponent's range stays. 10 are those of TF32."""

    def rounding(values: torch.Tensor) -> torch.Tensor:
        fraction, exponent = torch.frexp(values)
        return torch.ldexp((fraction * 2.0 ** (bits + 1)).round() * 2.0 ** -(bits + 1), exponent).to(values.dtype)

    return rounding


def integers(bits: int, group: int) -> Rounding:
    """Round to symmetric integers, scaled to a group's largest magnitude. group: of the last axis, 0 all of it"""
    largest = 2 ** (bits - 1) - 1

    def rounding(values: torch.Tensor) -> torch.Tensor:
        parts = values.reshape(*values.shape[:-1], -1, group or values.shape[-1])
        scale = parts.abs().amax(-1, keepdim=True).clamp_min(_TINY) / largest
        return ((parts / scale).round() * scale).reshape(values.shape)

    return rounding


def gguf(kind: str) -> Rounding:
    """Rounding to one of GGUF's formats (Q8_0, Q4_0), groups of 32 of the last axis."""

    def rounding(values: torch.Tensor) -> torch.Tensor:
        from gguf import GGMLQuantizationType, quants

        stored = quants.quantize(values.float().cpu().numpy(), GGMLQuantizationType[kind])
        return torch.from_numpy(quants.dequantize(stored, GGMLQuantizationType[kind])).to(values)

    return rounding


# The 16 levels of NF4: Dettmers et al., QLoRA (2023), appendix E.
_NF4 = (
    "-1 -0.6961928009986877 -0.5250730514526367 -0.39491748809814453 -0.28444138169288635 -0.18477343022823334"
    " -0.09105003625154495 0 0.07958029955625534 0.16093020141124725 0.24611230194568634 0.33791524171829224"
    " 0.44070982933044434 0.5626170039176941 0.7229568362236023 1"
)
NF4_LEVELS = tuple(map(float, _NF4.split()))


def nf4(values: torch.Tensor) -> torch.Tensor:
    """NF4: groups of 64 along the rows, scaled to their largest magnitude, to the nearest of 16 levels."""
    levels = torch.tensor(NF4_LEVELS, dtype=values.dtype, device=values.device)
    middles = (levels[1:] + levels[:-1]) / 2
    flat = torch.nn.functional.pad(values.reshape(-1), (0, -values.numel() % 64)).reshape(-1, 64)
    scale = flat.abs().amax(-1, keepdim=True).clamp_min(_TINY)
    rounded = levels[torch.bucketize((flat / scale).contiguous(), middles)] * scale
    return rounded.reshape(-1)[: values.numel()].reshape(values.shape)


# The catalogue

_NARROW = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_INT8 = integers(8, 0)
_TF32 = mantissa(10)


def catalogue(loaded: LoadedModel) -> tuple[Precision, ...]:
    """The precisions that are tried on this model. Position 0 shows each but a cache."""
    has_head = isinstance(getattr(loaded.model.get_output_embeddings(), "weight", None), torch.Tensor)
    parts = (LOGITS, HEAD) if has_head else (LOGITS,)
    precisions = [
        Precision(part, name, through(dtype), dtype=dtype) for name, dtype in _NARROW.items() for part in parts
    ]
    precisions += [
        Precision(PRODUCTS, "TF32", _TF32),
        Precision(PRODUCTS, "TF32, attention's too", _TF32, path="prefill+attn:eager"),
        Precision(LAYERS, "int8, a scale for each output", _INT8),
        Precision(LAYERS, "NF4", nf4),
        Precision(LAYERS, "GGUF's Q8_0", gguf("Q8_0")),
        Precision(LAYERS, "GGUF's Q4_0", gguf("Q4_0")),
    ]
    if without_cache(loaded, None) is None:
        precisions += [
            Precision(CACHE, "float8_e4m3fn", through(torch.float8_e4m3fn)),
            Precision(CACHE, "float8_e5m2", through(torch.float8_e5m2)),
            Precision(CACHE, "int8, a scale for each token and head", _INT8),
        ]
    return tuple(precisions)


def ways_to_store(first: int) -> tuple[Stored, ...]:
    """Later tokens come one at a time, as many again, all in one, or are written before they are read."""
    ways = (Stored(first, 1), Stored(first, first), Stored(first, 1 << 30), Stored(first, 1 << 30, is_read_back=True))
    return tuple(dict.fromkeys(ways))
