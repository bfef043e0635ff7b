"""Precisions that a side may have been lowered to: an 8-bit cache, weights of 4 bits, TF32 products, a head in
bfloat16.

Each is put on the model itself, whose forward then computes what such a side computes and nothing else. A side that
agrees with one of them up to that one's own rounding floor differs by its precision alone; what it differs by beyond
that is a fault on top of it. Size and evenness would not do: an output scaled by 1.01 is as even as an 8-bit cache, and
as large.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
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

CACHE, WEIGHTS, LAYERS, PRODUCTS, ACTIVATIONS, HEAD, LOGITS = PARTS = (
    "KV cache",
    "weights",
    "weights of linear layers",
    "products",
    "activation functions",
    "head",
    "logits",
)
_OPERANDS = frozenset({"linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "_grouped_mm", "grouped_mm_fallback"})
_PLAIN = "prefill"
_TINY = 1e-8  # least scale: a group of zeros stays zeros


@dataclass(frozen=True)
class Stored:
    """Rounding of a cache that was read unrounded at first: `first` tokens in the first forward, then `chunk` a
    forward.

    What a forward writes is rounded after it; is_read_back: from the second forward on before it is read, as engines do
    that write before they attend.
    """

    first: int
    chunk: int
    is_read_back: bool = False


@dataclass(frozen=True)
class Precision:
    """One part of the model kept or computed in one format, and with `beside` another part in another one too.

    part: of PARTS; format: in words ('int8, a scale for each token and head'); rounding: of keys and values [rows,
    heads, slots, dim], of weights [out, in], of the operands of products, of what activation functions take and give,
    of logits [positions, vocab]; stored: of a cache, None where it is rounded before anything reads it; dtype: that the
    logits come in, of a head or of logits; path: of the model's own forward.
    """

    part: str
    format: str
    rounding: Rounding
    stored: Stored | None = None
    dtype: torch.dtype | None = None
    path: str = _PLAIN
    beside: Precision | None = None

    @property
    def together(self) -> tuple[Precision, ...]:
        """This one and what is beside it, each alone, in the order of PARTS, in which they are lowered."""
        rest = () if self.beside is None else self.beside.together
        return tuple(sorted((replace(self, beside=None), *rest), key=lambda each: PARTS.index(each.part)))

    @property
    def name(self) -> str:
        """`KV cache in int8, a scale for each token and head, and its head in bfloat16`."""
        return ", and its ".join(
            f"{each.part} in {each.format}" + (", rounded after it was first read" if each.stored is not None else "")
            for each in self.together
        )

    @property
    def weights_in_float64(self) -> Precision:
        """These weights of layers, but rounded in float64: in the middle of two values, where those of 16 bits
        often lie, the arithmetic of the scale decides which of them it is.
        """
        rounding = self.rounding
        return replace(self, rounding=lambda values: rounding(values.double()).to(values.dtype))

    @property
    def logits_dtype(self) -> torch.dtype | None:
        """Dtype that the logits come in, where one of the parts is a head or logits."""
        return next((each.dtype for each in self.together if each.dtype is not None), None)

    @property
    def side(self) -> RunnableSide:
        """The model's own forward in this precision."""
        return RunnableSide(self.name, self._open)

    @contextmanager
    def _open(self, loaded: LoadedModel, trace: ModuleTrace | None) -> Iterator[Run]:
        parts = self.together
        cache = next((each for each in parts if each.part == CACHE), None)
        path = next((each.path for each in parts if each.path != _PLAIN), _PLAIN)
        with ExitStack() as stack:
            for each in parts:
                stack.enter_context(each._lowered(loaded))
            run: Run | None = None
            if cache is None or path != _PLAIN:
                run = stack.enter_context(side_of(path).open(loaded, trace))
            if cache is not None:
                run = partial(cache._with_cache, loaded)
            assert run is not None
            last = parts[-1]
            yield _rounded(run, last.rounding) if last.part == LOGITS else run

    @contextmanager
    def _lowered(self, loaded: LoadedModel) -> Iterator[None]:
        if self.part in (WEIGHTS, LAYERS):
            with _weights_rounded(loaded.model, _in_float32(self.rounding), is_all=self.part == WEIGHTS):
                yield
        elif self.part == PRODUCTS:
            with _RoundedOperands(self.rounding):
                yield
        elif self.part == ACTIVATIONS:
            with _activations_rounded(loaded.model, self.rounding):
                yield
        elif self.part == HEAD:
            with _head_in(loaded.model, self.dtype or loaded.torch_dtype):
                yield
        else:
            yield

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


