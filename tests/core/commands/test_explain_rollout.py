"""`explain --model` on sampled tokens: which side computes what the checkpoint does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from core.commands import explaining
from core.errors import UsageError
from core.inference.models.model import load_model
from core.judging.explain.rollouts import rescored
from core.judging.ingest import ingest
from core.runs.file.evidence import ListFloorFigures
from core.runs.reader import RunReader
from core.runs.store.store import Store

NAMES = ("rollout", "trainer")
MODEL = Path(__file__).resolve().parents[3] / "sample_runs" / "model"


def load(dtype: str):
    return load_model(str(MODEL), dtype=dtype, device="cpu")


def floor(reference: float, variant: float) -> ListFloorFigures:
    return ListFloorFigures(
        compute_dtype="bfloat16",
        noise_ratio=1.0,
        worst_position_ratio=1.0,
        reference_noise_ratio=reference,
        variant_noise_ratio=variant,
    )


@pytest.mark.parametrize(
    ("bfloat16", "float32", "name"),
    [
        ((1.1, 1.3), (6000, 5000), "rounding"),
        ((1.1, 1.0), (6000, 0.9), "numerics of two settings"),
        ((1.1, 240), (6000, 9000), "one side"),
        ((90, 240), (6000, 9000), "another checkpoint"),
    ],
)
def test_each_side_counts_in_the_dtype_in_which_it_is_nearest(bfloat16, float32, name):
    cause = rescored({"bfloat16": floor(*bfloat16), "float32": floor(*float32)}, NAMES, "M")
    assert cause.name == name, cause
    assert cause.parameters["noise_floors"]["trainer"] == {"bfloat16": bfloat16[1], "float32": float32[1]}


def sampled_rows(change: float) -> list[dict[str, object]]:
    """Responses of the small model in bfloat16, scored by a trainer in float32 whose weights are changed so much."""
    engine, trainer = load("bfloat16").model, load("float32").model
    torch.manual_seed(0)
    rows = []
    with torch.no_grad():
        for weight in trainer.parameters():
            weight += change * weight.std() * torch.randn_like(weight) if weight.numel() > 1 else 0
        for number in range(2):
            ids = torch.randint(0, 100, (1, 8))
            for _ in range(12):
                drawn = torch.multinomial(engine(ids).logits[0, -1].float().softmax(-1), 1)
                ids = torch.cat([ids, drawn[None]], 1)
            sides = [model(ids).logits[0].float().log_softmax(-1) for model in (engine, trainer)]
            values = [[0.0, *(float(side[at - 1, ids[0, at]]) for at in range(1, 20))] for side in sides]
            about = {"mask": [0] * 8 + [1] * 12, "sequence": str(number)}
            rows.append({"token_ids": ids[0].tolist(), **dict(zip(NAMES, values, strict=True)), **about})
    return rows


@pytest.mark.model
@pytest.mark.parametrize(("change", "name"), [(0.0, "numerics of two settings"), (0.05, "one side")])
def test_a_checkpoint_names_the_side_that_is_off(change, name, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in sampled_rows(change)))
    store = Store(tmp_path / "runs")
    with RunReader(store.path_of(ingest(store, [path]))) as run:
        (explanation,) = explaining._explain(run, None, None, load, print).values()
    (cause,) = explanation.causes
    assert cause.name == name, cause
    assert cause.parameters["noise_floors"]["rollout"]["bfloat16"] < 4


def test_without_the_prompts_no_model_can_rescore(tmp_path):
    rows = [{"token_ids": [1, 2], "rollout": [-1.0, -2.0], "trainer": [-1.0, -2.1]}]
    (tmp_path / "a.jsonl").write_text(json.dumps(rows[0]))
    store = Store(tmp_path / "runs")
    with (
        RunReader(store.path_of(ingest(store, [tmp_path / "a.jsonl"]))) as run,
        pytest.raises(UsageError, match="prompt_token_ids"),
    ):
        explaining._explain(run, None, None, load, print)
