"""Modifiers: changes to the batch, the model and the machine.

To add one, write a context manager from a `PromptBatch` to the changed one, which restores
everything at exit, and enter it in MODIFIERS and in `grammar.py`.
"""

# ruff: noqa: ARG001, ARG005 - every entry of the registry has one signature, whether or not it
# needs all of it

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from sysconfig import get_path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers.utils import is_flash_attn_2_available, is_flash_attn_3_available

from ...errors import CaptureError
from ...numerics.formats import format_named
from ...path_grammar import Value
from ...text import size
from ..models.dtypes import converted, converted_bytes
from ..models.model import LoadedModel
from .batch import Neighbours, PromptBatch

SDPA = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
_SDPA_ON_CPU = ("flash", "math")
_TF32_CAPABILITY = (8, 0)  # Ampere
Others = Mapping[str, tuple[Value, ...]]
"""The modifiers of a path and their values, for checks of contradictions."""


@dataclass(frozen=True)
class Modifier:
    """A change while the base runs. refuse: why this model cannot do it."""

    change: Callable[..., AbstractContextManager[PromptBatch]]
    refuse: Callable[..., str | None] = lambda loaded, others, *values: None


# The batch.


def _random(loaded: LoadedModel, prompt: Sequence[int], count: int) -> torch.Tensor:
    """Return uniformly random tokens that depend on torch's seed only. [count, positions]"""
    generator = torch.Generator().manual_seed(torch.initial_seed())
    return torch.randint(loaded.token_limit, (count, len(prompt)), generator=generator)


_NEIGHBOURS: dict[str, Neighbours] = {
    "same": lambda loaded, prompt, count: torch.tensor([prompt] * count, dtype=torch.long),
    "random": _random,
}


def _cannot_mask(loaded: LoadedModel, others: Others, side: str, count: int) -> str | None:
    parameters = signature(loaded.model.forward).parameters
    lacking = [name for name in ("attention_mask", "position_ids") if name not in parameters]
    kind = loaded.kind
    is_classifier = loaded.encoder is not None and not loaded.encoder.pooling
    # a decoder reads the last token of the text
    if is_classifier and side == "left" and "past_key_values" not in parameters:
        return f"a {kind} reads its classes from column 0, which is padding then; choose pad:right"
    if lacking:
        return f"a {kind} has no {lacking[0]}, so padding would change its function; leave pad out"
    return None


def _takes_no_positions(loaded: LoadedModel, others: Others, source: str) -> str | None:
    if "position_ids" in signature(loaded.model.forward).parameters:
        return None
    hint = f"so it counts its tokens; leave positions:{source} out"
    return f"a {loaded.kind} has no position_ids, {hint}"


# The model.


@contextmanager
def _attn(batch: PromptBatch, name: str) -> Iterator[PromptBatch]:
    """Use another implementation of attention inside the `with`."""
    model = batch.loaded.model
    original = model.config._attn_implementation
    try:
        model.set_attn_implementation(name)
        if model.config._attn_implementation != name:
            raise CaptureError(
                f"a {type(model).__name__} keeps {original} attention; leave attn:{name} out.",
            )
        yield batch
    finally:
        model.set_attn_implementation(original)


def _attentions(loaded: LoadedModel) -> list[str]:
    """Return the implementations of this model on this device; no flex_attention on a CPU, as too
    slow to serve.
    """
    model: Any = loaded.model
    has_cuda = loaded.is_on_cuda
    has_flash = has_cuda and getattr(model, "_supports_flash_attn", False)
    available = {
        "eager": True,
        "sdpa": getattr(model, "_supports_sdpa", False),
        "flex_attention": has_cuda and getattr(model, "_supports_flex_attn", False),
        "flash_attention_2": has_flash and is_flash_attn_2_available(),
        "flash_attention_3": has_flash and is_flash_attn_3_available(),
    }
    return [name for name, has in available.items() if has]


