"""Kinds of faults and precisions that the thresholds were not chosen on, with harmless twins, and
what the words of a verdict have to be: `python -m benchmarks.verdicts.trial --kinds`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.verdicts.engines import (
    PREFIX,
    CacheChange,
    Change,
    Engine,
    alter,
    attention_of,
    cache_of,
    cached,
    hooking,
    in_16_bits_only,
    layers,
    left_by,
    other_tokens,
    prefill,
    rewriting,
)
from benchmarks.verdicts.mutations import (
    Mutation,
    another_prompt,
    future_key,
    head_of,
    overwriting,
    second_layer,
    single_precision,
)
from benchmarks.verdicts.variations import same, scores_rounded
from core.evidence import MISSING
from core.inference.controls.precisions.catalogue import RoundedOperands
from core.verdict import BUG_SUSPECTED, Verdict

MODELS = ("shipped float32", "shipped bfloat16", "gpt2")
MAX_WORDS = 25
UNDECLARED = "undeclared lower precision"
TOKEN = 173  # in every vocabulary of the trial
START = 21  # inside a block of 8 and of 16


# Undeclared precisions.


def _linear(module, x: Tensor, columns: slice = slice(None)) -> Tensor:
    """The product of a linear map without its bias, over some input features. transformers' Conv1D
    is [in, out].
    """
    weight = module.weight if "Conv1D" in type(module).__name__ else module.weight.T
    return x[..., columns] @ weight[columns]


def _last_maps(model, *, attention: bool = True, mlp: bool = True) -> list[Any]:
    """The last linear maps of attention and MLP, whose inputs tensor parallelism splits."""
    parts = [attention_of(layer) for layer in layers(model) if attention]
    parts += [layer.mlp for layer in layers(model) if mlp]
    return [
        next(getattr(p, name) for name in ("o_proj", "down_proj", "c_proj") if hasattr(p, name))
        for p in parts
    ]


def partial_sums(dtype: torch.dtype) -> Change:
    """Two ranks exchange their partial sums of attention and MLP in this dtype."""

    def change(module, arguments, output):
        half = arguments[0].shape[-1] // 2
        ranks = [
            _linear(module, arguments[0], part).to(dtype)
            for part in (slice(half), slice(half, None))
        ]
        total = (ranks[0] + ranks[1]).to(output.dtype)
        return total if module.bias is None else total + module.bias

    return hooking(_last_maps, change)


def inputs(change: Callable[[Tensor], Tensor], **parts: bool) -> Change:
    """The inputs of one kind of linear map, in every block, are change(inputs)."""

    def hook(module, arguments, _):
        total = _linear(module, change(arguments[0]))
        return total if module.bias is None else total + module.bias

    return hooking(lambda model: _last_maps(model, **parts), hook)


def fp8_by_token(x: Tensor) -> Tensor:
    """float8 (e4m3) with a scale for each token."""
    scale = x.abs().amax(-1, keepdim=True).clamp_min(1e-12) / 448
    return (x / scale).to(torch.float8_e4m3fn).to(x.dtype) * scale


def scaled_and_back(x: Tensor) -> Tensor:
    """Each feature divided by a scale of its own and multiplied by it, as smoothed activations
    are.
    """
    scale = torch.linspace(0.5, 3.0, x.shape[-1], dtype=x.dtype, device=x.device)
    return x / scale * scale


def _truncated(x: Tensor) -> Tensor:
    """To TF32's 10 bits of mantissa, by dropping the others."""
    mantissa, exponent = torch.frexp(x)
    return torch.ldexp((mantissa * 2.0**11).trunc() * 2.0**-11, exponent).to(x.dtype)


class _InParts(TorchDispatchMode):
    """Products are sums of the products of three bfloat16 parts of each operand, as cuBLAS's BF16x9
    has them.
    """

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.split("::")[1]
        if name not in ("linear", "matmul", "mm", "bmm", "addmm"):
            return func(*args, **(kwargs or {}))
        addend, (x, y) = None, args[:2]
        if name == "addmm":
            addend, x, y = args[:3]
        elif name == "linear" and len(args) > 2:
            addend = args[2]
        product = func if name != "addmm" else torch.ops.aten.mm.default
        total = sum(
            product(one, other) for one in _in_three_parts(x) for other in _in_three_parts(y)
        )
        return total if addend is None else total + addend


