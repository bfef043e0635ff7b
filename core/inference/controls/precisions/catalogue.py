"""Lower precisions that a side may be in, put on the model itself: declared ones, and a short list
of usual ones.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DynamicCache
from transformers.pytorch_utils import Conv1D

from ....capture_request import PARTS, part_and_format
from ...models.dtypes import data_replaced
from ...models.model import LoadedModel
from ...paths.batch import Emit, Run
from ...paths.caches import keeps_keys
from ...paths.engines import RunnableSide, side_of
from ...paths.hooks import ModuleTrace
from ..reordering import FACTORS

Rounding = Callable[[Tensor], Tensor]
"""Values -> the nearest ones that a format has; same shape and dtype."""

CACHE, LAYERS, PRODUCTS = "KV cache", "weights of linear layers", "products"
HEAD, LOGITS, ACTIVATIONS = "head", "logits", "activation functions"
PART_OF = dict(zip(PARTS, (CACHE, LAYERS, PRODUCTS, HEAD, LOGITS, ACTIVATIONS), strict=True))

# where activation functions are defined
_FUNCTIONS = ("transformers.activations", "torch.nn.modules.activation")
_OWN_TF32 = "prefill+tf32"
# the least scale, so that a group of zeros stays zeros
_TINY = 1e-8


@dataclass(frozen=True)
class Stored:
    """A cache rounded after the forward that wrote it: of `first` tokens, then `chunk` each."""

    first: int
    chunk: int


@dataclass(frozen=True)
class Precision:
    """One part of the model stored or computed in one format.

    format: its name; rounding: of keys and values [rows, heads, slots, dim], weights [out, in],
    operands, activations or logits [positions, vocab]; storage: of a cache, None if it is rounded
    before anything reads it; dtype: of a head or logits; path: of the model's own forward.
    """

    part: str
    format: str
    rounding: Rounding
    storage: Stored | None = None
    dtype: torch.dtype | None = None
    path: str = "prefill"

    @property
    def name(self) -> str:
        """`KV cache in int8`."""
        name = f"{self.part} in {self.format}"
        if self.storage is not None:
            name += " (rounded after its first read)"
        if self.path != "prefill":
            name += ", attention's too"
        return name

    @property
    def side(self) -> RunnableSide:
        """The model's own forward in this precision."""
        return RunnableSide(self.name, self._open)

    @property
    def walk(self) -> RunnableSide:
        """The same forwards without rounding."""
        if self.part == CACHE:
            return replace(self, rounding=lambda values: values).side
        return side_of("prefill" if self.path == _OWN_TF32 else self.path)

    @contextmanager
    def _open(self, loaded: LoadedModel, trace: ModuleTrace | None) -> Iterator[Run]:
        model: Any = loaded.model
        with ExitStack() as stack:
            if self.part == LAYERS:
                rounding = _in(torch.float32, self.rounding)
                stack.enter_context(_round_weights(model, rounding))
            elif self.part == PRODUCTS:
                stack.enter_context(RoundedOperands(self.rounding))
            elif self.part == HEAD:
                head = model.get_output_embeddings()
                stack.enter_context(head.register_forward_hook(self._head))
            elif self.part == ACTIVATIONS:
                for module in model.modules():
                    if type(module).__module__ in _FUNCTIONS:
                        stack.enter_context(module.register_forward_hook(self._function))
            run = stack.enter_context(side_of(self.path).open(loaded, trace))
            if self.part == CACHE:
                yield partial(self._with_cache, loaded)
            elif self.part == LOGITS:
                yield lambda ids, emit: run(
                    ids,
                    lambda start, logits: emit(start, self.rounding(logits)),
                )
            else:
                yield run

    def _with_cache(
        self,
        loaded: LoadedModel,
        ids: Sequence[int],
        emit: Emit,
    ) -> None:
        model: Any = loaded.model
        cache: Any = DynamicCache(config=model.config)
        tokens = torch.tensor([list(ids)], device=loaded.device)
        rounding = _in(torch.float32, self.rounding)
        stops = [len(ids)]
        store = cache.update
        start = 0

        def update(keys: Tensor, values: Tensor, *rest: Any, **keywords: Any) -> Any:
            return store(rounding(keys), rounding(values), *rest, **keywords)

        if self.storage is None:
            cache.update = update
        else:
            stops = [*range(self.storage.first, len(ids), self.storage.chunk), *stops]
        for stop in stops:
            piece = tokens[:, start:stop]
            emit(start, model(input_ids=piece, past_key_values=cache, use_cache=True).logits[0])
            for layer in cache.layers if self.storage else ():
                for name in ("keys", "values"):
                    tensor = getattr(layer, name, None)
                    if isinstance(tensor, Tensor) and tensor.ndim == 4:
                        tensor[:, :, start - stop :] = rounding(tensor[:, :, start - stop :])
            start = stop

    def _function(
        self,
        module: Any,
        inputs: Any,
        _: Tensor,
    ) -> Tensor:
        """Compute a function of rounded inputs and round it, as one that is looked up in a
        table.
        """
        return self.rounding(module.forward(self.rounding(inputs[0])))

    def _head(
        self,
        module: Any,
        inputs: Any,
        output: Tensor,
    ) -> Tensor:
        """Compute the last product in another dtype, by that dtype's own kernel, or of rounded
        weights.
        """
        dtype = self.dtype or output.dtype
        weight = module.weight if self.dtype else self.rounding(module.weight)
        bias = getattr(module, "bias", None)
        bias = None if bias is None else bias.to(dtype)
        product = nn.functional.linear(inputs[0].to(dtype), weight.to(dtype), bias)
        return product.to(output.dtype)


