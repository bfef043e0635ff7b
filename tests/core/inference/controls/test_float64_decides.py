"""When float64 decides: not of an engine that keeps float32, or a part of it, and of a fault in one layer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.verdicts.engines import hooked, prefill, walk
from benchmarks.verdicts.mutations import scaled_value
from benchmarks.verdicts.tiny_models import tiny_model, tiny_prompts
from core.inference.models.dtypes import in_float64
from core.inference.models.model import LoadedModel
from core.runs.file.evidence import FLOAT32, PASSED

pytestmark = pytest.mark.model


def holding_float32(loaded: LoadedModel, forward: Callable[[Any, torch.Tensor], torch.Tensor]) -> Any:
    """An engine with float32 weights of its own, as a server has."""
    held = copy.deepcopy(loaded.model)
    return lambda _, ids: forward(held, ids)


def table_by_recurrence(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Rotary tables in float32, each row from the one before by the addition theorem."""

    def change(_: Any, tables: Any) -> Any:
        cos, sin = (table[0, 1].numpy().astype(np.float32) for table in tables)
        rows = [(np.ones_like(cos), np.zeros_like(sin))]
        for _ in range(len(ids) - 1):
            c, s = rows[-1]
            rows.append((c * cos - s * sin, s * cos + c * sin))
        return tuple(torch.from_numpy(np.stack(table))[None].to(tables[0].dtype) for table in zip(*rows, strict=True))

    with hooked(model.model.rotary_emb, change):
        return prefill(model, ids)


@pytest.fixture(scope="module")
def experts() -> LoadedModel:
    return tiny_model("mixtral")


def test_experts_of_an_engine_that_answers_in_float32_are_rounding(experts, judged) -> None:
    engine = holding_float32(experts, lambda model, ids: walk(model, ids, [7, 20]))
    verdict = judged(experts, tiny_prompts(experts), "prefill", engine)
    assert verdict.name == "rounding"
    (row,) = (row for row in verdict.evidence if row.group == FLOAT32)
    assert (row.outcome, row.figures.compute_dtype) == (PASSED, "float32")
    assert verdict.noise_ratio == row.figures.noise_ratio < 1


def test_a_fault_of_such_an_engine_is_decided_in_float32(experts, judged) -> None:
    engine = holding_float32(experts, scaled_value(1.01))
    verdict = judged(experts, tiny_prompts(experts), "prefill", engine)
    assert verdict.is_bug_suspected
    assert verdict.noise_ratio is not None
    assert 100 < verdict.noise_ratio < 1e5


def test_experts_whose_rotary_table_stays_in_float32_are_rounding(experts, judged) -> None:
    verdict = judged(experts, tiny_prompts(experts), "prefill", table_by_recurrence)
    assert verdict.name == "rounding"


def test_an_engines_own_float32_stays_float32_beside_a_model_in_float64(small: LoadedModel) -> None:
    seen = []

    def engine(model: Any, ids: torch.Tensor) -> torch.Tensor:
        states = model.model(input_ids=ids[None], use_cache=False).last_hidden_state[0]
        seen.append((model.dtype, states.dtype, states.float().dtype))
        return model.lm_head(states)

    with in_float64(small) as widened, torch.inference_mode():
        engine(widened.model, torch.tensor(tiny_prompts(small)[0]))
    assert seen[-1] == (torch.float64, torch.float64, torch.float32)