def _in_three_parts(x: Tensor) -> list[Tensor]:
    """Three bfloat16 numbers whose sum is the float32 one, the smallest first, as cuBLAS's BF16x9
    has it.
    """
    parts = []
    for _ in range(3):
        parts.append(x.bfloat16().to(x.dtype))
        x = x - parts[-1]
    return parts[::-1]


def int8(*dims: int) -> CacheChange:
    """The last 8 tokens are written to the cache in int8, a scale over `dims` of [rows, heads,
    tokens, head_dim].
    """

    def round_trip(values):
        new = values[:, :, -8:]
        scale = new.abs().amax(dims, keepdim=True).clamp_min(1e-8) / 127
        return torch.cat([values[:, :, :-8], (new / scale).round() * scale], dim=2)

    return rewriting(round_trip)


STALE = left_by(another_prompt, PREFIX, -3)
half_a_block_overwritten = overwriting(
    lambda model, ids: cache_of(model, other_tokens(ids)[:START]),
    START,
    slice(-5, None),
)


# One column of the vocabulary, and places inside a block.


def of_column(change: Callable[[Tensor], Tensor]) -> Engine:
    """The logits of one token are change(logits [positions, vocab])."""

    def engine(model, ids):
        logits = prefill(model, ids).clone()
        logits[:, TOKEN] = change(logits)
        return logits

    return engine


def _by_tiles(head, arguments, _: Tensor) -> Tensor:
    """The head multiplies 16 columns at a time."""
    return torch.cat(
        [torch.nn.functional.linear(arguments[0], rows) for rows in head.weight.split(16)],
        -1,
    )


def rows_late(start: int, stop: int | None = None) -> Change:
    """A block's output at some positions is that of the position before."""

    def change(_, __, output):
        late = output.clone()
        late[:, start:stop] = output.roll(1, 1)[:, start:stop]
        return late

    return hooking(second_layer, change)


# The cases.


def _bug(name: str, engine: Engine, position: int | None = None, **options) -> Mutation:
    return Mutation(name, engine, position=position, **options)


def _undeclared(name: str, change: Change, **options) -> Iterator[Mutation]:
    yield Mutation(name, alter(change), is_undeclared=True, **options)
    yield _bug(f"{name}, a future key", alter(change, alter(future_key)), 10, **options)
    yield _bug(f"{name}, a stale slot", alter(change, cached([PREFIX], STALE)), PREFIX, **options)


WIDE: dict[str, Any] = {"applies": single_precision}
NARROW: dict[str, Any] = {"applies": lambda loaded: not single_precision(loaded)}
CHANNELS = int8(-2)
KINDS: tuple[Mutation, ...] = (
    *_undeclared("partial sums in bfloat16", partial_sums(torch.bfloat16), **WIDE),
    Mutation(
        "partial sums in float16",
        alter(partial_sums(torch.float16)),
        is_undeclared=True,
        **WIDE,
    ),
    same("partial sums in float32", alter(partial_sums(torch.float32)), **WIDE),
    *_undeclared("TF32 by truncation", lambda _: RoundedOperands(_truncated), **WIDE),
    same("products of three bfloat16 parts", alter(lambda _: _InParts()), **WIDE),
    Mutation("int8 cache, a scale a channel", cached(8, CHANNELS), is_undeclared=True),
    _bug("int8 cache, a scale a channel, a future key", cached(8, CHANNELS, inner=future_key), 10),
    _bug("int8 cache, a scale a channel, a stale slot", cached(8, CHANNELS, STALE), PREFIX),
    Mutation("int8 cache, a scale a head", cached(8, int8(-1, -2)), is_undeclared=True),
    same("a cache in chunks of 8", cached(8)),
    *_undeclared("fp8 inputs of the MLP's last map", inputs(fp8_by_token, attention=False)),
    Mutation(
        "fp8 inputs of attention's last map",
        alter(inputs(fp8_by_token, mlp=False)),
        is_undeclared=True,
    ),
    same("inputs scaled and back", alter(inputs(scaled_and_back, attention=False)), **WIDE),
    _bug(
        "one column of the head x 1.01",
        of_column(lambda logits: logits[:, TOKEN] * 1.01),
        says=f"{TOKEN}",
    ),
    _bug(
        "one column is its neighbor's",
        of_column(lambda logits: logits[:, TOKEN - 1]),
        says=f"{TOKEN}",
    ),
    same("head by tiles of 16 columns", alter(hooking(head_of, _by_tiles))),
    _bug("rows late from 21 to the block's end", alter(rows_late(START, 32)), START),
    _bug("rows late from 21 on", alter(rows_late(START)), START),
    _bug("rows late from a block's boundary on", alter(rows_late(32)), 32),
    _bug("a block overwritten when half full", half_a_block_overwritten, START),
    same("chunks that end inside a block", cached([START, 37])),
    _bug(
        "rows late from 21 on, in 16 bits only",
        in_16_bits_only(alter(rows_late(START))),
        START,
        **NARROW,
    ),
    _bug("a future key, in 16 bits only", in_16_bits_only(alter(future_key)), 10, **NARROW),
    same("scores rounded, in 16 bits only", in_16_bits_only(scores_rounded), **NARROW),
)


