"""Fresh against cached and batch 1 against N at the shapes of an 8B model, with random weights:
what differs, and what it costs.

    python -m benchmarks.gpu                         # 8B shapes on the CUDA device
    pytest -m gpu tests/core/inference               # the tests that need one
    # the same code on a processor, in seconds
    python -m benchmarks.gpu --shape tiny --device cpu --tokens 64

Nothing is downloaded. Printed is a JSON object per pair, then a table: differing logits, largest
difference, flips, and the wall time of the capture (stored and analysed) over that of the two bare
forwards.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.random_models import SHAPES, random_model, random_prompt
from benchmarks.scratch import scratch
from core.capture_request import CaptureRequest
from core.inference.capture.capture import plan_capture, run_capture
from core.inference.models.model import LoadedModel
from core.inference.paths.batch import ignore
from core.inference.paths.paths import open_path, parse_path
from core.runs.reader import RunReader
from core.runs.store.store import Store
from core.runs.writer import RunWriter

PAIRS = (
    ("prefill", ("decode",)),
    ("prefill", ("blocks:16", "reuse:31")),
    ("prefill", tuple(f"prefill+batch:{n}" for n in (2, 4, 8))),
    ("decode", tuple(f"decode+batch:{n}" for n in (2, 3, 4, 8, 16, 33))),
)


def _wait(loaded: LoadedModel) -> None:
    if loaded.device.startswith("cuda"):
        # kernels run after the call that launched them has returned
        torch.cuda.synchronize(loaded.device)


def bare_seconds(loaded: LoadedModel, paths: Sequence[str], ids: Sequence[int]) -> float:
    """The forwards alone: logits are computed and dropped."""
    with torch.inference_mode():
        _wait(loaded)
        began = time.perf_counter()
        for path in paths:
            with open_path(parse_path(path), loaded) as run:
                run(ids, ignore)
        _wait(loaded)
        return time.perf_counter() - began


def measure(
    loaded: LoadedModel,
    reference: str,
    variants: Sequence[str],
    ids: Sequence[int],
    store: Store,
) -> list[dict[str, Any]]:
    """One run of these sides, and its figures: one object per pair."""
    paths = (reference, *variants)
    # the first call chooses kernels and takes memory
    bare_seconds(loaded, paths, ids)
    bare = bare_seconds(loaded, paths, ids)
    began = time.perf_counter()
    request = CaptureRequest(model=loaded.name, reference=reference, variants=tuple(variants))
    plan = plan_capture(loaded, [ids], request, command="python -m benchmarks.gpu")
    with RunWriter(store, plan.header) as writer:
        run_capture(plan, writer)
        path = store.path_of(writer.finish())
    wall = time.perf_counter() - began
    with RunReader(path) as run:
        classes = run.classes
        return [
            {
                "reference": pair.reference,
                "variant": pair.variant,
                "positions": run.header.rows,
                "vocab": run.header.vocab,
                "neq": pair.summary.neq,
                "neq_share": pair.summary.neq_share,
                "max_abs": pair.summary.max_abs,
                "max_ulps": pair.summary.max_ulps,
                "flips": pair.summary.flips,
                "classes": classes,
                "run_id": run.run_id,
                "device": loaded.device_name,
                "torch": torch.__version__,
                "capture_seconds": wall,
                "bare_seconds": bare,
                "overhead": wall / bare,
            }
            for pair in run.pairs
        ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--shape", choices=list(SHAPES), default="8b")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, or cpu for a small shape")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--tokens", type=int, default=512)
    options = parser.parse_args()
    loaded = random_model(options.shape, dtype=options.dtype, device=options.device)
    ids = random_prompt(loaded, options.tokens)
    lines = []
    with scratch() as folder:
        store = Store(folder)
        for reference, variants in PAIRS:
            lines += measure(loaded, reference, variants, ids, store)
            print(*map(json.dumps, lines[-len(variants) :]), sep="\n", flush=True)
            # else the runs of all pairs would be on the disk
            store.delete(lines[-1]["run_id"])
    print("", *_table(lines), sep="\n")


def _table(lines: Sequence[dict[str, Any]]) -> list[str]:
    """Markdown, one row per pair."""
    rows = [
        f"| `{line['reference']}` | `{line['variant']}` | {line['neq_share']:.2%} |"
        f" {line['max_abs']:.3g} | {line['max_ulps']:,} | {line['flips']} |"
        f" {line['overhead']:.2f}x |"
        for line in lines
    ]
    return [
        (
            "| reference | variant | differing logits | largest difference | in ULPs | flips |"
            " capture over forwards |"
        ),
        "|---" * 7 + "|",
        *rows,
    ]


if __name__ == "__main__":
    main()
