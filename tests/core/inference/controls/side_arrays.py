"""Logits of two sides of a model, as a dump has them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from core.inference.models.model import LoadedModel
from core.inference.paths.engines import Engine, side_of, whole_side


def side_arrays(
    loaded: LoadedModel,
    prompts: Sequence[Sequence[int]],
    reference: str | Engine,
    variant: str | Engine,
) -> dict[str, np.ndarray]:
    """Each side's logits in the model's dtype, in float32 clothing. [positions, vocab]"""
    arrays = {}
    for name, engine in (("reference", reference), ("variant", variant)):
        with torch.inference_mode():
            rows = [whole_side(side_of(engine).run_on(loaded), ids) for ids in prompts]
        arrays[name] = torch.cat(rows).float().numpy()
    return arrays
