"""Roundings drawn anew, and what they say of an engine that has nothing but 16 bits."""

import copy

import numpy as np
import pytest
import torch

from benchmarks.verdicts.engines import in_16_bits_only, prefill
from benchmarks.verdicts.mutations import MUTATIONS
from benchmarks.verdicts.sixteen import FAULTS, PLACE, TWINS
from benchmarks.verdicts.tiny_models import tiny_prompts
from core.checks.drawn import DRAWN, Errors, error_test
from core.evidence import FAILED, FLOAT32, OWN_DTYPE, PASSED
from core.inference.controls import drawn_roundings
from core.inference.controls.drawn_roundings import DrawnRounding
from core.inference.models.dtypes import in_float32
from tests.core.evidence import rows_of
from tests.core.inference.sameness import logits_of, rms
from tests.covering import covering


def drawn_forward(loaded, ids, seed):
    with torch.inference_mode(), DrawnRounding(loaded.torch_dtype, seed):
        return prefill(loaded.model, torch.tensor(ids))


@pytest.mark.model
def test_a_draw_is_the_same_for_its_seed_and_another_for_another(narrow):
    first, again, other = (drawn_forward(narrow, range(5, 29), seed) for seed in (3, 3, 4))
    assert first.dtype == torch.bfloat16
    assert torch.equal(first, again)
    assert float((first != other).double().mean()) > 0.5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_what_is_exact_stays_and_what_is_rounded_moves_by_less_than_a_unit(dtype):
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn((64, 64), generator=generator).to(dtype) for _ in range(2))
    wide = x.float() @ weight.float()
    with DrawnRounding(dtype, 0):
        assert torch.equal(-x, x.neg())
        copies = (
            torch.cat([x, weight]),
            x[3:5].clone(),
            torch.nn.functional.embedding(torch.tensor([3, 4]), x),
        )
        found = (x @ weight).float()
        special = torch.tensor([float("nan"), float("inf"), 0.0], dtype=dtype) * 1.5
    assert torch.equal(copies[0], torch.cat([x, weight]))
    assert torch.equal(copies[1], x[3:5])
    assert torch.equal(copies[2], x[3:5])
    assert special[0].isnan()
    assert special[1] == torch.inf
    assert special[2] == 0
    exponent = torch.frexp(wide).exponent
    # of the last place, 2^(e - precision)
    precision = 8 if dtype == torch.bfloat16 else 11
    unit = torch.ldexp(torch.ones_like(wide), exponent - precision)
    off = ((found - wide) / unit).abs()
    # nearest stays within 0.5; a quarter of a unit on top
    assert 0.5 < float(off.max()) <= 0.75 + 1e-3
    nearest = wide.to(dtype).float()
    assert 0.1 < float((found != nearest).double().mean()) < 0.4
    bias = float(((found - wide) / unit).mean())
    # no side is preferred: such an error has a deviation of 0.33 units at most
    assert abs(bias) < 4 * 0.33 / np.sqrt(wide.numel())


def test_an_error_is_measured_without_what_all_logits_share():
    """Variances of each row: of a number that all share 0, of 3 1 1 3 it is 1; 1e30 is no NaN, and
    NaN has no size.
    """
    pieces = []
    rows = []
    logits = torch.tensor(
        [
            [7.0, 7, 7, 7],
            [3, 1, 1, 3],
            [0, 0, 0, 1e30],
            [3, 1, float("nan"), 3],
        ]
    )
    drawn_roundings._add_error(
        torch.zeros(5, 4),
        pieces,
        rows,
        1,
        logits,
    )
    assert rows[0].isfinite().all()
    expected = [0, 1, 3 / 16 * 1e60, np.inf]
    assert pieces[0].tolist() == pytest.approx(expected, rel=1e-5)


@pytest.mark.model
def test_draws_are_as_large_as_the_models_own_rounding_and_not_like_one_another(narrow):
    prompts = tiny_prompts(narrow)
    with torch.inference_mode():
        with in_float32(narrow) as widened:
            exact = torch.cat([prefill(widened.model, torch.tensor(ids)) for ids in prompts])
        draws = [
            torch.cat([drawn_forward(narrow, ids, seed) for ids in prompts]).float() - exact
            for seed in range(4)
        ]
        own = [
            torch.cat([logits_of(path, narrow, ids) for ids in prompts]) - exact
            for path in ("prefill", "decode")
        ]
    sizes = list(map(rms, (*own, *draws)))
    assert max(sizes) < 1.3 * min(sizes)
    alike = np.corrcoef([each.flatten().numpy() for each in (*own, *draws)])
    # prefill and decode, which round the same values nearly everywhere
    assert alike[0, 1] > 0.6
    between_draws = alike[2:, 2:][~np.eye(4, dtype=bool)]
    assert np.abs(between_draws).max() < 0.35
    assert np.abs(alike[:2, 2:]).max() < 0.45