# The words of a verdict.


def problems_of(verdict: Verdict, case: Mutation) -> list[str]:
    """What is wrong with the words of a verdict: too many, something missing, rows against one
    another.
    """
    problems = [f"more than {MAX_WORDS}"] if len(verdict.because.split()) > MAX_WORDS else []
    lines = [verdict.because, *(row.says for row in verdict.evidence)]
    if (
        verdict.name == BUG_SUSPECTED
        and case.is_undeclared
        and not any(UNDECLARED in line for line in lines)
    ):
        problems.append(f"does not say '{UNDECLARED}'")
    if case.says and not re.search(rf"\b{case.says}\b", verdict.because):
        problems.append(f"does not say {case.says}")
    return [*problems, *contradictions(verdict)]


def contradictions(verdict: Verdict) -> Iterator[str]:
    """Places and sizes that one verdict states in two ways."""
    first = verdict.first_place
    match = re.search(r"\bposition (\d+)", verdict.because)
    if match and (first is None or first[1] != int(match[1])):
        yield f"position {match[1]} in the sentence, {first} as first place"
    numbers = re.findall(r"(\d[\d.,]*(?:e[+-]?\d+)?)(?: times|x)\b", verdict.because)
    sizes = [float(number.replace(",", "")) for number in numbers]
    ratio = verdict.noise_ratio
    if (
        sizes
        and ratio is not None
        and not any(abs(size - ratio) <= 0.06 * ratio + 0.006 for size in sizes)
    ):
        yield f"{sizes[0]:g} floors in the sentence, {ratio:.3g} as noise ratio"
    modules = []
    open_modules: set[str] = set()
    all_modules: set[str] = set()
    for row in verdict.evidence:
        place = getattr(row.figures, "first", None) if hasattr(row.figures, "starts") else None
        if verdict.name == BUG_SUSPECTED and place is not None and tuple(place) != first:
            yield f"{tuple(place)} in '{row.check}', {first} as first place"
        if first is not None and re.search(r"no position", row.says, re.IGNORECASE):
            yield f"'no position' in '{row.check}', {first} as first place"
        if verdict.name == BUG_SUSPECTED and "equally far" in row.says:
            yield f"'{row.check}' finds neither side wrong"
        if row.outcome == MISSING:
            # of 16 bits: it sees those far beyond its limit alone, which need not be the first
            open_modules |= {*getattr(row.figures, "modules_beyond", ())}
            continue
        all_modules |= {*getattr(row.figures, "modules_beyond", ())}
        modules += [row.figures.first_module] if hasattr(row.figures, "first_module") else []
        modules += row.figures.modules_beyond[:1] if hasattr(row.figures, "modules_beyond") else []
    named_modules = list(dict.fromkeys(module for module in modules if module))
    if len(named_modules) > 1:
        yield f"first module is {' and '.join(named_modules)}"
    if all_modules and not open_modules <= all_modules:
        alone = " and ".join(sorted(open_modules - all_modules))
        yield f"{alone} is left open by one check alone"
