"""A capture of a pair, stored and analysed, over the two bare forwards that it cannot do
without.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

from benchmarks.random_models import random_prompt
from benchmarks.scratch import scratch
from benchmarks.timing import Line, interleaved
from core.capture_request import CaptureRequest
from core.inference.capture.capture import plan_capture, run_capture
from core.inference.models.model import load_model
from core.inference.paths.batch import ignore
from core.inference.paths.engines import side_of
from core.runs.store.store import Store
from core.runs.writer import RunWriter

SHIPPED = Path(__file__).parents[1] / "sample_runs" / "model"
TOKENS = 512


def run() -> list[Line]:
    """The model is ULPSCOPE_BENCH_MODEL, else the shipped one."""
    folder = os.environ.get("ULPSCOPE_BENCH_MODEL") or SHIPPED
    loaded = load_model(str(folder), dtype="bfloat16")
    length = min(TOKENS, loaded.context or TOKENS)
    ids = random_prompt(loaded, length)
    lines = []
    with scratch() as name:
        store = Store(name)
        for variant in ("decode", "prefill+batch:4"):
            plan = plan_capture(
                loaded,
                [ids],
                CaptureRequest(model=loaded.name, variants=(variant,)),
            )

            def capture(plan=plan):
                with RunWriter(store, plan.header) as writer:
                    run_capture(plan, writer)
                    # else seven runs would be on the disk
                    store.delete(writer.finish())

            def bare(plan=plan):
                with torch.inference_mode():
                    for path in plan.paths:
                        side_of(str(path)).run_on(loaded)(ids, ignore)

            bare()
            seconds = interleaved({"capture": capture, "bare": bare}, 7)
            lines.append(
                Line(
                    f"capture of prefill and {variant}, {length} tokens",
                    "<= 1.1x",
                    f"{seconds['capture'] / seconds['bare']:.2f}x",
                    f"{seconds['capture']:.2f} s over {seconds['bare']:.2f} s of bare forwards, "
                    f"{loaded.dtype}, vocabulary {loaded.vocab_size}; medians of 7",
                ),
            )
    return lines
