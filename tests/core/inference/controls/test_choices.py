"""Choices of experts: recorded, replayed, and judged apart from what is continuous."""

from contextlib import ExitStack

import pytest
import torch

from benchmarks.verdicts.choices import FAULTS
from benchmarks.verdicts.engines import prefill, replaced
from benchmarks.verdicts.tiny_models import model_of, tiny_model, tiny_prompts
from core.checks.choices import CHOICES
from core.evidence import FAILED, PASSED
from core.inference.controls.choices import (
    Choices,
    Replay,
    choices_of,
    compare_choices,
    key_choosers,
)
from core.inference.controls.judge_model import judge
from core.inference.paths.engines import PLAIN, divergence_of, side_of
from core.verdict import BUG_SUSPECTED, ROUNDING, UNDECIDED
from tests.core.evidence import rows_of
from tests.core.inference.odd_models import deepseek_v32, topk_by_sort

# keys of a query, fewer than the prompts have
FEW = 8
GATE = ("gate", 0)

WITHOUT_BIAS, _ = FAULTS["router's bias left out"]


def replay_of(loaded, prompts):
    return Replay({ids: choices_of(loaded, PLAIN, ids) for ids in prompts})


def test_recorded_choices_are_the_largest_scores_that_transformers_returns():
    loaded = tiny_model("mixtral")
    (ids, *_) = tiny_prompts(loaded)
    with torch.inference_mode():
        output = loaded.model(input_ids=torch.tensor([ids]), output_router_logits=True)
    choices = choices_of(loaded, PLAIN, ids)
    calls = [(f"model.layers.{n}.mlp.gate", 0) for n in range(3)]
    assert list(choices.ids) == calls
    for call, scores in zip(calls, output.router_logits, strict=True):
        assert torch.equal(choices.ids[call][:, 0], scores.topk(2).indices)


@pytest.mark.parametrize("path", ["decode", "chunked:5", "prefill+batch:3+row:1+pad:left:2"])
def test_a_path_that_makes_the_models_choices_differs_by_rounding_alone(ties, path):
    prompts = tiny_prompts(ties)
    replay = replay_of(ties, prompts)
    noted = {}
    side = side_of(path)
    natural = divergence_of(ties, prompts, (PLAIN, side))
    replayed = divergence_of(ties, prompts, (PLAIN, replay.of(side, noted.__setitem__)))
    # float32 rounds to 6e-8, and logits are about 1
    assert replayed.rms < 1e-5 < natural.rms
    by_itself = {ids: choices_of(ties, side, ids) for ids in prompts}
    assert noted.keys() == by_itself.keys()
    for each in noted.values():
        assert all((ids >= 0).all() for ids in each.ids.values())


def test_a_choice_at_a_tie_of_two_experts_is_rounding(ties):
    verdict = judge(ties, tiny_prompts(ties), variant="decode")
    (row,) = rows_of(verdict.evidence, CHOICES)
    assert verdict.name == ROUNDING
    assert row.outcome == PASSED
    assert row.figures.differing > 0


def test_experts_chosen_without_the_routers_bias_are_a_suspected_bug(biased):
    """Their weights are right, so nothing else differs once the choices are the model's."""
    verdict = judge(biased, tiny_prompts(biased), variant=WITHOUT_BIAS)
    (row,) = [row for row in verdict.evidence if row.outcome == FAILED]
    assert verdict.name == BUG_SUSPECTED
    assert row.check is CHOICES
    assert verdict.first_place == row.figures.first
    assert "model.layers.1.mlp.gate" in row.says


def test_a_side_of_more_experts_differs_at_each_choice_and_is_found(ties):
    def of_three(model, ids):
        with ExitStack() as stack:
            for layer in model.model.layers:
                stack.enter_context(replaced(layer.mlp.gate, "top_k", 3))
            return prefill(model, ids)

    verdict = judge(ties, tiny_prompts(ties), variant=of_three)
    (row,) = rows_of(verdict.evidence, CHOICES)
    assert verdict.name == BUG_SUSPECTED
    # at every token in each of three layers
    tokens = sum(map(len, tiny_prompts(ties)))
    assert row.figures.differing == row.figures.choices == 3 * tokens