def _in(dtype: torch.dtype, rounding: Rounding) -> Rounding:
    """Round in this dtype at least, as engines do whatever they compute in."""

    def in_wider(values: Tensor) -> Tensor:
        wider = torch.promote_types(values.dtype, dtype)
        return rounding(values.to(wider)).to(values.dtype)

    return in_wider


def _round_weights(model: Any, rounding: Rounding) -> AbstractContextManager[None]:
    """Round the matrices of linear layers but the head's, tied ones once; the original bits are put
    back.
    """
    head = model.get_output_embeddings()
    weights = {}
    for module in model.modules():
        is_linear = isinstance(module, nn.Linear | Conv1D) and module is not head
        if is_linear and module.weight.is_floating_point():
            weights[module.weight] = isinstance(module, Conv1D)

    def round_weight(weight: Tensor) -> Tensor:
        # of Conv1D [in, out]
        matrix = rounding(weight.data.T).T if weights[weight] else rounding(weight.data)
        return matrix.to(weight.dtype).contiguous()

    return data_replaced(weights, round_weight)


class RoundedOperands(TorchDispatchMode):
    """Mode in which both operands of every product are rounded before it."""

    def __init__(self, rounding: Rounding) -> None:
        super().__init__()
        self._rounding = rounding

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        # a vector has no product of tensor cores
        if func._schema.name in FACTORS.keys() - {"aten::mv"}:
            args = map(self._round, args)
        return func(*args, **(kwargs or {}))

    def _round(self, value: Any) -> Any:
        is_tensor = isinstance(value, Tensor) and value.is_floating_point()
        return self._rounding(value) if is_tensor and value.ndim > 1 else value


# Formats


