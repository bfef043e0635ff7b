"""A model's own linear maps as operations: each shape once, with the modules that have it."""

from __future__ import annotations

from torch import nn
from transformers.pytorch_utils import Conv1D

from ..models.model import load_model
from .operations import Operation, linear_operation


def linear_operations(
    name: str, *, revision: str | None = None, trust_remote_code: bool = False
) -> tuple[Operation, ...]:
    """`linear` at every (in, out) that the model's config gives its modules; no weights are read."""
    loaded = load_model(
        name, dtype="float32", device="cpu", revision=revision, trust_remote_code=trust_remote_code, weights=False
    )
    return linear_operations_of(loaded.model)


def linear_operations_of(model: nn.Module) -> tuple[Operation, ...]:
    """`linear` at every (in, out) of a model at hand. Modules are called by the last part of their name, as they repeat
    in every block.
    """
    found: dict[tuple[int, int, bool], dict[str, None]] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            shape = (module.in_features, module.out_features, module.bias is not None)
        elif isinstance(
            module, Conv1D
        ):  # GPT-2's: a linear map whose weight lies the other way round, always with a bias
            shape = (module.nx, module.nf, True)
        else:
            continue
        found.setdefault(shape, {})[name.rsplit(".", 1)[-1]] = None
    return tuple(linear_operation(*shape, ", ".join(names)) for shape, names in found.items())
