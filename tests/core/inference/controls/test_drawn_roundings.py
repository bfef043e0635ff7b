"""Roundings drawn anew, and what they say of an engine that has nothing but 16 bits."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.verdicts import sixteen
from benchmarks.verdicts.engines import PREFIX, Engine, cache_of, other_tokens, prefill, walk
from benchmarks.verdicts.mutations import MUTATIONS
from benchmarks.verdicts.tiny_models import tiny_prompts
from benchmarks.verdicts.trial import model_named
from benchmarks.verdicts.variations import in_float64
from core.inference.controls import drawn_roundings
from core.inference.controls.drawn_roundings import DRAWS, DrawnRounding, RoundingDraws
from core.inference.controls.judge_model import judge
from core.inference.models.dtypes import in_float32
from core.inference.models.model import LoadedModel
from core.inference.paths.engines import side_of
from core.judging.statistic import BLOCKS
from core.runs.file.evidence import FAILED, MISSING, OWN_DTYPE, PASSED
from tests.covering import few


@pytest.fixture(scope="module")
def held(narrow: LoadedModel) -> Any:
    return copy.deepcopy(narrow.model)


def bug(name: str) -> Engine:
    engine = next(case.engine for case in MUTATIONS if case.name == name)
    assert engine is not None
    return engine


# Draws.


def drawn_forward(loaded: LoadedModel, ids: Any, seed: int) -> torch.Tensor:
    with torch.inference_mode(), DrawnRounding(loaded.torch_dtype, seed):
        return prefill(loaded.model, torch.tensor(ids))


@pytest.mark.model
def test_a_draw_is_the_same_for_its_seed_and_another_for_another(narrow: LoadedModel) -> None:
    first, again, other = (drawn_forward(narrow, range(5, 29), seed) for seed in (3, 3, 4))
    assert first.dtype == torch.bfloat16
    assert torch.equal(first, again)
    assert float((first != other).double().mean()) > 0.5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_what_is_exact_stays_and_what_is_rounded_moves_by_less_than_a_unit(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn((64, 64), generator=generator).to(dtype) for _ in range(2))
    wide = x.float() @ weight.float()
    with DrawnRounding(dtype, 0):
        assert torch.equal(-x, x.neg())
        copies = torch.cat([x, weight]), x[3:5].clone(), torch.nn.functional.embedding(torch.tensor([3, 4]), x)
        found = (x @ weight).float()
        special = torch.tensor([float("nan"), float("inf"), 0.0], dtype=dtype) * 1.5
    assert torch.equal(copies[0], torch.cat([x, weight]))
    assert torch.equal(copies[1], x[3:5])
    assert torch.equal(copies[2], x[3:5])
    assert special[0].isnan()
    assert special[1] == torch.inf
    assert special[2] == 0
    exponent = torch.frexp(wide).exponent
    unit = torch.ldexp(
        torch.ones_like(wide), exponent - (8 if dtype == torch.bfloat16 else 11)
    )  # of the last place, 2^(e - precision)
    off = ((found - wide) / unit).abs()
    assert 0.5 < float(off.max()) <= 0.75 + 1e-3  # nearest stays within 0.5; a quarter of a unit on top
    nearest = wide.to(dtype).float()
    assert 0.1 < float((found != nearest).double().mean()) < 0.4
    bias = float(((found - wide) / unit).mean())
    assert abs(bias) < 4 * 0.33 / np.sqrt(wide.numel())  # no side is preferred


def test_an_error_is_measured_without_what_all_logits_share() -> None:
    """Variances of each row: of a number that all share 0, of 3 1 1 3 it is 1; 1e30 is no NaN, and NaN has no size."""
    pieces: list[Any] = []
    logits = torch.tensor([[7.0, 7, 7, 7], [3, 1, 1, 3], [0, 0, 0, 1e30], [3, 1, float("nan"), 3]])
    drawn_roundings._add_error(torch.zeros(5, 4), pieces, 1, logits)
    assert pieces[0].tolist() == pytest.approx([0, 1, 3 / 16 * 1e60, np.inf], rel=1e-5)


@pytest.mark.model
def test_draws_are_as_large_as_the_models_own_rounding_and_not_like_one_another(narrow: LoadedModel) -> None:
    prompts = tiny_prompts(narrow)
    with torch.inference_mode():
        with in_float32(narrow) as widened:
            exact = torch.cat([prefill(widened.model, torch.tensor(ids)) for ids in prompts])
        draws = [torch.cat([drawn_forward(narrow, ids, seed) for ids in prompts]).float() - exact for seed in range(4)]
        own = [
            torch.cat([engine(narrow.model, torch.tensor(ids)) for ids in prompts]).float() - exact
            for engine in (prefill, decode)
        ]
    rms = [float(each.square().mean().sqrt()) for each in (*own, *draws)]
    assert max(rms) < 1.3 * min(rms)
    alike = np.corrcoef([each.flatten().numpy() for each in (*own, *draws)])
    assert alike[0, 1] > 0.6  # prefill and decode, which round the same values nearly everywhere
    assert np.abs(alike[2:, 2:][~np.eye(4, dtype=bool)]).max() < 0.35
    assert np.abs(alike[:2, 2:]).max() < 0.45


def decode(model: Any, ids: torch.Tensor) -> torch.Tensor:
    return walk(model, ids, range(1, len(ids)))


# What they say.


@pytest.mark.model
@pytest.mark.parametrize(
    "name",
    few(
        ["one layer's cache not updated for one token", "one future key visible to one query"],
        "one future key visible to one query",
    ),
)
def test_a_fault_of_an_engine_of_16_bits_is_a_bug_at_its_position(name: str, narrow, held, judged) -> None:
    """Float32 has nothing to say of it; before, the pair's ratio of 3 stood alone and passed."""
    verdict = judged(narrow, tiny_prompts(narrow), "prefill", lambda _, ids: bug(name)(held, ids))
    assert verdict.is_bug_suspected
    pair, engine = (row for row in verdict.evidence if row.group == OWN_DTYPE)
    assert (pair.outcome, engine.outcome) == (PASSED, FAILED)
    assert verdict.because.startswith(engine.says[:40])
    assert verdict.noise_ratio == engine.figures.noise_ratio
    assert verdict.first_place is not None
    assert verdict.first_place[1] == {"one future key visible to one query": 10}.get(name, verdict.first_place[1])
    assert verdict.first_place[1] >= 10