def _rounded(run: Run, rounding: Rounding) -> Run:
    """A run whose logits are rounded."""
    return lambda ids, emit: run(ids, lambda start, logits: emit(start, rounding(logits)))


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
def _weights_rounded(model: torch.nn.Module, rounding: Rounding, *, is_all: bool) -> Iterator[None]:
    """Every parameter, or the matrices of linear layers but the head's; the original bits are put back."""
    originals: list[tuple[torch.nn.Parameter, torch.Tensor]] = []
    try:
        with torch.inference_mode(False), torch.no_grad():
            for module, parameter in _parameters(model, is_all=is_all):
                originals.append((parameter, parameter.data))
                across = isinstance(module, Conv1D) and parameter.ndim == 2  # [in, out]
                rounded = rounding(parameter.data.T).T if across else rounding(parameter.data)
                parameter.data = rounded.to(parameter.dtype).contiguous()
        yield
    finally:
        with torch.inference_mode(False), torch.no_grad():
            for parameter, data in originals:
                parameter.data = data


def _parameters(model: torch.nn.Module, *, is_all: bool) -> list[tuple[torch.nn.Module, torch.nn.Parameter]]:
    """Every parameter with its module, or the matrices of linear layers but the head's; tied ones once."""
    head = getattr(model, "get_output_embeddings", lambda: None)()
    found: dict[int, tuple[torch.nn.Module, torch.nn.Parameter]] = {}
    for module in model.modules():
        is_layer = isinstance(module, torch.nn.Linear | Conv1D) and module is not head
        for parameter in module._parameters.values():
            if (
                parameter is not None
                and parameter.is_floating_point()
                and (is_all or (is_layer and parameter.ndim == 2))
            ):
                found.setdefault(id(parameter), (module, parameter))
    return list(found.values())


def weights_are_of_16_bits(model: torch.nn.Module) -> bool:
    """Return whether the matrices of linear layers hold values of bfloat16 alone, or of float16, in whatever dtype."""
    matrices = [parameter.data for _, parameter in _parameters(model, is_all=False)]
    return any(all(torch.equal(each, rounding(each)) for each in matrices) for rounding in _SIXTEEN_BITS)


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
    """Rounding to the nearest value of a dtype that torch has, and back. Of 8 bits the largest one stands for what is
    beyond it, as in engines.
    """
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


def scaled(dtype: torch.dtype, largest: float, group: int | None) -> Rounding:
    """Rounding to a dtype with the scale at which a group's largest magnitude is that dtype's `largest`. group: of the
    last axis, 0 all of it, None the whole tensor
    """

    def rounding(values: torch.Tensor) -> torch.Tensor:
        scale = _magnitude(values, group).clamp_min(_TINY) / largest
        return _in_groups(values, group, lambda parts: (parts / scale).to(dtype).to(values.dtype) * scale)

    return rounding


def integers(bits: int, group: int | None) -> Rounding:
    """Rounding to integers of so many bits, symmetric about zero, with the scale at which a group's largest magnitude
    is the largest of them.
    """
    largest = 2 ** (bits - 1) - 1

    def rounding(values: torch.Tensor) -> torch.Tensor:
        scale = _magnitude(values, group).clamp_min(_TINY) / largest
        return _in_groups(values, group, lambda parts: (parts / scale).round() * scale)

    return rounding


def integers_with_zero(bits: int, group: int) -> Rounding:
    """Rounding to integers of so many bits between a group's least and largest value, zero among them: a scale and a
    zero point, as AWQ and GPTQ store.
    """
    steps = 2**bits - 1

    def rounding(values: torch.Tensor) -> torch.Tensor:
        def of(parts: torch.Tensor) -> torch.Tensor:
            least, most = parts.amin(-1, keepdim=True).clamp_max(0), parts.amax(-1, keepdim=True).clamp_min(0)
            scale = (most - least).clamp_min(_TINY) / steps
            zero = (-least / scale).round()
            return ((parts / scale).round().add(zero).clamp(0, steps) - zero) * scale

        return _in_groups(values, group, of)

    return rounding


def q8_0(values: torch.Tensor) -> torch.Tensor:
    """GGUF's Q8_0: groups of 32, their scale in float16."""

    def of(parts: torch.Tensor) -> torch.Tensor:
        scale = parts.abs().amax(-1, keepdim=True) / 127
        inverse = torch.where(scale > 0, 1 / scale, 0.0)
        return _half_away(parts * inverse) * scale.half().to(parts.dtype)

    return _in_groups(values, 32, of)


def q4_0(values: torch.Tensor) -> torch.Tensor:
    """GGUF's Q4_0: groups of 32 from -8 to 7, the value of largest magnitude at -8, its scale in float16."""

    def of(parts: torch.Tensor) -> torch.Tensor:
        most = parts.gather(-1, parts.abs().argmax(-1, keepdim=True))
        scale = most / -8
        inverse = torch.where(scale != 0, 1 / scale, 0.0)
        return ((parts * inverse + 8.5).floor().clamp(0, 15) - 8) * scale.half().to(parts.dtype)

    return _in_groups(values, 32, of)


# The 16 levels of NF4: Dettmers et al., QLoRA (2023), appendix E.
NF4_LEVELS = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)


