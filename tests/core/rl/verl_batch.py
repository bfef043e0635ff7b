"""`verl_metrics` on batches of verl, run by a Python that has verl.

The batches are those of verl's trainers: a `DataProto` of padded tensors (ray_trainer.py), one that
has the mask of prompt and response alone, and padded nested tensors with entropy
(v1/trainer_base.py). Prints one JSON object: by batch, the metrics, and what torch computes over
the tokens of the loss; and the warnings.
"""

from __future__ import annotations

import json
import logging

import torch
from tensordict import TensorDict
from verl import DataProto
from verl.utils.debug import metrics

from core.rl import verl_metrics

PROMPT = 5
LENGTHS = [40, 31, 24, 40, 12, 40]
TEMPERATURE = 0.7


def main():
    """Sample tokens of random logits at a temperature, score them at 1, and check the batches."""
    warnings = []
    # a filter that keeps every record
    logging.getLogger("ulpscope").addFilter(
        lambda record: warnings.append(record.getMessage()) or True,
    )
    metrics.calculate_debug_metrics = verl_metrics(metrics.calculate_debug_metrics)
    # as ray_trainer.py does at each step
    from verl.utils.debug.metrics import calculate_debug_metrics

    torch.manual_seed(0)
    shape = len(LENGTHS), max(LENGTHS)
    logits = 3 * torch.randn(*shape, 50)
    trainer = logits.log_softmax(-1)
    noisy = logits + 0.01 * torch.randn_like(logits)
    lengths = torch.tensor(LENGTHS)[:, None]
    mask = (torch.arange(shape[1]) < lengths).long()
    results = {}
    for name, temperature in (
        ("clean", 1.0),
        ("attention mask", 1.0),
        ("nested", TEMPERATURE),
    ):
        rollout = (noisy / temperature).log_softmax(-1)
        responses = torch.multinomial(rollout.exp().flatten(0, 1), 1).view(shape)
        sides = [side.gather(-1, responses[..., None])[..., 0] for side in (rollout, trainer)]
        batch = {
            "responses": responses,
            "rollout_log_probs": sides[0],
            "old_log_probs": sides[1],
        }
        batch = {key: torch.where(mask == 1, value, 0) for key, value in batch.items()}
        if name == "nested":
            entropy = -(trainer.exp() * trainer).sum(-1)
            values = batch | {"response_mask": mask, "entropy": entropy}
            ragged = {
                key: torch.nested.nested_tensor(
                    [v[:n] for v, n in zip(value, LENGTHS, strict=True)],
                    layout=torch.jagged,
                )
                for key, value in values.items()
            }
            data = DataProto(batch=TensorDict(ragged, batch_size=len(LENGTHS)).to_padded_tensor())
        else:
            prompt = torch.ones(len(LENGTHS), PROMPT, dtype=torch.long)
            masks = {"response_mask": mask}
            # the mask of prompt and response is all that some batches of verl have
            if name == "attention mask":
                masks = {"attention_mask": torch.cat([prompt, mask], 1)}
            data = DataProto.from_dict(batch | {"prompts": prompt} | masks)
        r = (sides[1] - sides[0])[mask == 1].double()
        torch_figures = {
            "mean_abs": float(r.abs().mean()),
            "k3": float((r.expm1() - r).mean()),
        }
        warnings.clear()
        result = calculate_debug_metrics(data)
        results[name] = {
            "metrics": result,
            "torch": torch_figures,
            "warnings": list(warnings),
        }
    print(json.dumps(results))


if __name__ == "__main__":
    main()
