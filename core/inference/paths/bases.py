"""Bases: how a path walks through the prompt. To add one, write a function of a `PromptBatch` and
`emit`, and enter it in BASES and in `grammar.py`.
"""

# ruff: noqa: ARG001, ARG005 - every entry of the registry has one signature, whether or not it
# needs all of it

import copy
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import torch
from transformers import DynamicCache, StaticCache

from ..models.model import LoadedModel
from .batch import Emit, PromptBatch
from .caches import ReturnedState, cache_argument, keeps_state, new_cache


@dataclass(frozen=True)
class Base:
    """How a path walks through the prompt.

    compute: (batch, emit, values); refuse: why this model cannot run so many positions (None: any),
    or None; reads_cache: whether a forward reads keys and values of an earlier one.
    """

    compute: Callable[..., None]
    refuse: Callable[..., str | None] = lambda loaded, positions, *values: None
    reads_cache: bool = True


def _prefill(batch: PromptBatch, emit: Emit) -> None:
    """One forward of the whole prompt."""
    batch.forward(0, batch.positions, emit)


def _chunked(batch: PromptBatch, emit: Emit, size: int) -> None:
    """N tokens per forward, each reading earlier chunks from a cache; a prompt of at most N tokens
    is one chunk.
    """
    cache = new_cache(batch.loaded)
    for start in range(0, batch.positions, size):
        batch.forward(start, min(start + size, batch.positions), emit, cache)


def _reuse(batch: PromptBatch, emit: Emit, prefix: int) -> None:
    """Call 1 computes the first N tokens and their logits; call 2 the rest with a copy of its
    cache.
    """
    earlier = new_cache(batch.loaded)
    batch.forward(0, prefix, emit, earlier)
    reused = copy.deepcopy(earlier)
    batch.forward(prefix, batch.positions, emit, reused)


def _blocks(batch: PromptBatch, emit: Emit, size: int) -> None:
    """Call 1 computes the whole prompt; call 2 finds its whole blocks of N tokens in the cache and
    computes the rest.

    As in paged engines, at least one token is recomputed, so a block that ends with the prompt is
    not reused. Their logits are call 1's, which alone computed them. A running state cannot be cut:
    call 2 begins with a copy that call 1 made at the end of the last block.
    """
    reused = (batch.positions - 1) // size * size
    if keeps_state(batch.loaded):
        return _reuse(batch, emit, reused) if reused else _prefill(batch, emit)
    earlier = DynamicCache(config=batch.loaded.model.config)
    # sliding windows keep their dropped entries, which cropping needs
    earlier.activate_past_recording()

    def of_reused(position: int, logits: torch.Tensor) -> None:
        if position < reused:
            emit(position, logits[: reused - position])

    # if no block can be reused, every call computes all of it, like call 1
    batch.forward(0, batch.positions, of_reused if reused else emit, earlier)
    if reused:
        cache = copy.deepcopy(earlier)
        cache.crop(batch.column(reused) - batch.columns)
        batch.forward(reused, batch.positions, emit, cache)
    return None


def _static(batch: PromptBatch, emit: Emit) -> None:
    """Token by token over a cache allocated for the whole prompt, masked beyond the token."""
    cache = StaticCache(config=batch.loaded.model.config, max_cache_len=batch.columns + batch.room)
    for position in range(batch.positions):
        batch.forward(position, position + 1, emit, cache)


def without_cache(loaded: LoadedModel, positions: int | None, *values: int) -> str | None:
    """Return why this model cannot compute a prompt in several forwards with a cache, or None."""
    kind = loaded.kind
    if loaded.encoder is not None:
        return f"a {kind} computes a whole text at once, without a KV cache; capture it by encode"
    if cache_argument(loaded) is None:
        return f"a {kind} has no cache to read from; choose prefill"
    most = _positions_of_one_rotation(loaded)
    if most is not None and positions is not None and positions > most:
        return (
            f"a {kind} changes its rotary frequencies beyond {most} tokens, so cached keys of a"
            f" prompt of {positions} are not those of one forward; shorten the prompt, or choose"
            " prefill"
        )
    return None


def _has_causal_head(loaded: LoadedModel, positions: int | None) -> str | None:
    if loaded.encoder is not None:
        return None
    return f"a {loaded.kind} has a causal head; choose prefill, or encode as the reference too"


def _positions_of_one_rotation(loaded: LoadedModel) -> int | None:
    """Return up to how many tokens rotary frequencies do not depend on the prompt's length; None if
    they never do.

    transformers, modeling_rope_utils.dynamic_rope_update: 'longrope' switches to other frequencies
    and 'dynamic' scales them when the longest position of a *forward* passes the length of
    pretraining; keys cached before keep the old rotation.
    """
    config = loaded.text_config
    table = getattr(config, "rope_parameters", None) or {}
    limits = []
    # or one per layer type
    for rope in [table, *(entry for entry in table.values() if isinstance(entry, dict))]:
        if rope.get("rope_type") == "longrope":
            limits.append(int(rope["original_max_position_embeddings"]))
        elif rope.get("rope_type") == "dynamic":
            limits.append(int(config.max_position_embeddings))
    return min(limits, default=None)


def _nothing_fresh(loaded: LoadedModel, positions: int | None, prefix: int) -> str | None:
    if positions is not None and positions <= prefix:
        fix = f"lengthen it, or reuse at most {positions - 1}" if positions > 1 else "lengthen it"
        return (
            f"a prompt of {positions} tokens has nothing left to compute after the first {prefix};"
            f" {fix}"
        )
    return without_cache(loaded, positions)


def _no_static_cache(loaded: LoadedModel, positions: int | None) -> str | None:
    if reason := without_cache(loaded, positions):
        return reason
    if not isinstance(new_cache(loaded), ReturnedState):
        # a configuration may name kinds of layers that StaticCache does not have
        with suppress(Exception):
            StaticCache(config=loaded.model.config, max_cache_len=1)
            return None
    return f"a {loaded.kind} has no cache that can be allocated beforehand; choose decode"


BASES: dict[str, Base] = {
    "prefill": Base(_prefill, reads_cache=False),
    # token by token, teacher-forced: each forward reads the keys and values of the earlier ones
    # from a cache
    "decode": Base(partial(_chunked, size=1), without_cache),
    "chunked": Base(_chunked, without_cache),
    "reuse": Base(_reuse, _nothing_fresh),
    "blocks": Base(_blocks, without_cache),
    "static": Base(_static, _no_static_cache),
    # of a model without a causal head: a row of values for the whole text
    "encode": Base(_prefill, _has_causal_head, reads_cache=False),
}
