"""Costs of a planned capture in forwards, memory and disk, by walking each path without
computing.
"""

from typing import Any

import torch
from transformers import DynamicCache

from ...numerics.arrays import Record
from ...numerics.formats import format_named
from ..models.dtypes import experts_by
from ..models.model import LoadedModel
from ..models.torch_errors import quiet
from .capture import CapturePlan, free_beside_weights


def costs_of(plan: CapturePlan) -> Record:
    """Return the costs of a plan as an object of JSON; its model may have no weights.

    tokens: with rows and padding; kv_bytes: 0 without a cache, None if unknown; logits_bytes: of
    all sides; file_bytes: an estimate.
    """
    loaded = plan.loaded
    header = plan.header
    longest = max(map(len, plan.token_ids))
    sides: list[Record] = []
    for side, path in zip(header.sides, plan.paths, strict=True):
        walks = []
        for number, ids in enumerate(plan.token_ids):
            given = plan.generations[number].given_positions if plan.generations else len(ids)
            walk = path.forwards(loaded, given) + [1] * (len(ids) - given)
            # a continuation is computed to find and to store it
            walks.append(walk * 2 if plan.generations else walk)
        has_cache = path.reads_cache or plan.has_kv
        cache_bytes = _cache_bytes(loaded, longest + sum(path.padding)) if has_cache else 0
        ratio = format_named(path.compute_dtype(loaded)).itemsize / loaded.torch_dtype.itemsize
        sides.append(
            {
                "name": side.name,
                "path": side.path,
                "forwards": sum(map(len, walks)),
                "positions": header.rows,
                "tokens": path.rows * sum(map(sum, walks)),
                "kv_bytes": None if cache_bytes is None else int(cache_bytes * path.rows * ratio),
            },
        )
    sizes = [side["kv_bytes"] for side in sides]
    return {
        "prompts": len(header.prompts),
        "positions": header.rows,
        "vocab": header.vocab,
        "sides": sides,
        "logits_bytes": len(sides) * header.side_bytes,
        "file_bytes": header.file_bytes,
        "keep": header.keep,
        "weight_bytes": loaded.weight_bytes,
        "kv_bytes": None if None in sizes else max(sizes),
        "free_bytes": free_beside_weights(loaded),
        "has_kv": plan.has_kv,
        "forwards": sum(side["forwards"] for side in sides),
        "tokens": sum(side["tokens"] for side in sides),
    }


def _cache_bytes(loaded: LoadedModel, columns: int) -> int | None:
    """Return the bytes of a row's keys and values, by a forward on the meta device; None if it
    cannot run there.
    """
    model: Any = loaded.model
    if not next(model.parameters()).is_meta:
        return None
    cache = DynamicCache(config=model.config)
    ids = torch.zeros((1, columns), dtype=torch.long, device="meta")
    try:
        # experts count their tokens, unless they multiply in one batch; shapes are the same
        with experts_by(model, "batched_mm"), quiet(), torch.inference_mode():
            model(input_ids=ids, past_key_values=cache, use_cache=True)
    except Exception:
        # code that branches on values has no estimate, and the capture still runs
        return None
    tensors = [getattr(layer, kind, None) for layer in cache.layers for kind in ("keys", "values")]
    return sum(tensor.nbytes for tensor in tensors if isinstance(tensor, torch.Tensor))
