"""Rollouts that llama.cpp and vLLM sampled (`benchmarks.verdicts.sampling` makes them), with causes
in them.
"""

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from core.judging.ingest import ingest
from core.judging.stored import explain_pair
from core.runs.store.store import Store
from tests.core.runs.made_runs import opened
from tests.json_lines import read_lines, write_lines
from tests.places import ROLLOUTS

FOLDER = ROLLOUTS / "engines"
CLEAN, WEIGHTS, INPUTS = "no cause", "quantized weights", "other inputs"
# what a checkpoint says of sides that it accounts for
NO_CAUSE = ("rounding", "numerics of two settings")
Row = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A rollout with a cause in it. expected: names of causes that are right, none for a clean
    pair.
    """

    cause: str
    strength: str
    expected: tuple[str, ...]
    rows: list[Row]

    @property
    def needs_model(self):
        return self.cause in (WEIGHTS, INPUTS)


def rows_of(name):
    return read_lines(FOLDER / f"{name}.jsonl")


def sampled():
    """Yield rollouts whose cause is in the engine, in the trainer's weights or in what it was
    fed.
    """
    for engine in ("llamacpp-bfloat16", "llamacpp-float32", "vllm-bfloat16", "vllm-float32"):
        rows = rows_of(engine)
        yield Case(CLEAN, f"{engine}, trainer bfloat16", (), rows)
        yield Case(
            CLEAN,
            f"{engine}, trainer float32",
            (),
            changed(rows, trainer=lambda row: row["trainer_float32"]),
        )
    for cause, expected in (
        ("temperature", ("temperature",)),
        ("top-p", ("renormalized",)),
        ("top-k", ("renormalized",)),
        ("min-p", ("renormalized",)),
        ("lag", ("lag",)),
        ("weights", ("one side",)),
    ):
        for path in sorted(FOLDER.glob(f"{cause}-*.jsonl")):
            strength = path.stem.removeprefix(f"{cause}-")
            yield Case(
                WEIGHTS if cause == "weights" else cause,
                strength,
                expected,
                rows_of(path.stem),
            )
    rows = rows_of("vllm-bfloat16")
    for inputs in ("two_bos", "system_message", "no_generation_prompt"):
        fed = changed(rows, trainer=lambda row, inputs=inputs: row[inputs])
        yield Case(INPUTS, inputs.replace("_", " "), ("one side",), fed)


def planted():
    """Yield rollouts with a cause planted in their values."""
    rows, exact = rows_of("vllm-bfloat16"), rows_of("vllm-float32")
    for shift in (1, -1, 2):
        moved = changed(
            rows,
            trainer=lambda row, shift=shift: np.roll(row["trainer"], -shift).tolist(),
        )
        yield Case("off by one", f"{shift:+}", ("shifted",), moved)
    rng = np.random.default_rng(0)
    for value, share in (
        (0.0, 0.03),
        (-9999.0, 0.1),
        (None, 0.5),
    ):
        holes = changed(
            rows,
            rollout=lambda row, value=value, share=share: [
                value if rng.random() < share else own for own in row["rollout"]
            ],
        )
        yield Case("placeholders", f"{value} at {share:.0%}", ("placeholders", "missing"), holes)
    first = changed(
        rows,
        trainer=lambda row: [row["no_generation_prompt"][0], *row["trainer"][1:]],
    )
    last = changed(
        rows,
        trainer=lambda row: [*row["trainer"][:-1], row["trainer"][-2]],
    )
    yield Case("part of the response", "first token", ("part of the response",), first)
    yield Case("part of the response", "last token", ("part of the response",), last)
    turns = [row for row in rows if len(row["token_ids"]) > 20]
    later = changed(
        turns,
        mask=lambda row: [int(not 12 <= at < 16) for at in range(len(row["token_ids"]))],
        trainer=lambda row: [*row["trainer"][:16], *np.roll(row["trainer"][16:], -1).tolist()],
    )
    yield Case(
        "part of the response",
        "after a tool's turn",
        ("part of the response", "retokenized"),
        later,
    )
    for side, name in (
        ("rollout", "bfloat16"),
        ("trainer", "bfloat16"),
        ("rollout", "float16"),
    ):
        wide = changed(exact, trainer=lambda row: row["trainer_float32"])
        coarse = changed(wide, **{side: partial(in_dtype, side=side, name=name)})
        yield Case("coarser grid", f"{name} {side}", ("rounded",), coarse)


def in_dtype(row, side, name):
    """Values of a side as a 16-bit dtype stores them."""
    dtype = getattr(torch, name)
    return torch.tensor(row[side]).to(dtype).double().tolist()


def changed(rows, **columns):
    """Rows with some of their columns replaced by functions of the row."""
    return [
        {
            **row,
            **{name: values(row) for name, values in columns.items()},
        }
        for row in rows
    ]


def cause_of(case, model=None):
    """Name and sentence of the cause that `explain` gives for a case, both "" if it gives none."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_lines(Path(folder) / "rollout.jsonl", case.rows)
        store = Store(Path(folder) / "runs")
        run_id = ingest(store, [path])
        if model:
            words = ("explain", run_id, "--model", model, "--store", str(store.directory), "--json")
            done = subprocess.run(
                [sys.executable, "-m", "core", *words],
                stdout=subprocess.PIPE,
                check=True,
            )
            causes = json.loads(done.stdout)["pairs"][0]["causes"]
        else:
            with opened(store, run_id) as run:
                causes = [cause.to_json() for cause in explain_pair(run, 0).causes]
    causes = [cause for cause in causes if cause["name"] not in NO_CAUSE]
    return (causes[0]["name"], causes[0]["text"]) if causes else ("", "")
