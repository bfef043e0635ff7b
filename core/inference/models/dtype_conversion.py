"""A loaded model in another dtype for a while, and then bit for bit what it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from .model import LoadedModel
from .weights import rounded_parameters


@contextmanager
def converted(loaded: LoadedModel, dtype: str) -> Iterator[LoadedModel]:
    """Convert the model to `dtype` inside, as if it had been loaded in it; the original weights are kept and put back.

    Only parameters are rounded: buffers such as rotary frequencies belong in float32 whatever the weights are.
    """
    target = getattr(torch, dtype)
    originals: list[tuple[torch.nn.Parameter, torch.Tensor]] = []
    try:
        with torch.inference_mode(False), torch.no_grad():  # a weight that is an inference tensor could not be put back
            for parameter in _convertible(loaded, target):
                originals.append((parameter, parameter.data))
                parameter.data = parameter.data.to(target)
        yield replace(loaded, dtype=dtype)
    finally:
        with torch.inference_mode(False), torch.no_grad():
            for parameter, data in originals:
                parameter.data = data


def converted_bytes(loaded: LoadedModel, dtype: str) -> int:
    """Bytes the rounded weights take beside the originals."""
    target = getattr(torch, dtype)
    return sum(parameter.numel() * target.itemsize for parameter in _convertible(loaded, target))


def _convertible(loaded: LoadedModel, target: torch.dtype) -> Iterator[torch.nn.Parameter]:
    return rounded_parameters(loaded.model, loaded.torch_dtype, target)
