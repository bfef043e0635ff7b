"""What a model keeps between forwards: a cache of transformers, or a state that it returns."""

from __future__ import annotations

from dataclasses import dataclass
from inspect import signature
from typing import Any

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

    def keep(self, output: Any) -> None:
        """Keep what a forward returned."""
        self.value = output[self.name]


AnyCache = Cache | ReturnedState


def cache_argument(loaded: LoadedModel) -> str | None:
    """Return the argument of a forward that takes its cache, None if it has none."""
    names = signature(loaded.model.forward).parameters
    returned = _RETURNED.get(loaded.model.config.model_type)
    return returned or next((name for name in _CACHES if name in names), None)


def new_cache(loaded: LoadedModel) -> AnyCache:
    """Return an empty cache of the model's own kind."""
    config = loaded.model.config
    if config.model_type in _RETURNED:
        return ReturnedState(_RETURNED[config.model_type])
    return DynamicCache(config=config)


def keeps_state(loaded: LoadedModel) -> bool:
    """Return whether some of a model's layers keep a running state, which cannot be trimmed."""
    cache = new_cache(loaded)
    if isinstance(cache, ReturnedState):
        return True
    return any(type(layer) not in _TRIMMABLE for layer in cache.layers)


def keeps_keys(loaded: LoadedModel) -> bool:
    """Return whether some of a model's layers keep keys and values."""
    cache = new_cache(loaded)
    return isinstance(cache, Cache) and any(hasattr(layer, "keys") for layer in cache.layers)


def has_layers(loaded: LoadedModel) -> bool:
    """Return whether a model's cache is one of layers, whose parts can be compared."""
    return cache_argument(loaded) in _CACHES and loaded.model.config.model_type != "xlstm"


def arguments_of(loaded: LoadedModel, cache: AnyCache | None) -> dict[str, Any]:
    """Return the arguments of a forward that continues a cache, or has none."""
    if cache is None:
        return {"use_cache": False}
    name = cache_argument(loaded)
    assert name is not None
    value = cache.value if isinstance(cache, ReturnedState) else cache
    return {"use_cache": True, name: value}
