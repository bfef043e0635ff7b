"""Float64: a model in it, and when it decides: not of an engine that keeps float32, or a part of
it.
"""

import copy

import pytest
import torch

from benchmarks.verdicts.engines import prefill, replaced, walk
from benchmarks.verdicts.mutations import scaled_value
from benchmarks.verdicts.tiny_models import tiny_model, tiny_prompts
from benchmarks.verdicts.variations import in_two_halves
from core.evidence import FAILED, FLOAT32, NOTED, PASSED
from core.inference.models.dtypes import WIDENING, in_float64
from tests.core.evidence import rows_of
from tests.core.inference.odd_models import topk_by_sort
from tests.core.inference.paths.test_modifiers import state

pytestmark = pytest.mark.model


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "mixtral"])
def test_in_float64_nothing_passes_through_float32(name):
    """Norms, softmax, routers and angles cast to float32 by themselves; with those casts two
    kernels differ by 1e-8, not 1e-14.
    """
    loaded = tiny_model(name)
    before = state(loaded)
    ids = torch.arange(5, 29)
    with torch.inference_mode(), in_float64(loaded) as wide:
        assert wide.dtype == "float64"
        plain = prefill(wide.model, ids)
        norm = next(module for module in wide.model.modules() if "Norm" in type(module).__name__)
        with replaced(wide.model.config, "_attn_implementation", "eager"):
            eager = prefill(wide.model, ids)
        assert plain.dtype == torch.float64
        given = plain.new_full((1, norm.weight.numel()), 1 / 3)
        assert norm(given).dtype == torch.float64
    assert float((plain - eager).abs().max()) < 1e-12
    assert state(loaded) == before


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("dtype", WIDENING)
def test_widening_is_undone_however_it_ends(dtype, error, narrow):
    before = state(narrow)
    with pytest.raises(error), WIDENING[dtype](narrow):
        raise error
    assert state(narrow) == before
    assert torch.zeros(1, dtype=torch.float32).dtype == torch.float32


def test_an_engines_own_float32_stays_float32_beside_a_model_in_float64(small):
    with in_float64(small) as widened, torch.inference_mode():
        body = widened.model.model
        states = body(input_ids=torch.arange(5, 29)[None], use_cache=False).last_hidden_state[0]
        assert states.dtype == torch.float64
        assert states.float().dtype == torch.float32


def holding_float32(loaded, forward):
    """An engine with float32 weights of its own, as a server has."""
    held = copy.deepcopy(loaded.model)
    return lambda _, ids: forward(held, ids)


@pytest.fixture(scope="module")
def experts():
    return tiny_model("mixtral")


def test_experts_of_an_engine_that_answers_in_float32_are_rounding_and_its_fault_is_a_bug(
    experts,
    judged,
):
    engine = holding_float32(experts, lambda model, ids: walk(model, ids, [7, 20]))
    verdict = judged(
        experts,
        tiny_prompts(experts),
        "prefill",
        engine,
    )
    assert verdict.name == "rounding"
    (row,) = rows_of(verdict.evidence, FLOAT32)
    assert row.outcome == PASSED
    assert row.figures.compute_dtype == "float32"
    assert verdict.noise_ratio == row.figures.noise_ratio < 1
    verdict = judged(
        experts,
        tiny_prompts(experts),
        "prefill",
        holding_float32(experts, scaled_value(1.01)),
    )
    assert verdict.is_bug_suspected
    assert 100 < verdict.noise_ratio < 1e5


def sorting(engine):
    """The engine with a router that sorts its scores, so that its choices cannot be followed."""

    def sorts(model, ids):
        with replaced(torch, "topk", topk_by_sort()):
            return engine(model, ids)

    return sorts


@pytest.mark.parametrize("is_fault", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_a_floor_torn_by_near_ties_of_a_router_is_decided_in_float64(is_fault, judged):
    loaded = tiny_model("mixtral-ties")
    before = state(loaded)
    implementation = loaded.model.config._experts_implementation
    prompts = tiny_prompts(loaded)
    variant = sorting(scaled_value(1.01) if is_fault else in_two_halves)
    verdict = judged(
        loaded,
        prompts[:1] if is_fault else prompts,
        "prefill",
        variant,
    )
    assert verdict.name == ("bug suspected" if is_fault else "rounding")
    single, double = rows_of(verdict.evidence, FLOAT32)
    assert single.outcome == NOTED
    assert single.figures.compute_dtype == "float32"
    assert double.outcome == (FAILED if is_fault else PASSED)
    assert double.figures.compute_dtype == "float64"
    assert single.figures.noise_ratio < single.figures.largest_ratio_allowed
    assert (double.figures.noise_ratio > 1e9) == is_fault
    # torn by the ties
    assert double.figures.floor_rms_logits < 1e-13 < 1e-3 < single.figures.floor_rms_logits
    assert state(loaded) == before
    assert loaded.model.config._experts_implementation == implementation
