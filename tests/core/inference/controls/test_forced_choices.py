"""What forced choices must not excuse, or accuse: names, prompts, threads and lower precisions."""

from contextlib import ExitStack
from threading import Thread

import pytest
import torch

from benchmarks.verdicts.engines import prefill, walk
from benchmarks.verdicts.tiny_models import tiny_model, tiny_prompts
from core.checks.modules_alone import ALONE
from core.inference.controls.choices import choices_of, following_choices
from core.inference.controls.judge_model import JudgingSession, judge
from core.inference.controls.precisions.catalogue import int8
from core.inference.models.dtypes import data_replaced
from core.inference.paths.engines import PLAIN
from core.inference.paths.hooks import ModuleTrace
from core.verdict import BUG_SUSPECTED, LOWER_PRECISION, ROUNDING
from tests.core.evidence import rows_of
from tests.core.inference.controls.test_choices import replay_of


def test_a_prompt_has_its_own_choices_though_another_begins_with_it(ties):
    (ids, *_) = tiny_prompts(ties)
    replay = replay_of(ties, [ids, ids[:9]])
    assert replay.of_prompt(ids[:9]) is replay.choices[ids[:9]]
    assert replay.of_prompt(ids[:5]) is replay.choices[ids]


def without_bias_of(biased):
    """Return a context in which experts are chosen without the router's bias."""
    bias = biased.model.model.layers[1].mlp.gate.e_score_correction_bias
    return data_replaced([bias], torch.zeros_like)


@pytest.mark.parametrize("name", ["prefill", "side"])
def test_callables_are_told_apart_from_what_has_their_name(biased, name):
    def faulty(model, ids):
        with without_bias_of(biased):
            return prefill(model, ids)

    def sound(model, ids):
        return prefill(model, ids)

    faulty.__name__ = sound.__name__ = name
    prompts = tiny_prompts(biased)
    assert judge(biased, prompts, variant=faulty).name == BUG_SUSPECTED
    assert judge(biased, prompts, reference=faulty, variant=sound).name == BUG_SUSPECTED


def test_a_lower_precision_does_not_change_what_rounding_moves(biased):
    """Scores in float32, to 6e-8 of about 1, whatever another pair was compared with."""
    prompts = tiny_prompts(biased)
    session = JudgingSession(biased, prompts)
    verdict = judge(biased, prompts, variant="prefill+dtype:bfloat16", session=session)
    assert verdict.name == LOWER_PRECISION
    moved = session.replay(biased).moved
    sizes = [float(scores.max()) for each in moved.values() for scores in each.values()]
    assert max(sizes) < 1e-4


def in_int8(model):
    """Return a context in which the weights of linear layers but the head's are in int8."""
    linear = [each for each in model.modules() if isinstance(each, torch.nn.Linear)]
    weights = [each.weight for each in linear if each is not model.lm_head]
    return data_replaced(weights, lambda weight: int8(weight.data))


def in_bfloat16(model):
    """Return a context in which all of a model is in bfloat16."""
    return data_replaced(model.parameters(), lambda weight: weight.data.bfloat16())


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("lowered", [in_int8, in_bfloat16])
def test_a_lower_precision_does_not_explain_other_experts(biased, lowered, has_bias):
    def side(model, ids):
        with ExitStack() as stack:
            stack.enter_context(lowered(model))
            if not has_bias:
                stack.enter_context(without_bias_of(biased))
            return prefill(model, ids)

    verdict = judge(biased, tiny_prompts(biased), variant=side)
    assert verdict.name == (LOWER_PRECISION if has_bias else BUG_SUSPECTED)


def test_the_row_of_a_callables_batch_is_not_taken_for_another_with_its_token(ties):
    """Decoding in a batch: at some step two rows have the same token."""
    ids = tiny_prompts(ties)[0]

    def in_last_row(model, own):
        # one token ahead: each token of this row was in the other one a step before
        others = torch.tensor([ids * 2])[:, 1 : 1 + len(own)]
        rows = torch.cat([others, own[None]])
        cache = None
        logits = []
        for column in range(len(own)):
            step = rows[:, column : column + 1]
            output = model(input_ids=step, past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            logits.append(output.logits[-1])
        return torch.cat(logits)

    assert judge(ties, tiny_prompts(ties), variant=in_last_row).name == ROUNDING


def test_a_router_that_a_callable_asks_twice_is_not_half_forced(ties):
    """As one that counts tokens of experts first: what it is asked last is computed with."""

    def ask(block, arguments):
        (hidden,) = arguments
        block.gate(hidden.flatten(0, 1))

    def counting(model, ids):
        with ExitStack() as hooks:
            for layer in model.model.layers:
                hooks.enter_context(layer.mlp.register_forward_pre_hook(ask))
            return walk(model, ids, range(1, len(ids)))

    assert judge(ties, tiny_prompts(ties), variant=counting).name == ROUNDING


def test_a_fault_is_found_in_its_module_at_a_position_of_any_prompt():
    """Choices of other prompts are no calls of the module while its outputs are replaced."""
    loaded = tiny_model("mixtral-ties", "bfloat16")
    first, second = tiny_prompts(loaded)

    def at_one_position(_, __, output):
        output = output.clone()
        output[:, 7] *= 1.01
        return output

    def side(model, ids):
        layer = model.model.layers[1].mlp
        hook = layer.register_forward_hook(at_one_position) if tuple(ids) == second else None
        try:
            return prefill(model, ids)
        finally:
            if hook is not None:
                hook.remove()

    verdict = judge(loaded, [first, second], variant=side)
    (row,) = rows_of(verdict.evidence, ALONE)
    assert verdict.first_place == (1, 7)
    assert row.figures.first_module == "model.layers.1"


def test_another_thread_keeps_its_own_choices(ties):
    """Equal scores in another thread while a forward's choices are forced; topk is put back."""
    topk = torch.topk
    (ids, *_) = tiny_prompts(ties)
    forced = choices_of(ties, PLAIN, ids)
    seen = []

    def of_another_thread():
        scores = torch.arange(4.0).expand(len(ids), 4)
        seen.append(torch.topk(scores, 2).indices)

    def see(*_):
        thread = Thread(target=of_another_thread)
        thread.start()
        thread.join()

    trace = ModuleTrace(ids, range(len(ids)))
    with torch.inference_mode(), following_choices(ties, trace, see, forced):
        ties.model(input_ids=torch.tensor([ids]))
    assert torch.topk is topk
    expected = torch.tensor([3, 2]).expand(len(ids), 2)
    assert all(torch.equal(each, expected) for each in seen)
    assert len(seen) == 3
