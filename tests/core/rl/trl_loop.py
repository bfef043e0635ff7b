"""A GRPO loop of TRL on a CPU, run by a Python that has TRL: the small model, with a rollout engine
in bfloat16.

python -m tests.core.rl.trl_loop STEP: from this step on the engine samples at a temperature of 0.7;
-1: never. Prints one JSON object: figures by step, and warnings.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from pathlib import Path

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from core.rl import MismatchMixin

MODEL = str(Path(__file__).resolve().parents[3] / "sample_runs" / "model")
PROMPTS = ["def parse(", "import os\n", "class A:", "for i in"]
TOKENS = 16


class Trainer(MismatchMixin, GRPOTrainer):
    """TRL's trainer with the check."""


class Warnings(logging.Handler):
    """Messages of ulpscope's logger."""

    def __init__(self):
        super().__init__()
        self.messages = []

    def emit(self, record):
        self.messages.append(record.getMessage())


def main(fault_step):
    """Train for five steps and print what was measured."""
    torch.manual_seed(0)
    engine = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.bfloat16)
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token

    @torch.no_grad()
    def roll_out(prompts, trainer):
        engine.load_state_dict(trainer.accelerator.unwrap_model(trainer.model).state_dict())
        temperature = 0.7 if trainer.state.global_step >= fault_step >= 0 else 1.0
        output = {
            "prompt_ids": [],
            "completion_ids": [],
            "logprobs": [],
        }
        for prompt in prompts:
            ids, cache, tokens, values = tokenizer(prompt)["input_ids"], None, [], []
            given = torch.tensor([ids])
            for _ in range(TOKENS):
                result = engine(given, past_key_values=cache, use_cache=True)
                cache, logits = result.past_key_values, result.logits[0, -1].float()
                given = torch.multinomial((logits / temperature).softmax(-1), 1)[None]
                tokens.append(int(given))
                values.append(float((logits / temperature).log_softmax(-1)[tokens[-1]]))
            for name, value in zip(output, (ids, tokens, values), strict=True):
                output[name].append(value)
        return output

    warnings = Warnings()
    logging.getLogger("ulpscope").addHandler(warnings)
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder,
            max_steps=5,
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=TOKENS,
            use_cpu=True,
            bf16=False,
            report_to=[],
            logging_steps=1,
            learning_rate=1e-5,
            save_strategy="no",
        )
        trainer = Trainer(
            model=MODEL,
            args=config,
            reward_funcs=lambda completions, **_: [float(len(set(each))) for each in completions],
            train_dataset=Dataset.from_dict({"prompt": PROMPTS * 8}),
            processing_class=tokenizer,
            rollout_func=roll_out,
        )
        trainer.train()
    means = [
        row["mismatch/mean_abs"] for row in trainer.state.log_history if "mismatch/mean_abs" in row
    ]
    print(json.dumps({"mean_abs": means, "warnings": warnings.messages}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
