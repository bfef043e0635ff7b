"""Logits of two sides of a model, as a dump has them."""

import torch

from core.inference.paths.engines import side_of, whole_side


def side_arrays(
    loaded,
    prompts,
    reference,
    variant,
):
    """Each side's logits in the model's dtype, in float32 clothing. [positions, vocab]"""
    arrays = {}
    for name, engine in (("reference", reference), ("variant", variant)):
        with torch.inference_mode():
            rows = [whole_side(side_of(engine).run_on(loaded), ids) for ids in prompts]
        arrays[name] = torch.cat(rows).float().numpy()
    return arrays
