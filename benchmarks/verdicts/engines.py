"""What mutations and variations of a path are made of: forwards with a cache between them, and
changes of a model.

An engine is what `judge` takes for a side: (model, token_ids [positions]) -> logits [positions,
vocab]. A change is model -> context manager; `under(change)` is the engine that computes in it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

Engine = Callable[[Any, Tensor], Tensor]
Change = Callable[[Any], AbstractContextManager[None]]
CacheChange = Callable[[Any, Tensor, Any, int], None]  # model, ids, cache, tokens in it
PREFIX = 16  # tokens that an earlier call computed
# a block of the cache fits into the smallest window
BLOCK = 4


def prefill(model, ids: Tensor, **arguments) -> Tensor:
    """One plain forward. [positions] -> [positions, vocab]"""
    return model(input_ids=ids[None], use_cache=False, **arguments).logits[0]


def in_16_bits_only(engine: Engine) -> Engine:
    """The engine where the model is in 16 bits, a plain forward in float32 and float64."""

    def run(model, ids):
        is_16_bits = model.dtype.itemsize == 2
        return engine(model, ids) if is_16_bits else prefill(model, ids)

    return run


def walk(
    model,
    ids: Tensor,
    stops: Sequence[int],
    on_stop: Callable[[Any, int], None] = lambda *_: None,
    positions: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Forwards that end before each of `stops` and before the end; `on_stop`(cache, stop) is called
    after each. -> [positions, vocab]

    positions(places) -> position ids of a forward's tokens.
    """
    cache = DynamicCache(config=model.config)
    # the cache is one for all forwards, so a change of it lasts
    parts, start = [], 0
    for stop in [*(stop for stop in stops if stop < len(ids)), len(ids)]:
        options = (
            {}
            if positions is None
            else {"position_ids": positions(torch.arange(start, stop, device=ids.device))[None]}
        )
        parts.append(
            model(
                input_ids=ids[None, start:stop],
                past_key_values=cache,
                use_cache=True,
                **options,
            ).logits[0],
        )
        on_stop(cache, stop)
        start = stop
    return torch.cat(parts)


def cache_of(model, ids: Tensor):
    """What a forward of these tokens leaves behind."""
    cache = DynamicCache(config=model.config)
    model(input_ids=ids[None], past_key_values=cache, use_cache=True)
    return cache


def other_tokens(ids: Tensor) -> Tensor:
    """Another prompt of the same length."""
    return ids.flip(0)


def layers(model):
    """Its decoder layers."""
    return model.transformer.h if hasattr(model, "transformer") else model.model.layers


def attention_of(layer):
    """The attention module of a layer."""
    return layer.attn if hasattr(layer, "attn") else layer.self_attn


def named(model, *endings: str) -> list[Any]:
    """Modules whose names end so."""
    return [module for name, module in model.named_modules() if name.endswith(endings)]


def routers(model) -> list[Any]:
    """What chooses experts, in each layer."""
    return named(model, ".gate", ".router")


def is_windowed(model) -> bool:
    """True where a layer sees only the last tokens."""
    config = model.config
    kinds = getattr(config, "layer_types", None)
    return (
        "sliding_attention" in kinds
        if kinds
        else getattr(config, "sliding_window", None) is not None
    )


def has_rotary_positions(model) -> bool:
    """True where only distances between tokens count."""
    return hasattr(model, "model") and hasattr(model.model, "rotary_emb")


def cached(
    stops: int | Sequence[int],
    *changes: CacheChange,
    inner: Change | None = None,
) -> Engine:
    """Forwards that end at `stops`, or every so many tokens; each change is made to the cache after
    each of them.
    """

    def engine(model, ids):
        def apply_changes(cache, at):
            for change in changes:
                change(model, ids, cache, at)

        return walk(
            model,
            ids,
            range(stops, len(ids), stops) if isinstance(stops, int) else stops,
            apply_changes,
        )

    return engine if inner is None else alter(inner, engine)


def rewriting(
    change: Callable[[Tensor], Tensor],
    layer: int | None = None,
) -> CacheChange:
    """Keys and values, of all layers or of one, are change(keys or values)."""

    def change_cache(_, __, cache, ___):
        for each in cache.layers if layer is None else [cache.layers[layer]]:
            each.keys, each.values = change(each.keys), change(each.values)

    return change_cache


