"""Nine operations of language models: a reference, sound kernels that sum in another order, faults.

All are written once for every dtype. A kernel computes in float32 and rounds its result (`kernel`);
an eager function rounds after each operation, as the reference does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

Function = Callable[..., Tensor]
SIZE = 128  # rows and columns
_WIDTH, _HEADS, _EXPERTS, _BLOCK = 64, 4, 8, 32


@dataclass(frozen=True)
class Operation:
    """An operation. inputs: makes them from a generator; sound: other kernels by name; faults: by
    name, at full size.
    """

    inputs: Callable[[torch.Generator], Sequence[Tensor]]
    reference: Function
    sound: Mapping[str, Function]
    faults: Mapping[str, Function]


def cast(inputs: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    return [each.to(dtype) if each.is_floating_point() else each for each in inputs]


def kernel(function: Function) -> Function:
    """Return a function that computes in float32 and rounds once."""

    def run(*inputs):
        return function(*cast(inputs, torch.float32)).to(inputs[0].dtype)

    return run


def _normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator)


def _sum(rows: Tensor) -> Tensor:
    return rows.sum(-1, keepdim=True)


# matrix product


def _matmul_inputs(generator: torch.Generator) -> Sequence[Tensor]:
    weight = _normal(generator, SIZE, SIZE) / math.sqrt(SIZE)
    return _normal(generator, SIZE, SIZE), weight


def _split_k(a: Tensor, b: Tensor) -> Tensor:
    parts = zip(a.split(_BLOCK, 1), b.split(_BLOCK, 0), strict=True)
    return torch.stack([left @ right for left, right in parts]).sum(0)


def _stale_column(a: Tensor, b: Tensor) -> Tensor:
    stale = b.clone()
    stale[:, 3] = b[:, 4]
    return a @ stale


# softmax


def _online_softmax(x: Tensor) -> Tensor:
    largest = torch.full_like(x[..., :1], -math.inf)
    total = torch.zeros_like(largest)
    for block in x.split(_BLOCK, -1):
        before, largest = largest, torch.maximum(largest, block.amax(-1, keepdim=True))
        total = total * (before - largest).exp() + (block - largest).exp().sum(-1, keepdim=True)
    return (x - largest).exp() / total


def _softmax_over(total: Function, power: Function = torch.exp) -> Function:
    """Return a softmax whose denominators are total(powers)."""

    def run(x):
        powers = power(x - x.amax(-1, keepdim=True))
        return powers / total(powers)

    return run


def _reciprocal_softmax(x: Tensor) -> Tensor:
    powers = (x - x.amax(-1, keepdim=True)).exp()
    return powers * _sum(powers.flip(-1)).reciprocal()


# RMSNorm


def _norm_inputs(generator: torch.Generator) -> Sequence[Tensor]:
    rows = _normal(generator, SIZE, SIZE) * torch.exp(_normal(generator, SIZE, 1))
    return rows, 1 + 0.1 * _normal(generator, SIZE)


def _inverse_rms(x: Tensor, epsilon: float = 1e-6) -> Tensor:
    return torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon)


def _rms_norm(x: Tensor, weight: Tensor, epsilon: float = 1e-6) -> Tensor:
    return weight * (x * _inverse_rms(x, epsilon))


def _norm_in_blocks(x: Tensor, weight: Tensor) -> Tensor:
    parts = torch.stack([block.pow(2).mean(-1, keepdim=True) for block in x.split(_BLOCK, -1)])
    return x / torch.sqrt(parts.mean(0) + 1e-6) * weight


# RoPE


def _table(x: Tensor, base: float, first: int) -> tuple[Tensor, Tensor]:
    exponents = torch.arange(0, _WIDTH, 2, dtype=torch.float64) / _WIDTH
    positions = torch.arange(first, first + x.shape[-2], dtype=torch.float64)
    angles = torch.outer(positions, base**-exponents)
    return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def _rope(x: Tensor, base: float = 1e4, first: int = 0) -> Tensor:
    cosines, sines = (torch.cat([each, each], -1) for each in _table(x, base, first))
    half = _WIDTH // 2
    rotated = torch.cat([-x[..., half:], x[..., :half]], -1)
    return x * cosines + rotated * sines


def _rope_by_halves(x: Tensor) -> Tensor:
    cosines, sines = _table(x, 1e4, 0)
    left, right = x.chunk(2, -1)
    return torch.cat([left * cosines - right * sines, right * cosines + left * sines], -1)


def _rope_fused(x: Tensor) -> Tensor:
    cosines, sines = _table(x, 1e4, 0)
    left, right = x.chunk(2, -1)
    first = torch.addcmul(left * cosines, -right, sines)
    return torch.cat([first, torch.addcmul(right * cosines, left, sines)], -1)


def _rope_without_a_pair(x: Tensor) -> Tensor:
    rotated = _rope(x).clone()
    rotated[..., 5] = x[..., 5]
    return rotated


# attention: full, in a window, with a sink


def _mask(length: int, window: int | None, future: int) -> Tensor:
    distances = torch.arange(length)[:, None] - torch.arange(length)
    mask = distances >= -future
    return mask if window is None else mask & (distances < window)


def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    window: int | None = None,
    sink: float | None = None,
    scale: float = 0.125,
    future: int = 0,
) -> Tensor:
    scores = (q @ k.transpose(-1, -2)) * scale
    scores = scores.masked_fill(~_mask(q.shape[-2], window, future), -math.inf)
    if sink is None:
        return torch.softmax(scores, -1) @ v
    extended = torch.cat([scores, torch.full_like(scores[..., :1], sink)], -1)
    return torch.softmax(extended, -1)[..., :-1] @ v


def _online_attention(
    q: Tensor, k: Tensor, v: Tensor, window: int | None = None, sink: float | None = None
) -> Tensor:
    mask = _mask(q.shape[-2], window, 0)
    # in float32, and of a sink as one more key
    largest = torch.full_like(q[..., :1], -6e4 if sink is None else sink)
    total = torch.full_like(largest, 0.0 if sink is None else 1.0)
    result = torch.zeros_like(v)
    for start in range(0, k.shape[-2], _BLOCK):
        block = slice(start, start + _BLOCK)
        seen = mask[:, block]
        scores = (q @ k[..., block, :].transpose(-1, -2)) * 0.125
        before = largest
        largest = torch.maximum(before, scores.masked_fill(~seen, -6e4).amax(-1, keepdim=True))
        powers = torch.where(seen, (scores - largest).exp(), 0.0)
        shrink = (before - largest).exp()
        total = total * shrink + powers.sum(-1, keepdim=True)
        result = result * shrink + powers @ v[..., block, :]
    return result / total


def _scaled_queries(q: Tensor, k: Tensor, v: Tensor, **o) -> Tensor:
    return _attention(q * 0.125, k, v, scale=1.0, **o)


def _by_head(q: Tensor, k: Tensor, v: Tensor, **o) -> Tensor:
    heads = zip(q.split(1), k.split(1), v.split(1), strict=True)
    return torch.cat([_attention(*head, **o) for head in heads])


def _stale_block(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    stale = k.clone()
    stale[:, 32:48] = k[:, 48:64]
    return _attention(q, stale, v)


def _attention_with(faults: Mapping[str, Function], **options) -> Operation:
    sound = {
        "online": partial(_online_attention, **options),
        "scaled queries": partial(_scaled_queries, **options),
        "head by head": partial(_by_head, **options),
    }
    return Operation(
        lambda generator: [_normal(generator, _HEADS, SIZE, _WIDTH) for _ in range(3)],
        partial(_attention, **options),
        sound,
        faults,
    )


# SwiGLU


def _swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return functional.silu(gate) * up


def _swapped_block(gate: Tensor, up: Tensor) -> Tensor:
    swapped = _swiglu(up[:, :16], gate[:, :16])
    return torch.cat([swapped, _swiglu(gate, up)[:, 16:]], -1)


# cross entropy


def _loss_inputs(generator: torch.Generator) -> Sequence[Tensor]:
    targets = torch.randint(0, SIZE, (4 * SIZE,), generator=generator)
    return _normal(generator, 4 * SIZE, SIZE) * 2, targets


def _at(values: Tensor, targets: Tensor) -> Tensor:
    return values.gather(-1, targets[:, None])[:, 0]


def _loss(logits: Tensor, targets: Tensor) -> Tensor:
    return torch.logsumexp(logits, -1) - _at(logits, targets)


def _shifted_loss(logits: Tensor, targets: Tensor) -> Tensor:
    shifted = logits - logits.amax(-1, keepdim=True)
    return shifted.exp().sum(-1).log() - _at(shifted, targets)


def _smoothed(logits: Tensor, targets: Tensor) -> Tensor:
    uniform = torch.logsumexp(logits, -1) - logits.mean(-1)
    return 0.99 * _loss(logits, targets) + 0.01 * uniform


# mixture of experts: the grouped product


def _experts_inputs(generator: torch.Generator) -> Sequence[Tensor]:
    weights = _normal(generator, _EXPERTS, _WIDTH, SIZE) / math.sqrt(_WIDTH)
    router = _normal(generator, SIZE, _EXPERTS)
    # choices are discrete, so they are an input
    gates, chosen = torch.softmax(router, -1).topk(2, -1)
    return _normal(generator, SIZE, _WIDTH), weights, gates, chosen


def _experts(
    x: Tensor,
    weights: Tensor,
    gates: Tensor,
    chosen: Tensor,
    *,
    renormalize: bool = True,
) -> Tensor:
    if renormalize:
        gates = gates / _sum(gates)
    columns = []
    for column in chosen.T:
        result = torch.zeros(len(x), weights.shape[-1], dtype=x.dtype)
        for expert in range(_EXPERTS):
            rows = column == expert
            result[rows] = x[rows] @ weights[expert]
        columns.append(result)
    return gates[:, :1] * columns[0] + gates[:, 1:] * columns[1]


def _by_token(x: Tensor, weights: Tensor, *routed: Tensor) -> Tensor:
    tokens = zip(x.split(1), *(each.split(1) for each in routed), strict=True)
    return torch.cat([_experts(row, weights, *rest) for row, *rest in tokens])


def _gathered(x: Tensor, weights: Tensor, gates: Tensor, chosen: Tensor) -> Tensor:
    products = torch.einsum("td,tkdf->tkf", x, weights[chosen])
    return (products * (gates / _sum(gates))[..., None]).sum(1)


def _gates_last(x: Tensor, weights: Tensor, gates: Tensor, chosen: Tensor) -> Tensor:
    return _experts(x, weights, gates, chosen, renormalize=False) / _sum(gates)


def _another_expert(x: Tensor, weights: Tensor, gates: Tensor, chosen: Tensor) -> Tensor:
    other = chosen.clone()
    other[7, 0] = (chosen[7, 0] + 1) % _EXPERTS
    return _experts(x, weights, gates, other)


def _shifted_expert(x: Tensor, weights: Tensor, *routed: Tensor) -> Tensor:
    shifted = weights.clone()
    shifted[3] = weights[3].roll(1, 0)
    return _experts(x, shifted, *routed)


# scan of a state-space model: h = a * h + x, y = c * h


def _scan_inputs(generator: torch.Generator) -> Sequence[Tensor]:
    decay = torch.sigmoid(_normal(generator, SIZE, _WIDTH) + 2)
    return decay, _normal(generator, SIZE, _WIDTH), _normal(generator, SIZE, _WIDTH)


def _scan(a: Tensor, x: Tensor, c: Tensor, lost: int = -1) -> Tensor:
    state, states = torch.zeros_like(x[0]), []
    for step in range(len(x)):
        state = a[step] * (state if step != lost else state * 0) + x[step]
        states.append(state)
    return c * torch.stack(states)


def _chunked_scan(a: Tensor, x: Tensor, c: Tensor) -> Tensor:
    state, chunks = torch.zeros_like(x[0]), []
    for decay, part in zip(a.split(16), x.split(16), strict=True):
        logs = decay.double().log().cumsum(0)
        is_past = torch.ones(16, 16, dtype=torch.bool).tril()[..., None]
        weights = torch.where(is_past, (logs[:, None] - logs).exp(), 0.0).to(x.dtype)
        inside = (weights * part[None]).sum(1)
        chunks.append(inside + logs.exp().to(x.dtype) * state)
        state = chunks[-1][-1]
    return c * torch.cat(chunks)


def _parallel_scan(a: Tensor, x: Tensor, c: Tensor) -> Tensor:
    step = 1
    while step < len(x):
        x = torch.cat([x[:step], x[step:] + a[step:] * x[:-step]])
        a = torch.cat([a[:step], a[step:] * a[:-step]])
        step *= 2
    return c * x


def _fused_scan(a: Tensor, x: Tensor, c: Tensor) -> Tensor:
    state, outputs = torch.zeros_like(x[0]), []
    for step in range(len(x)):
        state = torch.addcmul(x[step], a[step], state)
        outputs.append(state * c[step])
    return torch.stack(outputs)


OPERATIONS = {
    "matmul": Operation(
        _matmul_inputs,
        torch.matmul,
        {
            "split k": _split_k,
            "transposed": lambda a, b: (b.T.contiguous() @ a.T.contiguous()).T,
            "reversed k": lambda a, b: a.flip(1) @ b.flip(0),
        },
        {
            "dropped tail": lambda a, b: a[:, :-1] @ b[:-1],
            "scale": lambda a, b: (a @ b) * 1.01,
            "stale column": _stale_column,
        },
    ),
    "softmax": Operation(
        lambda generator: [_normal(generator, SIZE, SIZE) * 3],
        partial(torch.softmax, dim=-1),
        {
            "online": _online_softmax,
            "plain": _softmax_over(_sum),
            "reciprocal": _reciprocal_softmax,
        },
        {
            "rounded log2(e)": _softmax_over(_sum, lambda x: torch.exp2(x * 1.4453125)),
            "missing term": _softmax_over(lambda powers: _sum(powers[..., :-1])),
            "leaking term": _softmax_over(lambda powers: _sum(powers) + 0.01),
        },
    ),
    "RMSNorm": Operation(
        _norm_inputs,
        _rms_norm,
        {
            "torch": lambda x, weight: functional.rms_norm(x, weight.shape, weight, 1e-6),
            "blocks": _norm_in_blocks,
            "weight first": lambda x, weight: x * (weight * _inverse_rms(x)),
        },
        {
            "epsilon": partial(_rms_norm, epsilon=1e-2),
            "without last": lambda x, weight: weight * (x * _inverse_rms(x[..., :-1])),
            "stale weight": lambda x, weight: _rms_norm(x, weight.roll(1)),
        },
    ),
    "RoPE": Operation(
        lambda generator: [_normal(generator, _HEADS, SIZE, _WIDTH)],
        _rope,
        {
            "halves": _rope_by_halves,
            "fused": _rope_fused,
            "float64": lambda x: _rope(x.double()).to(x.dtype),
        },
        {
            "position off by one": partial(_rope, first=1),
            "base": partial(_rope, base=1.01e4),
            "without a pair": _rope_without_a_pair,
        },
    ),
    "attention": _attention_with(
        {
            "scale": partial(_attention, scale=0.13),
            "stale block": _stale_block,
            "one future key": partial(_attention, future=1),
        },
    ),
    "sliding": _attention_with(
        {
            "window + 1": partial(_attention, window=33),
            "window - 1": partial(_attention, window=31),
            "scale": partial(_attention, window=32, scale=0.13),
        },
        window=32,
    ),
    "sinks": _attention_with(
        {
            "no sink": _attention,
            "other sink": partial(_attention, sink=0.9),
            "scale": partial(_attention, sink=1.0, scale=0.13),
        },
        sink=1.0,
    ),
    "SwiGLU": Operation(
        lambda generator: [_normal(generator, SIZE, SIZE) for _ in range(2)],
        _swiglu,
        {
            "sigmoid": lambda gate, up: gate * torch.sigmoid(gate) * up,
            "exp": lambda gate, up: gate / (1 + torch.exp(-gate)) * up,
            "product first": lambda gate, up: (gate * up) * torch.sigmoid(gate),
        },
        {
            "GELU": lambda gate, up: functional.gelu(gate, approximate="tanh") * up,
            "swapped block": _swapped_block,
            "clamp": lambda gate, up: _swiglu(gate.clamp(max=2.0), up),
        },
    ),
    "cross entropy": Operation(
        _loss_inputs,
        _loss,
        {
            "torch": partial(functional.cross_entropy, reduction="none"),
            "log-softmax": lambda x, targets: -_at(torch.log_softmax(x, -1), targets),
            "shifted": _shifted_loss,
        },
        {
            "smoothing": _smoothed,
            "z-loss": lambda x, targets: _loss(x, targets) + 1e-2 * x.logsumexp(-1).square(),
            "cut vocabulary": lambda x, targets: x[:, :-1].logsumexp(-1) - _at(x, targets),
        },
    ),
    "experts": Operation(
        _experts_inputs,
        _experts,
        {"token by token": _by_token, "gathered": _gathered, "gates last": _gates_last},
        {
            "not renormalized": partial(_experts, renormalize=False),
            "another expert": _another_expert,
            "shifted expert": _shifted_expert,
        },
    ),
    "scan": Operation(
        _scan_inputs,
        _scan,
        {"chunks": _chunked_scan, "parallel": _parallel_scan, "fused": _fused_scan},
        {
            "state lost": partial(_scan, lost=64),
            "decay": lambda a, x, c: _scan(a * 0.999, x, c),
            "without first": lambda a, x, c: _scan(a, torch.cat([x[:1] * 0, x[1:]]), c),
        },
    ),
}