def _no_such_attention(loaded: LoadedModel, others: Others, name: str) -> str | None:
    exist = _attentions(loaded)
    if name not in exist:
        hint = f"choose {' or '.join(exist)}"
        return f"a {loaded.kind} on {loaded.device} has no attention '{name}'; {hint}"
    if name.startswith("flash_attention") and dtype_of(loaded, others) == "float32":
        return f"{name} takes float16 and bfloat16 only; choose another dtype or attention"
    return None


@contextmanager
def _dtype(batch: PromptBatch, name: str) -> Iterator[PromptBatch]:
    """Round the weights to another dtype and compute in it; restore the original bits."""
    with converted(batch.loaded, format_named(name).name) as loaded:
        yield replace(batch, loaded=loaded)


def _not_representable(loaded: LoadedModel, others: Others, name: str) -> str | None:
    if name == loaded.dtype:
        return None
    if loaded.dtype != "float32":
        return (
            f"{name} logits do not fit a run in {loaded.dtype} bit for bit; choose --dtype float32"
            " for the run"
        )
    needed = converted_bytes(loaded, name)
    free = loaded.free_bytes
    if free is None or needed <= free:
        return None
    hint = f"{loaded.device} has {size(free)} free; leave dtype:{name} out"
    return f"a second copy of the weights in {name} takes {size(needed)}, {hint}"


def dtype_of(loaded: LoadedModel, others: Others) -> str:
    """Return the compute dtype of a path with these modifiers."""
    return str(others.get("dtype", (loaded.dtype,))[0])


# The machine.


def _switching(
    get: Callable[[], Any],
    switch: Callable[[Any], object],
    to: Callable[..., Any],
) -> Callable[..., AbstractContextManager[PromptBatch]]:
    """Return a modifier that sets and restores a process setting. to: the modifier's values -> the
    setting.
    """

    @contextmanager
    def change(batch: PromptBatch, *values: Value) -> Iterator[PromptBatch]:
        original = get()
        try:
            switch(to(*values))
            yield batch
        finally:
            switch(original)

    return change


def _not_on_cpu(loaded: LoadedModel, others: Others, count: int) -> str | None:
    if loaded.device == "cpu":
        return None
    return f"threads apply to a CPU, and the model is on {loaded.device}; leave threads:{count} out"


def _no_tf32(loaded: LoadedModel, others: Others) -> str | None:
    if not loaded.is_on_cuda:
        return f"tf32 needs CUDA, and the model is on {loaded.device}; leave it out"
    if torch.cuda.get_device_capability(loaded.device) < _TF32_CAPABILITY:
        return f"{loaded.device_name} has no TF32; leave it out"
    dtype = dtype_of(loaded, others)
    if dtype != "float32":
        return f"tf32 changes float32 products only, and these are {dtype}; leave it out"
    return None


@contextmanager
def _sdpa(batch: PromptBatch, backend: str) -> Iterator[PromptBatch]:
    """Use one backend of torch's scaled_dot_product_attention only."""
    try:
        with sdpa_kernel(SDPA[backend]):
            yield batch
    except RuntimeError as error:
        if "No available kernel" not in str(error):
            raise
        raise CaptureError(
            f"sdpa:{backend} has no kernel for this model's attention (grouped queries?); choose"
            " sdpa:math.",
        ) from error


def _no_backend(loaded: LoadedModel, others: Others, backend: str) -> str | None:
    if loaded.device == "cpu" and backend not in _SDPA_ON_CPU:
        return f"sdpa on a CPU has no backend '{backend}'; choose {' or '.join(_SDPA_ON_CPU)}"
    attention = others.get("attn", (loaded.model.config._attn_implementation,))[0]
    if attention != "sdpa":
        fix = "choose attn:sdpa" if "sdpa" in _attentions(loaded) else "leave it out"
        return f"sdpa:{backend} needs sdpa attention, and this is {attention}; {fix}"
    is_narrow_only = loaded.device != "cpu" and backend in ("flash", "cudnn")
    if is_narrow_only and dtype_of(loaded, others) == "float32":
        return f"the {backend} backend takes float16 and bfloat16 only; choose efficient or math"
    return None


