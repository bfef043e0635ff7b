"""Report C, protocol 1, both ways: the public thread's own lines beside a capture, on attention shapes of Llama-3.1-8B.

python -m benchmarks.verdicts.report_c [--hidden 4096] [--prompt 64] [--response 10]

One layer with random weights and a narrow MLP: layer 0's keys depend on nothing but the embedding, the first norm, one
product and the rotation. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, LlamaConfig

from benchmarks.scratch import scratch
from benchmarks.verdicts.random_models import TOKENIZER
from core.inference.capture.capture import plan_capture, run_capture
from core.inference.models.model import LoadedModel, loaded_from
from core.runs.reader import RunReader
from core.runs.store.store import Store
from core.runs.writer import RunWriter


def model_of(hidden: int) -> LoadedModel:
    """One Llama layer with heads of 128 and a quarter as many key/value heads, in float32, weights of seed 0."""
    heads = hidden // 128
    config = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=256,
        num_hidden_layers=1,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 4),
        vocab_size=4096,
        max_position_embeddings=512,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    return loaded_from(model, AutoTokenizer.from_pretrained(TOKENIZER))


def by_the_thread(loaded: LoadedModel, ids: list[int], prompt: int) -> tuple[int, int]:
    """(elements of layer 0's keys that differ, all of them): the cache of one forward against prompt first and response
    after it.
    """
    whole, parts = DynamicCache(config=loaded.model.config), DynamicCache(config=loaded.model.config)
    with torch.inference_mode():
        loaded.model(torch.tensor([ids]), past_key_values=whole, use_cache=True)
        loaded.model(torch.tensor([ids[:prompt]]), past_key_values=parts, use_cache=True)
        loaded.model(torch.tensor([ids[prompt:]]), past_key_values=parts, use_cache=True)
    keys = whole.layers[0].keys
    return int((keys != parts.layers[0].keys).sum()), keys.numel()


def by_a_capture(loaded: LoadedModel, ids: list[int], prompt: int, store: Store) -> tuple[int, int]:
    """The same out of the run file of `prefill : reuse:PROMPT`."""
    plan = plan_capture(loaded, [ids], "prefill", [f"reuse:{prompt}"])
    with RunWriter(store, plan.header) as writer:
        run_capture(plan, writer)
        path = store.path_of(writer.finish())
    with RunReader(path) as run:
        table = run.kv(0)
        keys = table[(table["layer"] == 0) & (table["kind"] == "key")]
        return int(keys["neq"].sum()), int(keys["elements"].sum())


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--response", type=int, default=10)
    given = parser.parse_args(arguments)
    loaded = model_of(given.hidden)
    ids = torch.randint(4096, (given.prompt + given.response,), generator=torch.Generator().manual_seed(0)).tolist()
    with scratch() as folder:
        for name, (neq, elements) in (
            ("the thread's own lines", by_the_thread(loaded, ids, given.prompt)),
            (f"prefill : reuse:{given.prompt}", by_a_capture(loaded, ids, given.prompt, Store(folder))),
        ):
            print(f"{name}: {neq:,} of {elements:,} elements of layer 0's keys differ")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
