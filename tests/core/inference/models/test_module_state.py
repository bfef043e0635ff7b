"""What modules hold between forwards does not reach the next sequence."""

import pytest
import torch

from benchmarks.verdicts.tiny_models import model_of, tiny_model, tiny_prompts
from core.inference.controls.judge_model import judge
from core.inference.models.model import loaded_from
from core.inference.models.module_state import restore_state, state_at_start
from tests.core.inference.odd_models import recurrent_gemma
from tests.core.inference.sameness import logits_of


class Holder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(2))
        self.register_buffer("table", torch.zeros(2))
        self.state = None
        self.tokens = 0


def test_tensors_and_numbers_are_those_of_the_start_and_weights_stay():
    module = Holder()
    table = module.table
    start = state_at_start(module)
    module.state = module.newer = torch.ones(2)
    module.register_buffer("table", torch.ones(2))
    module.tokens = 7
    module.weight = torch.nn.Parameter(torch.ones(2))
    module.name = "kept"
    restore_state(start)
    assert module.state is None
    assert module.tokens == 0
    assert module.table is table
    assert module.name == "kept"
    assert not hasattr(module, "newer")
    assert module.weight.tolist() == [1.0, 1.0]


@pytest.fixture
def recurrent():
    return model_of(recurrent_gemma())


@pytest.mark.model
@pytest.mark.parametrize("path", ["decode", "decode+batch:2", "static"])
def test_a_path_repeats_its_bits_whatever_ran_before(path, recurrent):
    one, other = tiny_prompts(recurrent)
    first = logits_of(path, recurrent, one)
    for between in ("decode+batch:3", "prefill", path):
        logits_of(between, recurrent, other)
        assert torch.equal(logits_of(path, recurrent, one), first)


@pytest.mark.model
def test_a_verdict_does_not_depend_on_earlier_calls(recurrent):
    prompts = tiny_prompts(recurrent)
    # generating leaves a state in the modules, before the model is known here
    recurrent.model.generate(torch.tensor(prompts[:1]), max_new_tokens=2, pad_token_id=0)
    used = loaded_from(recurrent.model, recurrent.tokenizer)
    names = {}
    for order in (("decode", "static"), ("static", "decode")):
        for variant in order:
            verdict = judge(used, prompts, reference="prefill", variant=variant)
            names[variant, order] = verdict.name
    assert set(names.values()) == {"rounding"}


def test_marks_that_transformers_leaves_on_a_model_are_no_state():
    """It notes on a model that outputs are captured, from the first call that asks for them on."""
    model = tiny_model("llama").model
    start = state_at_start(model)
    model(input_ids=torch.tensor([[1, 2]]), output_hidden_states=True)
    restore_state(start)
