"""Throughput of looking for a flip, over the loop that people write by hand with transformers."""

from __future__ import annotations

import torch
from transformers import DynamicCache

from benchmarks.capture import model_folder
from benchmarks.timing import Line, interleaved
from core.inference.generating.search import search
from core.inference.models.model import load_model

PROMPTS, TOKENS = 24, 48


def run() -> list[Line]:
    folder = model_folder()
    if folder is None:
        return [Line("search for a flip", ">= 1x by hand", "not run", "sample_runs/model is not built")]
    loaded = load_model(str(folder), dtype="bfloat16")
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(1, loaded.token_limit, (PROMPTS, TOKENS), generator=generator).tolist()

    def by_hand() -> None:
        with torch.inference_mode():
            for ids in prompts:
                whole = loaded.model(torch.tensor([ids])).logits[0].argmax(-1)
                cache, steps = DynamicCache(config=loaded.model.config), []
                for token in ids:
                    out = loaded.model(torch.tensor([[token]]), past_key_values=cache, use_cache=True)
                    steps.append(out.logits[0, -1].argmax())
                assert len(torch.stack(steps)) == len(whole)

    positions = 0

    def ours() -> None:
        nonlocal positions
        positions = search(loaded, prompts, "prefill", "decode", flips=PROMPTS + 1).positions

    ours()
    seconds = interleaved({"search": ours, "by hand": by_hand}, 5)
    return [
        Line(
            "search for a flip, prefill and decode",
            ">= 1x by hand",
            f"{seconds['by hand'] / seconds['search']:.2f}x",
            f"{PROMPTS / seconds['search'] * 60:.0f} prompts of {TOKENS} tokens a minute"
            f" ({positions / seconds['search']:.0f} positions/s), margins included; the loop by hand takes"
            f" {seconds['by hand']:.2f} s; medians of 5",
        )
    ]