@pytest.mark.model
def test_a_fault_of_an_engine_of_16_bits_is_a_bug_at_its_position(narrow, judged):
    """Float32 has nothing to say of it, and the pair's ratio of 3 alone would pass."""
    held = copy.deepcopy(narrow.model)
    (fault,) = (
        case.engine for case in MUTATIONS if case.name == "one future key visible to one query"
    )
    verdict = judged(
        narrow,
        tiny_prompts(narrow),
        "prefill",
        lambda _, ids: fault(held, ids),
    )
    assert verdict.is_bug_suspected
    assert verdict.first_place[1] == 10
    pair, engine = rows_of(verdict.evidence, OWN_DTYPE)
    assert pair.outcome == PASSED
    assert engine.outcome == FAILED
    assert verdict.noise_ratio == engine.figures.noise_ratio


OF_ONE_TOKEN = {
    "residual added twice",
    "norm of the token before",
    "tile of the head",
    "another row of the batch",
}


@pytest.mark.model
@pytest.mark.spread(4)
@pytest.mark.parametrize(("case", "dtype"), covering(list(FAULTS), ["bfloat16", "float16"]))
def test_a_fault_of_16_bits_alone_is_a_bug(case, dtype, narrow, half, judged):
    loaded = narrow if dtype == "bfloat16" else half
    prompts = tiny_prompts(loaded)
    verdict = judged(
        loaded,
        prompts,
        "prefill",
        in_16_bits_only(FAULTS[case](1.0)),
    )
    assert verdict.is_bug_suspected
    assert {row.outcome for row in rows_of(verdict.evidence, FLOAT32)} == {PASSED}
    (drawn,) = rows_of(verdict.evidence, DRAWN)
    assert drawn.outcome == FAILED
    if case in OF_ONE_TOKEN:
        assert verdict.first_place == (0, len(prompts[0]) + PLACE)


@pytest.mark.model
@pytest.mark.spread(3)
@pytest.mark.parametrize(("case", "dtype"), covering(list(TWINS), ["bfloat16", "float16"]))
def test_another_16_bit_kernel_of_the_same_function_is_rounding(
    case,
    dtype,
    narrow,
    half,
    judged,
):
    loaded = narrow if dtype == "bfloat16" else half
    verdict = judged(
        loaded,
        tiny_prompts(loaded),
        "prefill",
        in_16_bits_only(TWINS[case]),
    )
    assert verdict.name == "rounding"
    (drawn,) = rows_of(verdict.evidence, DRAWN)
    assert drawn.outcome == PASSED


@pytest.mark.model
def test_a_reference_that_is_not_a_plain_forward_is_asked_too(narrow, judged):
    engine = in_16_bits_only(FAULTS["residual added twice"](1.0))
    verdict = judged(narrow, tiny_prompts(narrow), engine, "decode")
    assert verdict.is_bug_suspected
    outcomes = {row.side: row.outcome for row in rows_of(verdict.evidence, DRAWN)}
    assert sorted(outcomes.values()) == [FAILED, PASSED]
    assert outcomes["decode"] == PASSED


def test_a_position_where_the_models_own_forward_rounds_more_is_no_outlier():
    random = np.random.default_rng(0)
    draws = [Errors(random.chisquare(200, 40) / 200, 1.0) for _ in range(8)]
    error = np.ones(40)
    own = np.ones(40)
    error[3] = 2.6**2
    error[7] = 2.6**2
    own[3] = 1.8**2

    def outliers(**more):
        return error_test(Errors(error, 1.0), draws, **more).outliers.tolist()

    assert outliers(own=Errors(own, 1.0)) == [7]
    # a fault that both have
    own[3] = 6.0**2
    assert outliers(own=Errors(own, 1.0)) == [3, 7]
    assert outliers() == [3, 7]
