"""What a model keeps between forwards: a cache of transformers, or a state that it returns."""

from collections.abc import Iterator
from dataclasses import dataclass
from inspect import signature
from typing import Any

from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.cache_utils import (
    DummyLayer,
    DynamicIndexedLayer,
    DynamicLayer,
    DynamicSlidingWindowLayer,
)

from ..models.model import LoadedModel

# arguments of a forward, of transformers 5.23 and 5.24; a Mamba's cache has its own name
_CACHES = ("past_key_values", "cache_params", "cache")
# these make their own, and return it
_RETURNED = {"rwkv": "state", "xlstm": "cache_params", "minimax": "past_key_values"}
# One entry per token, so that dropping the last entries drops the last tokens. Other kinds are not
# trusted.
_TRIMMABLE = (DynamicLayer, DynamicSlidingWindowLayer, DynamicIndexedLayer, DummyLayer)


@dataclass
class ReturnedState:
    """A state that a forward returns and the next one takes. name: of the argument and of what is
    returned.
    """

    name: str
    value: Any = None


# of a layer: an entry for each token, so no running state
_KEYS = ("keys", "values", "indexer_keys")
AnyCache = Cache | ReturnedState


def cache_argument(loaded: LoadedModel) -> str | None:
    """Return the argument of a forward that takes its cache, None if it has none."""
    names = signature(loaded.model.forward).parameters
    returned = _RETURNED.get(loaded.model.config.model_type)
    return returned or next((name for name in _CACHES if name in names), None)


def new_cache(loaded: LoadedModel) -> AnyCache:
    """Return an empty cache of the model's own kind."""
    config = loaded.model.config
    name = _RETURNED.get(config.model_type)
    return DynamicCache(config=config) if name is None else ReturnedState(name)


def keeps_state(loaded: LoadedModel) -> bool:
    """Return whether some of a model's layers keep a running state, which cannot be trimmed."""
    cache = new_cache(loaded)
    return isinstance(cache, ReturnedState) or any(
        type(layer) not in _TRIMMABLE for layer in cache.layers
    )


def keeps_keys(loaded: LoadedModel) -> bool:
    """Return whether some of a model's layers keep keys and values."""
    cache = new_cache(loaded)
    return isinstance(cache, Cache) and any(hasattr(layer, "keys") for layer in cache.layers)


def arguments_of(loaded: LoadedModel, cache: AnyCache | None) -> dict[str, Any]:
    """Return the arguments of a forward that continues a cache, or has none."""
    if cache is None:
        return {"use_cache": False}
    name = cache_argument(loaded)
    assert name is not None
    value = cache.value if isinstance(cache, ReturnedState) else cache
    return {"use_cache": True, name: value}


def keys_of_layer(loaded: LoadedModel, layer: Any) -> dict[str, Any]:
    """Return what a layer of a cache keeps of each token, by kind: [rows, heads, slots, width], or
    None. Multi-head latent attention keeps one latent, and the part of the keys that is rotated.
    """
    keys = getattr(layer, "keys", None)
    values = getattr(layer, "values", None)
    rank = getattr(loaded.text_config, "kv_lora_rank", None)
    is_latent = keys is not None and keys.ndim == 4 and (1, rank) == (keys.shape[1], keys.shape[3])
    kinds = ("latent", "rotary key") if is_latent else ("key", "value")
    indexer = getattr(layer, "indexer_keys", None)
    of_indexer = None if indexer is None else indexer[:, None]
    return {**dict(zip(kinds, (keys, values), strict=True)), "indexer key": of_indexer}


def running_states(
    loaded: LoadedModel,
    cache: AnyCache,
) -> Iterator[tuple[int, str, list[Tensor]]]:
    """Yield the running states in a cache and in the model's modules: layer, the name that the
    family gives it, tensors [rows, ...].
    """
    value = cache.value if isinstance(cache, ReturnedState) else cache
    if isinstance(value, list):
        # a RWKV's: the layers are the last axis
        for layer in range(value[0].shape[-1]):
            yield layer, "state", [each[..., layer] for each in value]
        return
    for name, by_layer in vars(value).items():
        if isinstance(by_layer, list):
            by_layer = dict(enumerate(by_layer))
        if isinstance(by_layer, dict):
            for layer, held in by_layer.items():
                yield from _states(layer, held, name)
    for path, module in loaded.model.named_modules():
        numbers = [int(part) for part in path.split(".") if part.isdigit()]
        if numbers and module in loaded.start:
            at_start = loaded.start[module]
            for name, held in vars(module).items():
                if at_start.get(name) is not held:
                    yield from _states(numbers[0], held, name)


def _states(layer: int, held: Any, name: str) -> Iterator[tuple[int, str, list[Tensor]]]:
    """Yield names and tensors of what is held for one layer: tensors, or an object that has
    them.
    """
    if isinstance(held, Tensor | list | tuple | dict):
        every = list(held.values()) if isinstance(held, dict) else held
        every = [every] if isinstance(every, Tensor) else every
        tensors = [each for each in every if isinstance(each, Tensor)]
        # counts are not states
        tensors = [each for each in tensors if each.ndim > 1 and each.is_floating_point()]
        if tensors:
            yield layer, name, tensors
        return
    for own, inner in getattr(held, "__dict__", {}).items():
        if own not in _KEYS and isinstance(inner, Tensor | dict):
            yield from _states(layer, inner, own)