def cast(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Round to the nearest value of a torch dtype; of 8 bits the largest one stands for what is
    beyond it.
    """
    largest = torch.finfo(dtype).max if dtype.itemsize == 1 else torch.inf
    return values.clamp(-largest, largest).to(dtype).to(values.dtype)


def tf32(values: Tensor, *, truncates: bool = False) -> Tensor:
    """Round to the 10 bits after the leading one that TF32 has, half to even; truncates: toward
    zero.
    """
    fraction, exponent = torch.frexp(values)
    steps = (fraction * 2.0**11).trunc() if truncates else (fraction * 2.0**11).round()
    return torch.ldexp(steps * 2.0**-11, exponent).to(values.dtype)


def int8(values: Tensor, axis: int = -1) -> Tensor:
    """Round to symmetric integers, scaled to the largest magnitude along an axis."""
    largest = values.abs().amax(axis, keepdim=True).clamp_min(_TINY)
    # CUDA multiplies by the reciprocal of a plain number
    scale = largest / values.new_full((), 127)
    return (values / scale).round() * scale


def gguf(values: Tensor, kind: str) -> Tensor:
    """Round to one of GGUF's formats (Q8_0, Q4_0), groups of 32 of the last axis."""
    from gguf import GGMLQuantizationType, quants

    blocks = quants.quantize(values.float().cpu().numpy(), GGMLQuantizationType[kind])
    return torch.from_numpy(quants.dequantize(blocks, GGMLQuantizationType[kind])).to(values)


def q4_0(values: Tensor) -> Tensor:
    """Round to GGUF's Q4_0 by a division; `gguf` multiplies by a reciprocal, which decides the
    middles otherwise.
    """
    groups = values.reshape(-1, 32)
    step = groups.gather(1, groups.abs().argmax(1, keepdim=True)) / -8
    steps = (groups / torch.where(step == 0, 1.0, step) + 8.5).floor().clamp(0, 15) - 8
    return (steps * step.half()).reshape(values.shape)


# The 16 levels of NF4: Dettmers et al., QLoRA (2023), appendix E.
_NF4 = (
    "-1 -0.6961928009986877 -0.5250730514526367 -0.39491748809814453 -0.28444138169288635"
    " -0.18477343022823334 -0.09105003625154495 0 0.07958029955625534 0.16093020141124725"
    " 0.24611230194568634 0.33791524171829224 0.44070982933044434 0.5626170039176941"
    " 0.7229568362236023 1"
)
NF4_LEVELS = tuple(map(float, _NF4.split()))


def nf4(values: Tensor) -> Tensor:
    """NF4: groups of 64 along the rows, scaled to their largest magnitude, to the nearest of 16
    levels.
    """
    levels = torch.tensor(NF4_LEVELS, dtype=values.dtype, device=values.device)
    middles = (levels[1:] + levels[:-1]) / 2
    flat = nn.functional.pad(values.reshape(-1), (0, -values.numel() % 64)).reshape(-1, 64)
    scale = flat.abs().amax(-1, keepdim=True).clamp_min(_TINY)
    nearest = levels[torch.bucketize((flat / scale).contiguous(), middles)] * scale
    return nearest.reshape(-1)[: values.numel()].reshape(values.shape)


# Declared ones, and those that are tried undeclared

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
# of several kinds, for arithmetic decides what lies in the middle
FORMATS: dict[str, tuple[Rounding, ...]] = {
    **{name: (partial(cast, dtype=dtype),) for name, dtype in _DTYPES.items()},
    "fp8_e4m3": (partial(cast, dtype=torch.float8_e4m3fn),),
    "fp8_e5m2": (partial(cast, dtype=torch.float8_e5m2),),
    "int8": (int8, partial(int8, axis=-2), _in(torch.float64, int8)),
    "tf32": (tf32, partial(tf32, truncates=True)),
    "nf4": (nf4, _in(torch.float64, nf4)),
    "q8_0": (partial(gguf, kind="Q8_0"),),
    "q4_0": (partial(gguf, kind="Q4_0"), q4_0),
}
_USUAL = (
    "logits=bf16",
    "logits=fp16",
    "head=bf16",
    "head=fp16",
    "products=tf32",
    "weights=int8",
    "weights=nf4",
    "weights=q8_0",
    "weights=q4_0",
    "kv=fp8_e4m3",
    "kv=fp8_e5m2",
    "kv=int8",
)
# llama.cpp has float16 by default; a model in 16 bits has its own
_CACHES_OF_16_BITS = ("kv=fp16", "kv=bf16")


def parse_precisions(texts: Sequence[str]) -> tuple[Precision, ...]:
    """Return what each PART=FORMAT stands for, once for each kind of rounding; UsageError if one is
    unknown.
    """
    every: list[Precision] = []
    for text in texts:
        part, name = part_and_format(text)
        paths = ("prefill", "prefill+attn:eager") if part == "products" else ("prefill",)
        every += [
            Precision(
                PART_OF[part],
                name,
                rounding,
                dtype=_DTYPES.get(name),
                path=path,
            )
            for path, rounding in product(paths, FORMATS[name])
        ]
        # the GPU's own tf32, since its library chooses which kernels round
        if name == "tf32":
            every.append(Precision(PRODUCTS, name, lambda values: values, path=_OWN_TF32))
    return tuple(every)


def catalogue(loaded: LoadedModel) -> tuple[Precision, ...]:
    """Return the precisions that are tried on this model undeclared.

    Position 0 shows each but a cache.
    """
    missing = set()
    if getattr(loaded.model.get_output_embeddings(), "weight", None) is None:
        missing.add(HEAD)
    if not keeps_keys(loaded):
        missing.add(CACHE)
    texts = _USUAL if loaded.torch_dtype.itemsize == 2 else _USUAL + _CACHES_OF_16_BITS
    every = [each for each in parse_precisions(texts) if each.part not in missing]
    return tuple(each for each in every if each.path != _OWN_TF32 or loaded.device != "cpu")