def test_a_gap_is_measured_by_what_rounding_moves_the_scores_there():
    def made(scores, k):
        scores = torch.tensor(scores, dtype=torch.float64)[:, None]
        return Choices(
            len(scores),
            (),
            {GATE: scores.topk(k).indices},
            {GATE: scores},
        )

    ours = made(
        [
            [3.0, 2.0, 1.0],
            [3.0, 2.0, 1.0],
            [3.0, 2.0, 1.9],
        ],
        2,
    )
    theirs = made(
        [
            [3.0, 2.0, 1.0],
            [3.0, 2.0, 2.5],
            [3.0, 2.0, 2.1],
        ],
        2,
    )
    moved = torch.tensor([[0.1], [0.1], [0.4]])
    found = compare_choices(ours, theirs, {GATE: moved})
    assert found.total == 3
    assert [place for *place, _ in found.others] == [[1, "gate"], [2, "gate"]]
    # the scores of a gap of 1 move by 0.1, those of a gap of 0.1 by 0.4
    assert [gap for *_, gap in found.others] == pytest.approx([1.0 / 0.1, 0.1 / 0.4])
    # the model's next one is left out, or its last one takes another along
    for k in (1, 3):
        others = compare_choices(ours, made([[3.0, 2.0, 1.0]] * 3, k), {GATE: moved}).others
        assert [gap for *_, gap in others] == pytest.approx([1.0 / 0.1, 1.0 / 0.1, 0.1 / 0.4])


@pytest.mark.parametrize("heads", [2, 16])
@pytest.mark.parametrize("path", ["decode", "chunked:5", "prefill+batch:3+row:1+pad:left:2"])
def test_keys_of_an_indexer_are_those_of_the_model_however_they_are_stored(path, heads):
    """A cache and padding give another slot to the key of a position."""
    loaded = model_of(deepseek_v32(FEW, heads))
    ids = tiny_prompts(loaded)[1]
    with torch.inference_mode():
        choosers = key_choosers(loaded, ids)
        plain = choices_of(loaded, PLAIN, ids, choosers)
        noted = choices_of(loaded, side_of(path), ids, choosers)
    assert choosers == {f"model.layers.{n}.self_attn.indexer": True for n in range(3)}
    assert Replay({(): plain}).is_followed_by({(): noted})
    # before the first layer nothing was chosen, so keys differ by ties alone
    call = "model.layers.0.self_attn.indexer", 0
    expected = torch.minimum(torch.arange(len(ids)) + 1, torch.tensor(FEW))
    assert torch.equal((noted.ids[call][:, 0] >= 0).sum(-1), expected)
    best = plain.scores[call].gather(-1, plain.ids[call].clamp_min(0))
    taken = plain.scores[call].gather(-1, noted.ids[call].clamp_min(0))
    torch.testing.assert_close(taken.sort(-1).values, best.sort(-1).values)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_cache_of_an_indexer_is_rounding_and_a_key_too_many_a_bug(dtype):
    loaded = model_of(deepseek_v32(FEW), dtype)
    prompts = tiny_prompts(loaded)

    def of_one_more(model, ids):
        with ExitStack() as stack:
            for layer in model.model.layers:
                stack.enter_context(replaced(layer.self_attn.indexer, "index_topk", FEW + 1))
            return prefill(model, ids)

    assert judge(loaded, prompts, variant="chunked:8").name == ROUNDING
    assert judge(loaded, prompts, variant=of_one_more).name == BUG_SUSPECTED


def test_an_indexer_that_takes_every_key_chooses_none():
    loaded = model_of(deepseek_v32(64))
    with torch.inference_mode():
        assert not any(key_choosers(loaded, tiny_prompts(loaded)[1]).values())


@pytest.mark.parametrize("tokens", [1, 4, 40])
def test_a_router_chooses_no_keys_even_with_an_expert_for_each_token(ties, tokens):
    with torch.inference_mode():
        assert not key_choosers(ties, tiny_prompts(ties)[0][:tokens])


def test_an_indexer_whose_choices_are_out_of_sight_stays_undecided():
    """All of the difference may be near ties, even if it is large."""
    loaded = model_of(deepseek_v32(FEW))

    def of_one_more(model, ids):
        with replaced(torch.Tensor, "topk", topk_by_sort(more=1)):
            return prefill(model, ids)

    verdict = judge(loaded, tiny_prompts(loaded), variant=of_one_more)
    assert verdict.name == UNDECIDED
    assert not any(row.group == "modules" for row in verdict.evidence)


def test_the_position_of_another_choice_is_that_of_its_prompt_if_prompts_repeat(biased):
    """The second prompt again, with another router there alone: equal prompts are forced alike."""
    first, second = tiny_prompts(biased)
    prompts = [second, second, first]

    def without_bias_on_the_first(model, ids):
        engine = WITHOUT_BIAS if len(ids) == len(first) else prefill
        return engine(model, ids)

    verdict = judge(biased, prompts, variant=without_bias_on_the_first)
    assert verdict.name == BUG_SUSPECTED
    assert verdict.first_place[0] == 2