def nf4(values: torch.Tensor) -> torch.Tensor:
    """NF4: groups of 64 along the rows of the whole matrix, scaled to their largest magnitude, to the nearest of 16
    levels.
    """
    levels = torch.tensor(NF4_LEVELS, dtype=values.dtype, device=values.device)
    middles = (levels[1:] + levels[:-1]) / 2

    def of(parts: torch.Tensor) -> torch.Tensor:
        scale = parts.abs().amax(-1, keepdim=True).clamp_min(_TINY)
        return levels[torch.bucketize((parts / scale).contiguous(), middles)] * scale

    return _in_groups(values.reshape(1, -1), 64, of).reshape(values.shape)


def _half_away(values: torch.Tensor) -> torch.Tensor:
    """C's roundf: halves go away from zero."""
    return values.abs().add(0.5).floor() * values.sign()


def _magnitude(values: torch.Tensor, group: int | None) -> torch.Tensor:
    if group is None:
        return values.abs().amax()
    return _grouped(values, group).abs().amax(-1, keepdim=True)


def _in_groups(values: torch.Tensor, group: int | None, of: Rounding) -> torch.Tensor:
    if group is None:
        return of(values)
    length = values.shape[-1]
    return of(_grouped(values, group)).reshape(*values.shape[:-1], -1)[..., :length]


def _grouped(values: torch.Tensor, group: int) -> torch.Tensor:
    """[..., n] -> [..., groups, group]; a last group that is not full is filled with zeros."""
    length = values.shape[-1]
    size = group or length
    missing = -length % size
    if missing:
        values = torch.nn.functional.pad(values, (0, missing))
    return values.reshape(*values.shape[:-1], -1, size)


# The catalogue

_SIXTEEN_BITS = (through(torch.bfloat16), through(torch.float16))
_E4M3, _E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
_IN_CACHE: tuple[tuple[str, Rounding], ...] = (
    ("float8_e4m3fn", through(_E4M3)),
    ("float8_e5m2", through(_E5M2)),
    ("float16", through(torch.float16)),
    ("bfloat16", through(torch.bfloat16)),
    ("int8, a scale for each token and head", integers(8, 0)),
    ("float8_e4m3fn, a scale for each token and head", scaled(_E4M3, 448, 0)),
    ("GGUF's Q8_0", q8_0),
    ("GGUF's Q4_0", q4_0),
    ("int4, a scale for each token and head", integers(4, 0)),
)
_IN_LAYERS: tuple[tuple[str, Rounding], ...] = (
    ("float8_e4m3fn", through(_E4M3)),
    ("float8_e4m3fn, a scale for each matrix", scaled(_E4M3, 448, None)),
    ("float8_e4m3fn, a scale for each output", scaled(_E4M3, 448, 0)),
    ("int8, a scale for each matrix", integers(8, None)),
    ("int8, a scale for each output", integers(8, 0)),
    ("NF4", nf4),
    *((f"int4, groups of {group}", integers(4, group)) for group in (32, 64, 128)),
    *((f"int4 with a zero point, groups of {group}", integers_with_zero(4, group)) for group in (32, 64, 128)),
    ("GGUF's Q8_0", q8_0),
    ("GGUF's Q4_0", q4_0),
)
_NARROW = (("bfloat16", torch.bfloat16), ("float16", torch.float16))


def catalogue(loaded: LoadedModel) -> tuple[Precision, ...]:
    """The precisions that engines offer, for this model. Position 0 shows each: its own value, weights and products are
    of that precision already.
    """
    has_head = isinstance(getattr(loaded.model.get_output_embeddings(), "weight", None), torch.Tensor)
    parts = (LOGITS, HEAD) if has_head else (LOGITS,)
    found = [Precision(part, name, through(dtype), dtype=dtype) for name, dtype in _NARROW for part in parts]
    found += [Precision(WEIGHTS, name, through(dtype)) for name, dtype in _NARROW]
    for name, rounding in (("TF32", mantissa(10)), *((name, through(dtype)) for name, dtype in _NARROW)):
        found += [
            Precision(PRODUCTS, name, rounding),
            Precision(PRODUCTS, f"{name}, attention's too", rounding, path="prefill+attn:eager"),
        ]
    if without_cache(loaded, None) is None:
        found += [Precision(CACHE, name, rounding) for name, rounding in _IN_CACHE]
    found += [Precision(LAYERS, name, rounding) for name, rounding in _IN_LAYERS]
    return tuple(found)


def ways_to_store(first: int) -> tuple[Stored, ...]:
    """Ways in which the tokens after the first `first` ones may come in forwards: one at a time, as many again each
    time, all in one, or written before they are read.
    """
    ways = (Stored(first, 1), Stored(first, first), Stored(first, 1 << 30), Stored(first, 1 << 30, is_read_back=True))
    return tuple(dict.fromkeys(ways))
