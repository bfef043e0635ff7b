"""A side that does not repeat its own bits: by rounding, or by more."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks.verdicts.engines import Engine, prefill
from benchmarks.verdicts.tiny_models import tiny_model, tiny_prompts
from benchmarks.verdicts.variations import nondeterministic_sums
from core.inference.controls.judge_model import judge
from core.runs.file.evidence import FLOAT32, RERUN, Evidence, RerunFigures, Verdict

pytestmark = pytest.mark.model


def freed_buffer(dtype: torch.dtype, place: int = 7) -> Engine:
    """Every other call of each prompt reads one logit that something else wrote over."""
    calls: dict[tuple[int, ...], int] = {}

    def engine(model: Any, ids: torch.Tensor) -> torch.Tensor:
        logits = prefill(model, ids).clone()
        key = tuple(ids.tolist())
        if model.dtype == dtype:
            calls[key] = calls.get(key, 0) + 1
            if not calls[key] % 2:
                logits[place, 3] += 12.6
        return logits

    return engine


def rerun_of(verdict: Verdict) -> tuple[Evidence, RerunFigures]:
    row = next(row for row in verdict.evidence if row.group == RERUN)
    assert isinstance(row.figures, RerunFigures)
    return row, row.figures


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_rerun_beyond_the_noise_floor_is_a_bug(dtype: str) -> None:
    loaded = tiny_model("llama", dtype)
    verdict = judge(loaded, tiny_prompts(loaded), reference="prefill", variant=freed_buffer(loaded.torch_dtype))
    row, figures = rerun_of(verdict)
    assert verdict.is_bug_suspected
    assert figures.beyond_noise_floor
    assert figures.rerun_worst_position_ratio > figures.largest_ratio_allowed
    assert row.says == verdict.because
    assert "position 7" in row.says


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sums_in_another_order_at_every_call_stay_nondeterministic(dtype: str) -> None:
    loaded = tiny_model("llama", dtype)
    verdict = judge(loaded, tiny_prompts(loaded), reference="prefill", variant=nondeterministic_sums)
    _, figures = rerun_of(verdict)
    assert verdict.name == "nondeterministic"
    assert figures.beyond_noise_floor is False
    assert 0 < figures.rerun_noise_ratio < 2


def test_another_check_that_fails_is_the_bug(small: Any) -> None:
    def engine(model: Any, ids: torch.Tensor) -> torch.Tensor:
        logits = nondeterministic_sums(model, ids).clone()
        logits[2] = logits[1]
        return logits

    verdict = judge(small, tiny_prompts(small), reference="prefill", variant=engine)
    _, figures = rerun_of(verdict)
    failed = next(each for each in verdict.evidence if each.group == FLOAT32)
    assert verdict.is_bug_suspected
    assert figures.beyond_noise_floor is False
    assert verdict.because.startswith(failed.says.rstrip("."))