def left_by(
    other: Callable[[Any, Tensor], Any],
    stop: int,
    slots: slice | int,
    share: float = 1.0,
) -> CacheChange:
    """At `stop` some slots are moved by a share of the way to what `other`(model, ids), a cache,
    holds there.
    """

    def change(model, ids, cache, at):
        if at != stop:
            return
        for layer, stale in zip(cache.layers, other(model, ids).layers, strict=True):
            for own, old in ((layer.keys, stale.keys), (layer.values, stale.values)):
                own[:, :, slots] = interpolate(own[:, :, slots], old[:, :, slots], share)

    return change


def interpolate(values: Tensor, towards: Tensor, share: float) -> Tensor:
    """Values, a share of the way on to others."""
    if share == 1:
        return towards
    # float64 stays
    wide = torch.promote_types(values.dtype, torch.float32)
    start = values.to(wide)
    return (start + share * (towards.to(wide) - start)).to(values.dtype)


def alter(change: Change, engine: Engine = prefill) -> Engine:
    """The engine on the changed model."""

    def run(model, ids):
        with change(model):
            return engine(model, ids)

    return run


def hooking(
    modules: Callable[[Any], Iterable[Any]],
    change: Callable[[Any, Any, Any], Any],
) -> Change:
    """The first output of each of these modules of a model is change(module, arguments, output)."""

    def of_first(module, arguments, output):
        # attention and some blocks return a tuple
        if isinstance(output, tuple):
            return (change(module, arguments, output[0]), *output[1:])
        return change(module, arguments, output)

    return registering("register_forward_hook", modules, of_first)


def registering(
    kind: str,
    modules: Callable[[Any], Iterable[Any]],
    hook: Callable[..., Any],
) -> Change:
    """These modules of a model have a hook. kind: the method that registers it."""

    @contextmanager
    def hooks(model):
        with ExitStack() as stack:
            for module in modules(model):
                stack.enter_context(getattr(module, kind)(hook))
            yield

    return hooks


def replacing(values: Callable[[Any], Iterable[tuple[Any, str, Any]]]) -> Change:
    """Attributes are other values: (owner, name, value) of a model."""

    @contextmanager
    def replacements(model):
        with ExitStack() as stack:
            for owner, name, value in values(model):
                stack.enter_context(replaced(owner, name, value))
            yield

    return replacements


@dataclass(frozen=True)
class Attention:
    """One call of a layer's attention. query [rows, heads, queries, dim]; mask [rows or 1, heads or
    1, queries, keys], True where seen, as it would be if a kernel did not make its own.
    """

    compute: Callable[..., Any]
    module: Any
    query: Any
    key: Any
    value: Any
    mask: Any
    options: dict[str, Any]

    def run(self, **changed):
        """Compute it, some of its arguments changed. -> ([rows, queries, heads, dim], ...)"""
        call = replace(self, **changed)
        _, *arguments = (getattr(call, field.name) for field in fields(call))
        return self.compute(*arguments)


def attending(change: Callable[[Attention], Any]) -> Change:
    """Every layer's attention is change(call)."""

    @contextmanager
    def attention(model):
        name = model.config._attn_implementation
        # eager attention is a function of the model's own module, and in no table
        own = sys.modules[type(attention_of(layers(model)[0])).__module__].eager_attention_forward
        plain = ALL_ATTENTION_FUNCTIONS.get(name, own)

        def original(module, query, key, value, mask, options):
            # eager attention takes an additive mask
            if name == "eager":
                mask = query.new_zeros(mask.shape).masked_fill(~mask, torch.finfo(query.dtype).min)
            return plain(module, query, key, value, mask, **options)

        def attend(module, query, key, value, mask, **options):
            queries, keys = query.shape[2], key.shape[2]
            # a kernel that is causal by itself gets no mask
            if mask is None:
                mask = query.new_ones((1, 1, queries, keys), dtype=torch.bool).tril(keys - queries)
            # an additive mask is 0 where a key is seen
            elif mask.dtype != torch.bool:
                mask = mask >= 0
            return change(Attention(original, module, query, key, value, mask.clone(), options))

        # the local mapping precedes that of the class
        with mock.patch.dict(ALL_ATTENTION_FUNCTIONS._local_mapping, {name: attend}):
            yield

    return attention


@contextmanager
def replaced(owner, name: str, value) -> Iterator[None]:
    """An attribute is another value, for this call."""
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


def round_to_bits(values: Tensor, bits: int) -> Tensor:
    """Values rounded to `bits` bits of mantissa after the leading one. Same shape and dtype."""
    mantissa, exponent = torch.frexp(values)
    return torch.ldexp((mantissa * 2.0 ** (bits + 1)).round() * 2.0 ** -(bits + 1), exponent).to(
        values.dtype,
    )