def stale(model: Any, ids: torch.Tensor, share: float) -> torch.Tensor:
    """One cached slot of all layers is moved by a share of the way to what another request left there."""
    left = cache_of(model, other_tokens(ids)[:PREFIX])

    def after(cache: Any, at: int) -> None:
        for layer, old in zip(cache.layers, left.layers, strict=True):
            layer.keys[:, :, -3] += share * (old.keys[:, :, -3] - layer.keys[:, :, -3])
            layer.values[:, :, -3] += share * (old.values[:, :, -3] - layer.values[:, :, -3])

    return walk(model, ids, [PREFIX], after)


@pytest.mark.thorough
@pytest.mark.model
@pytest.mark.parametrize("share", few([0.004, 0.015, 0.04], 0.015))
def test_a_stale_slot_as_large_as_the_floor_is_seen_at_its_position_or_below_the_stated_limit(
    share: float, narrow: LoadedModel, held: Any
) -> None:
    """0.015 makes a pair of 0.99 times the overall floor in bfloat16."""
    prompts = tiny_prompts(narrow)
    verdict = judge(narrow, prompts, reference="prefill", variant=lambda _, ids: stale(held, ids, share))
    pair, engine = (row for row in verdict.evidence if row.group == OWN_DTYPE)
    if share == 0.015:
        assert pair.figures.noise_ratio == pytest.approx(0.99, abs=0.15)
    if verdict.is_bug_suspected:
        assert share > 0.004
        assert all(place >= PREFIX for place in engine.figures.outliers.get("place in the prompt", []))
        assert verdict.first_place is None or verdict.first_place[1] >= PREFIX
        return
    assert verdict.name == "likely rounding"
    limit = engine.figures.fault_seen_at_one_position
    with torch.inference_mode():
        draws = RoundingDraws(narrow, prompts).measure([]).draws
        with in_float32(narrow) as widened:
            fault = torch.cat(
                [
                    stale(widened.model, torch.tensor(ids), share) - prefill(widened.model, torch.tensor(ids))
                    for ids in prompts
                ]
            )
    size = np.sqrt(fault.double().square().mean(1).numpy() / draws.mean(axis=0))
    assert size.max() < 1.5 * limit  # what is not seen is as small as is said; the rounding it meets may take from it


@pytest.mark.model
def test_draws_that_the_model_itself_does_not_look_like_decide_nothing(
    narrow: LoadedModel, held: Any, monkeypatch
) -> None:
    monkeypatch.setattr(
        drawn_roundings, "draw_of", lambda *_: side_of(lambda model, ids: in_float64(model, ids))
    )  # rounded at the end only
    side = side_of(lambda _, ids: bug("one future key visible to one query")(held, ids))
    with torch.inference_mode():
        row, _ = RoundingDraws(narrow, tiny_prompts(narrow)).compare(side, BLOCKS)
    assert row.outcome == MISSING


# The trial.


@pytest.mark.thorough
@pytest.mark.model
def test_the_trial_accuses_no_other_way_and_no_draw_and_sees_what_its_table_says() -> None:
    """One model with 4 prompts; `python -m benchmarks.verdicts.sixteen` runs them all."""
    loaded, _ = model_named("llama bfloat16")
    prompts = sixteen.prompts_for("llama bfloat16", loaded, 4)
    tried, draws = sixteen.run_trial("llama bfloat16", loaded, prompts, sixteen.cases_of(loaded, shares=[1.0]))
    assert [one.case for one in tried if one.is_seen and not one.size] == []
    assert [test.is_passed for test in draws] == [True] * DRAWS
    assert max(one.test.ratio for one in tried if not one.size) < 1.3
    faults = [one for one in tried if one.size]
    assert len(faults) >= 33
    assert [one.case for one in faults if one.size > 8 and not one.is_seen] == []
