"""The modules whose outputs are compared: embedding, norms, projections, attention, MLP, the stream
after each block; not modules without an output per position and row (rotary tables, convolutions,
single experts).
"""

import re
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers.pytorch_utils import Conv1D

from ...errors import CaptureError
from ..models.model import dimension

LOGITS = "logits"
_LEFT_OUT = (
    nn.Dropout,
    nn.Identity,
    nn.modules.conv._ConvNd,
    nn.ModuleList,
    nn.ModuleDict,
)
_LINEAR = (nn.Linear, Conv1D)
_ATTENTION = re.compile(r"attn|attention", re.IGNORECASE)
_MLP = re.compile(r"mlp|moe|expert|feed_?forward|ffn", re.IGNORECASE)
_NORM = re.compile(r"norm|^ln_", re.IGNORECASE)


@dataclass(frozen=True)
class WatchedModule:
    """One module to record. kind: as in the table `layer`; block: None outside; width: estimated by
    its weights.
    """

    name: str
    module: nn.Module
    kind: str
    block: int | None
    width: int


def watched_modules(model: Any) -> list[WatchedModule]:
    """Return the modules to record, in the model's order.

    CaptureError if the model has no list of blocks.
    """
    config = model.config.get_text_config(decoder=True)
    hidden = dimension(config, "hidden_size") or 1
    prefix, _ = _blocks_of(model, "; leave --layers out")
    owner_name = prefix.rpartition(".")[0]
    modules = []
    for name, module in model.get_submodule(owner_name).named_modules(prefix=owner_name):
        block, place = None, ""
        if name.startswith(f"{prefix}."):
            number, _, place = name.removeprefix(f"{prefix}.").partition(".")
            block = int(number)
        # each sees the tokens routed to it, in another order
        is_of_experts = "experts" in name.split(".")[:-1]
        is_rotary = "rotary" in type(module).__name__.lower()
        if name == owner_name or is_of_experts or is_rotary or isinstance(module, _LEFT_OUT):
            continue
        is_block = block is not None and not place
        kind = "residual" if is_block else _kind(place, name, module)
        # an activation in a mixer, whose axes have another order
        if kind == "other" and not _has_weights(module):
            continue
        width = hidden
        if isinstance(module, nn.Linear):
            width = module.out_features
        elif isinstance(module, Conv1D):
            width = module.nf
        elif kind == "mlp" and not _has_weights(module):
            # an activation
            width = dimension(config, "intermediate_size") or 4 * hidden
        modules.append(WatchedModule(name, module, kind, block, width))
    return modules


def traced_modules(model: Any) -> dict[str, nn.Module]:
    """Return the embedding, every block with its direct children, and the modules after the blocks,
    by name.
    """
    prefix, blocks = _blocks_of(model)
    owner_name = prefix.rpartition(".")[0]
    modules = {}
    for child_name, child in model.get_submodule(owner_name).named_children():
        path = f"{owner_name}.{child_name}".lstrip(".")
        if child is not blocks:
            modules[path] = child
            continue
        for index, block in enumerate(blocks):
            for part_name, part in block.named_children():
                modules[f"{path}.{index}.{part_name}"] = part
            modules[f"{path}.{index}"] = block
    return modules


def _blocks_of(model: Any, fix: str = "") -> tuple[str, nn.ModuleList]:
    count = dimension(model.config.get_text_config(decoder=True), "num_hidden_layers")
    for name, module in model.named_modules():
        if count and isinstance(module, nn.ModuleList) and len(module) == count:
            return name, module
    raise CaptureError(f"a {type(model).__name__} has no list of {count} blocks{fix}.")


def _kind(place: str, name: str, module: nn.Module) -> str:
    """Return the kind of a module. place: its name within its block, empty outside the blocks."""
    last = name.rpartition(".")[2]
    kind = type(module).__name__
    if isinstance(module, nn.Embedding) or "Embedding" in kind:
        return "embedding"
    if _NORM.search(kind) or _NORM.search(last):
        return "norm"
    if not place:
        return "other"
    parent = place.rpartition(".")[0]
    if _ATTENTION.search(parent):
        return "projection" if isinstance(module, _LINEAR) else "other"
    # Its name first: a Qwen2MoeAttention is no mixture of experts.
    for text in (place, kind):
        if _ATTENTION.search(text):
            return "attention"
        if _MLP.search(text):
            return "mlp"
    # Two linear maps and an activation that stand in the block itself are its MLP (OPT); a mixer's
    # own parts are neither.
    is_of_mlp = isinstance(module, _LINEAR) or not _has_weights(module)
    return "mlp" if is_of_mlp and not parent else "other"


def _has_weights(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None
