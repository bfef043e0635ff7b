"""What mutations and variations of a path are made of: forwards with a cache between them, and changes that last for
one call.

An engine here is what core.inference.controls.judge_model takes for a side: (model, token_ids [positions]) -> logits
[positions, vocab].
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import DynamicCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

Engine = Callable[[Any, torch.Tensor], torch.Tensor]
PREFIX = 16  # tokens that an earlier call computed
BLOCK = 4  # tokens of a block of the cache: fits into the smallest window


def prefill(model: Any, ids: torch.Tensor, **arguments: Any) -> torch.Tensor:
    """One plain forward. [positions] -> [positions, vocab]"""
    logits: torch.Tensor = model(input_ids=ids[None], use_cache=False, **arguments).logits
    return logits[0]


def walk(
    model: Any,
    ids: torch.Tensor,
    stops: Sequence[int],
    after: Callable[[Any, int], None] = lambda *_: None,
    arguments: Callable[[int, int], dict[str, Any]] = lambda *_: {},
) -> torch.Tensor:
    """Forwards that end before each of `stops` and before the end; `after`(cache, stop) is called after each. ->
    [positions, vocab]

    arguments(start, stop): what else a forward is given.
    """
    cache = DynamicCache(config=model.config)
    parts, start = [], 0
    for stop in [*(stop for stop in stops if stop < len(ids)), len(ids)]:
        given = arguments(start, stop)
        parts.append(model(input_ids=ids[None, start:stop], past_key_values=cache, use_cache=True, **given).logits[0])
        after(cache, stop)
        start = stop
    return torch.cat(parts)


def cache_of(model: Any, ids: torch.Tensor) -> Any:
    """What a forward of these tokens leaves behind."""
    cache = DynamicCache(config=model.config)
    model(input_ids=ids[None], past_key_values=cache, use_cache=True)
    return cache


def other_tokens(ids: torch.Tensor) -> torch.Tensor:
    """Another prompt of the same length."""
    return ids.flip(0)


def layers(model: Any) -> Any:
    """Its decoder layers."""
    return model.transformer.h if hasattr(model, "transformer") else model.model.layers


def attention_of(layer: Any) -> Any:
    """The attention module of a layer."""
    return layer.attn if hasattr(layer, "attn") else layer.self_attn


def is_windowed(model: Any) -> bool:
    """True where a layer sees only the last tokens."""
    config = model.config
    kinds = getattr(config, "layer_types", None)
    return "sliding_attention" in kinds if kinds else getattr(config, "sliding_window", None) is not None


def has_rotary_positions(model: Any) -> bool:
    """True where only distances between tokens count."""
    return hasattr(model, "model") and hasattr(model.model, "rotary_emb")


@contextmanager
def attention(model: Any, change: Callable[..., Any]) -> Iterator[None]:
    """Every layer's attention is change(original, module, query, key, value, mask, options), for this call.

    original takes the same; query [rows, heads, queries, dim]; mask [rows or 1, heads or 1, queries, keys], True where
    seen, as it would be if a kernel did not make its own; the result is ([rows, queries, heads, dim], ...).
    """
    name = model.config._attn_implementation
    written = sys.modules[type(attention_of(layers(model)[0])).__module__].eager_attention_forward
    plain = ALL_ATTENTION_FUNCTIONS.get(name, written)

    def original(module: Any, query: Any, key: Any, value: Any, mask: Any, options: Any) -> Any:
        if name == "eager":  # an additive mask
            mask = torch.zeros(mask.shape, dtype=query.dtype).masked_fill(~mask, torch.finfo(query.dtype).min)
        return plain(module, query, key, value, mask, **options)

    def changed(module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
        queries, keys = query.shape[2], key.shape[2]
        if mask is None:
            mask = torch.ones((1, 1, queries, keys), dtype=torch.bool).tril(keys - queries)
        elif mask.dtype != torch.bool:
            mask = mask >= 0
        return change(original, module, query, key, value, mask.clone(), options)

    before = ALL_ATTENTION_FUNCTIONS._local_mapping.get(name)
    ALL_ATTENTION_FUNCTIONS[name] = changed
    try:
        yield
    finally:
        del ALL_ATTENTION_FUNCTIONS[name]
        if before is not None:
            ALL_ATTENTION_FUNCTIONS[name] = before


@contextmanager
def hooked(module: Any, change: Callable[..., Any]) -> Iterator[None]:
    """The module's output is change(arguments, output), for this call."""
    hook = module.register_forward_hook(lambda _, arguments, output: change(arguments, output))
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """An attribute is another value, for this call."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def rounded(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Values rounded to `bits` bits of mantissa after the leading one. Same shape and dtype."""
    mantissa, exponent = torch.frexp(values)
    return torch.ldexp((mantissa * 2.0 ** (bits + 1)).round() * 2.0 ** -(bits + 1), exponent).to(values.dtype)
