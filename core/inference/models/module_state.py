"""What modules hold between forwards: the recurrent state of a RecurrentGemma, the position offset
of a Qwen-VL.

Most models keep all of a sequence in its cache. With the others, each sequence has to begin as in a
model that has run nothing; else a path's logits depend on the calls before it.
"""

import copy
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from .torch_errors import quiet

ModuleState = Mapping[nn.Module, Mapping[str, Any]]
"""Module -> its attributes and buffers, by name."""
_STATE = (Tensor, int, float, type(None))


def state_at_start(model: Any) -> ModuleState:
    """Return the state in which a sequence begins: as constructed, if the model has run before."""
    state = {module: _held(module) for module in model.modules()}
    values = (value for module in state for value in vars(module).values())
    fresh: dict[str, nn.Module] = {}
    if any(isinstance(value, Tensor) for value in values):
        # custom code may take more than a config
        with suppress(Exception), quiet(), torch.device("meta"):
            fresh = dict(type(model)(copy.deepcopy(model.config)).named_modules())
    for name, module in model.named_modules():
        empty = [key for key, value in vars(fresh.get(name, module)).items() if value is None]
        state[module] |= dict.fromkeys(empty)
    return state


def restore_state(state: ModuleState) -> None:
    """Give modules back what they held, by reference: a tensor that is written in place is not
    restored.
    """
    for module, before in state.items():
        for key, value in _held(module).items():
            if key not in before and isinstance(value, Tensor):
                delattr(module, key)
            elif (
                # others are transformers' own marks, such as that outputs are captured
                key in before
                and value is not before[key]
                and isinstance(value, _STATE)
                and isinstance(before[key], _STATE)
            ):
                setattr(module, key, before[key])


def _held(module: nn.Module) -> dict[str, Any]:
    return {**vars(module), **module._buffers}
