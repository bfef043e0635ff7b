"""Other ways to compute the very same function, none of which may be called a bug."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.verdicts.engines import (
    PREFIX,
    Engine,
    alter,
    attending,
    cached,
    hooking,
    is_windowed,
    prefill,
    rewriting,
    walk,
)
from benchmarks.verdicts.mutations import Mutation, _of, activated, head_of
from core.inference.controls.reordering import reorder
from core.inference.models.model import LoadedModel


def _never(_: LoadedModel) -> bool:
    return False


def same(
    name: str,
    engine: Engine | None = None,
    applies: Callable[[LoadedModel], bool] = lambda _: True,
    **options,
) -> Mutation:
    return Mutation(name, engine, applies=applies, changes=_never, **options)


def reordering(seed: int) -> Engine:
    """Every linear map sums in an order drawn from the seed."""

    def engine(model, ids):
        with reorder(model, seed):
            return prefill(model, ids)

    return engine


def in_float64(model, ids: Tensor) -> Tensor:
    """The same weights, computed in float64 and rounded once at the end."""
    with torch.inference_mode(False), torch.no_grad():
        wide = copy.deepcopy(model).double()
    if hasattr(model.config, "num_experts_per_tok"):
        wide.set_experts_implementation("eager")
    return prefill(wide, ids).to(model.dtype)


class _Halves(TorchDispatchMode):
    """Every product with a matrix of weights is the sum of two halves, as on two ranks or with
    split K.
    """

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.linear.default:
            x, weight, bias = (*args, None)[:3]
            half = x.shape[-1] // 2
            first, second = (
                func(x[..., :half], weight[:, :half]),
                func(x[..., half:], weight[:, half:]),
            )
            return first + second if bias is None else first + second + bias
        if func is torch.ops.aten.addmm.default and not kwargs:
            bias, x, weight = args
            half = x.shape[-1] // 2
            return x[:, :half] @ weight[:half] + x[:, half:] @ weight[half:] + bias
        return func(*args, **(kwargs or {}))


def in_two_halves(model, ids: Tensor) -> Tensor:
    """Tensor parallelism over two ranks, or split K."""
    with _Halves():
        return prefill(model, ids)


def without_groups(change: Callable[..., Tensor]) -> Engine:
    """Attention is change(query, keys and values of each query head, mask, scaling), but where
    scores are capped.
    """

    def attend(call):
        # capped scores are another function, which the changes below do not compute
        if call.options.get("softcap") is not None:
            return call.run()
        # grouped-query attention: several query heads read one head of keys and values
        groups = call.query.shape[1] // call.key.shape[1]
        key, value = (each.repeat_interleave(groups, 1) for each in (call.key, call.value))
        output = change(call.query, key, value, call.mask, call.options["scaling"])
        return output.to(call.query.dtype).transpose(1, 2), None

    return alter(attending(attend))


def _in_parts(query, key, value, mask, scaling: float) -> Tensor:
    """Keys in parts of 7, each with its own softmax, put together by their sums: flash decoding."""
    scores = (query.float() @ key.float().transpose(2, 3) * scaling).masked_fill(~mask, -torch.inf)
    largest = scores.amax(-1, keepdim=True)
    total, output = torch.zeros_like(largest), torch.zeros_like(query, dtype=scores.dtype)
    for start in range(0, key.shape[2], 7):
        weights = (scores[..., start : start + 7] - largest).exp()
        total = total + weights.sum(-1, keepdim=True)
        output = output + weights @ value[:, :, start : start + 7].to(scores.dtype)
    return output / total


def _rounded_scores(query, key, value, mask, scaling: float) -> Tensor:
    """Scores and weights are rounded to the dtype of the model, as an unfused kernel does."""
    scores = (query @ key.transpose(2, 3) * scaling).masked_fill(~mask, -torch.inf)
    return scores.softmax(-1) @ value


scores_rounded = without_groups(_rounded_scores)


def in_uneven_chunks(model, ids: Tensor) -> Tensor:
    """Chunks of 1, 2, 3 ... tokens."""
    return walk(model, ids, list(itertools.accumulate(range(1, len(ids)))))


def last_row_of_a_batch(model, ids: Tensor) -> Tensor:
    """The last of five rows."""
    # the neighbors are the same tokens in another order, so none needs padding
    rows = torch.stack([ids.roll(k) for k in (1, 2, 3, 4, 0)])
    return model(input_ids=rows, use_cache=False).logits[-1]


def _head_by_tokens(head, arguments, _: Tensor) -> Tensor:
    """The head multiplies one position at a time."""
    return torch.stack([torch.nn.functional.linear(row, head.weight) for row in arguments[0][0]])[
        None
    ]


def _norm_in_float64(module, arguments, output: Tensor) -> Tensor:
    """A norm is computed once more in float64 and rounded."""
    x = arguments[0].double()
    eps = getattr(module, "variance_epsilon", None) or module.eps
    # all other norms here are RMS norms, which take no mean
    if isinstance(module, torch.nn.LayerNorm):
        x = x - x.mean(-1, keepdim=True)
    x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    # Gemma stores the weight of a norm less 1
    weight = module.weight.double() + (1 if "Gemma" in type(module).__name__ else 0)
    bias = getattr(module, "bias", None)
    return (x * weight + (0 if bias is None else bias.double())).to(output.dtype)


def _norms(model) -> list[Any]:
    return [module for module in model.modules() if "Norm" in type(module).__name__]


norms_in_float64 = alter(hooking(_norms, _norm_in_float64))


def nondeterministic_sums(model, ids: Tensor) -> Tensor:
    """Sums in another order at every call, as with atomic additions."""
    # never a seed of the other cases, and another one at each call
    return reordering(1000 + next(_calls))(model, ids)


_calls = itertools.count()


def _full(loaded: LoadedModel) -> bool:
    return not is_windowed(loaded.model)


_MODIFIERS = {
    "prefill": (
        *(f"batch:{rows}" for rows in (2, 8)),
        *("batch:3+neighbours:random", "batch:3+row:1+pad:left:2", "pad:left:5", "pad:right:5"),
        *("attn:eager", "threads:2", "sdpa:math"),
    ),
    "decode": (
        *(f"batch:{rows}" for rows in ("3", "4+row:2", "4+neighbours:same")),
        *("pad:left:5", "attn:eager", "threads:3"),
    ),
    "static": ("batch:4", "pad:left:5"),
    "blocks:8": ("batch:3+row:2+neighbours:random",),
    "reuse:9": ("pad:left:5",),
}
PATHS = (
    *("prefill", "decode", "static", "chunked:5", "chunked:16", "blocks:8", "blocks:16"),
    *(f"reuse:{tokens}" for tokens in (1, 7, 16, 31)),
    *(f"{base}+{modifiers}" for base, every in _MODIFIERS.items() for modifiers in every),
)
SLOW_PATHS = ("prefill+compile", "decode+compile")

VARIATIONS: tuple[Mutation, ...] = (
    *(same(path, path=path) for path in PATHS),
    same("decode+batch:3 against decode", path="decode+batch:3", reference="decode"),
    same("static against chunked:5", path="static", reference="chunked:5"),
    *(same(f"reordering of seed {seed}", reordering(seed)) for seed in (101, 102, 103)),
    same("float64, rounded at the end", in_float64),
    same("products in two halves", in_two_halves),
    same(
        "attention in parts of 7 keys",
        without_groups(_in_parts),
        # gemma2 caps its scores
        lambda loaded: not _of("gemma2")(loaded),
    ),
    same(
        "cached slots in another order",
        # a sum over slots in another order; a window would drop other tokens
        cached([PREFIX], rewriting(lambda slots: slots.flip(2))),
        _full,
    ),
    same("chunks of 1, 2, 3 ... tokens", in_uneven_chunks),
    same("last of five rows", last_row_of_a_batch),
    same("head one position at a time", alter(hooking(head_of, _head_by_tokens))),
    same("norms in float64", norms_in_float64),
    same(
        "fused tanh GELU",
        alter(activated(torch.nn.GELU(approximate="tanh"))),
        _of("gpt2", "gemma2"),
    ),
    same("sums in another order at every call", nondeterministic_sums),
)