# Each switch is a pair in torch 2.13: (in reduced precision, with split K).
_REDUCTIONS = ("allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction")


def _reductions() -> list[Any]:
    products: Any = torch.backends.cuda.matmul
    return [(getattr(products, name), getattr(products, f"{name}_split_k")) for name in _REDUCTIONS]


def _reduce(values: Sequence[Any]) -> None:
    """Set whether cuBLAS may reduce parts of a bfloat16 or float16 product in that dtype."""
    for name, value in zip(_REDUCTIONS, values, strict=True):
        setattr(torch.backends.cuda.matmul, name, value)


def _no_reductions(loaded: LoadedModel, others: Others, switch: str) -> str | None:
    if not loaded.is_on_cuda:
        hint = f"and the model is on {loaded.device}; leave reduced:{switch} out"
        return f"reduced-precision reductions need CUDA, {hint}"
    if dtype_of(loaded, others) == "float32":
        return f"reduced:{switch} changes 16-bit products only, and these are float32; leave it out"
    return None


@contextmanager
def _compile(batch: PromptBatch) -> Iterator[PromptBatch]:
    """Compile the model. If torch.compile gives up, which would silently run eagerly, that is an
    error.
    """
    # a second of imports that no other path needs
    import torch._dynamo

    torch.compiler.reset()
    try:
        with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
            yield replace(batch, call=torch.compile(batch.loaded.model))
    finally:
        torch.compiler.reset()


def _no_compiler(loaded: LoadedModel, others: Others) -> str | None:
    if loaded.is_on_cuda:
        from torch.utils._triton import has_triton

        if has_triton():
            return None
        return "torch.compile needs triton, which is not installed; leave compile out"
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        return (
            "torch.compile needs a C++ compiler, which is not installed; install g++ or leave"
            " compile out"
        )
    if not (Path(get_path("include")) / "Python.h").is_file():
        return (
            "torch.compile needs Python's C headers, which are not installed; install them or leave"
            " compile out"
        )
    return None


MODIFIERS: dict[str, Modifier] = {
    # N rows, 1..N-1 of other sequences of the same length: same work, different shapes
    "batch": Modifier(lambda batch, rows: nullcontext(replace(batch, rows=rows))),
    "row": Modifier(lambda batch, row: nullcontext(replace(batch, row=row))),
    "neighbours": Modifier(
        lambda batch, kind: nullcontext(replace(batch, neighbours=_NEIGHBOURS[kind])),
    ),
    # N masked tokens before or after every row, the prompt's own positions unchanged
    "pad": Modifier(
        lambda batch, side, count: nullcontext(replace(batch, **{f"{side}_padding": count})),
        _cannot_mask,
    ),
    # what generate() passes; without it a forward with a cache counts its cached tokens
    "positions": Modifier(
        lambda batch, source: nullcontext(replace(batch, gives_positions=True)),
        _takes_no_positions,
    ),
    "attn": Modifier(_attn, _no_such_attention),
    "dtype": Modifier(_dtype, _not_representable),
    # CPU kernels share their work among N threads, and some split their reductions accordingly
    "threads": Modifier(
        _switching(torch.get_num_threads, torch.set_num_threads, lambda count: count),
        _not_on_cpu,
    ),
    # operands of float32 products rounded to 10 bits of mantissa
    "tf32": Modifier(
        _switching(
            torch.get_float32_matmul_precision,
            torch.set_float32_matmul_precision,
            lambda: "high",
        ),
        _no_tf32,
    ),
    "sdpa": Modifier(_sdpa, _no_backend),
    "reduced": Modifier(
        _switching(_reductions, _reduce, lambda switch: [switch == "on"] * len(_REDUCTIONS)),
        _no_reductions,
    ),
    "compile": Modifier(_compile, _no_compiler),
}
