"""`explain --trainer` with the experts that a rollout recorded: mistakes of its routing are named,
with mean |r| as it is and with its experts replayed, and sound rollouts are not.

Experts are those that transformers' routers hand to their experts.
"""

import copy
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
import torch
from transformers import GptOssConfig, Qwen3MoeConfig

from benchmarks.verdicts.engines import walk
from benchmarks.verdicts.tiny_models import model_of, tiny_model
from core.commands import verdicts
from core.numerics.recorded_choices import write_choices
from core.runs.reader import RunReader
from tests.core.commands.test_explain_rollout import (
    PROMPT,
    sample,
    stored,
    with_experts_in_another_order,
)
from tests.core.inference.controls.conftest import biased as biased
from tests.core.inference.controls.conftest import ties as ties

pytestmark = pytest.mark.model
SEQUENCES = 4
READ = slice(PROMPT - 1, -1)  # tokens whose forward scores one of the response
SMALL = {
    "vocab_size": 384,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 96,
    "initializer_range": 0.15,
}


@pytest.fixture(scope="module")
def mixtral():
    return tiny_model("mixtral")


@pytest.fixture(scope="module")
def close():
    """A router whose first two experts are closer than bfloat16 tells them apart, and farther than
    float32 rounds.
    """
    loaded = tiny_model("mixtral")
    torch.manual_seed(3)
    for layer in loaded.model.model.layers:
        gate = layer.mlp.gate.weight
        gate[1] = gate[0] * (1 + 1e-4 * torch.randn(gate[0].shape))
    return loaded


@pytest.fixture(scope="module")
def qwen():
    return model_of(Qwen3MoeConfig(**SMALL, num_experts=8, moe_intermediate_size=32))


@pytest.fixture(scope="module")
def gpt_oss():
    return model_of(GptOssConfig(**SMALL, num_local_experts=8, layer_types=["full_attention"] * 2))


def prompts_of(loaded):
    torch.manual_seed(1)
    return sample(loaded.model)[0][:SEQUENCES]


@contextmanager
def recording(model):
    """Yield what routers hand to their experts, a list for each forward. [tokens, k] each"""
    forwards = []
    with ExitStack() as hooks:
        begin = model.register_forward_pre_hook(lambda *_: forwards.append([]))
        hooks.enter_context(begin)
        for name, module in model.named_modules():
            if name.endswith("mlp.experts"):
                see = module.register_forward_pre_hook(
                    lambda _, arguments: forwards[-1].append(arguments[1].clone()),
                )
                hooks.enter_context(see)
        yield forwards


def scored(logits, row):
    """Log-probabilities of the tokens of a response."""
    logprobs = logits.float().log_softmax(-1)[READ]
    return logprobs.gather(1, row[PROMPT:, None])[:, 0]


@torch.no_grad()
def roll_out(model, ids, temperature=1.0):
    """Log-probabilities of the responses, and the experts of all tokens."""
    values = []
    experts = []
    for row in ids:
        with recording(model) as forwards:
            logits = model(row[None]).logits[0]
        values.append(scored(logits / temperature, row))
        experts.append(torch.stack(forwards[0], dim=1))
    return torch.stack(values), torch.stack(experts)


def explained(tmp_path, loaded, ids, rollout, experts, dtype="float32"):
    """Causes of a rollout and the checkpoint's own values, by name."""
    sides = {"rollout": rollout, "trainer": roll_out(loaded.model, ids)[0]}
    recorded = [write_choices(np.asarray(each[:-1])) for each in experts]
    with RunReader(stored(tmp_path, ids, sides, routed_experts=recorded)) as run:
        loads = {"checkpoint": lambda _: loaded}
        found = verdicts.explanations_of(run, lambda *_: None, dtype=dtype, loads=loads)
    (explanation,) = found.values()
    return {cause.name: cause for cause in explanation.causes}


def without_bias(model):
    model.model.layers[1].mlp.gate.e_score_correction_bias.zero_()


def without_groups(model):
    gate = model.model.layers[1].mlp.gate
    gate.num_group = gate.topk_group = 1


def routers_in_bfloat16(model):
    for layer in model.model.layers:
        layer.mlp.gate.weight.data = layer.mlp.gate.weight.bfloat16().float()


def another_expert_at_one_token(model):
    def change(_, arguments):
        states, ids, weights = arguments
        # the tiny Mixtral has 4 experts
        ids[PROMPT + 1] = (ids[PROMPT + 1] + 1) % 4
        return states, ids, weights

    model.model.layers[1].mlp.experts.register_forward_pre_hook(change)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("biased", without_bias),
        ("biased", without_groups),
        ("close", routers_in_bfloat16),
        ("mixtral", another_expert_at_one_token),
    ],
)
def test_other_experts_are_named_with_r_as_it_is_and_replayed(name, change, request, tmp_path):
    loaded = request.getfixturevalue(name)
    ids = prompts_of(loaded)
    changed = copy.deepcopy(loaded.model)
    change(changed)
    rollout, experts = roll_out(changed, ids)
    values, own = roll_out(loaded.model, ids)
    figures = explained(tmp_path, loaded, ids, rollout, experts)["routing"].parameters
    is_same = own.sort().values == experts.sort().values
    alike = is_same.all(-1)[:, READ]
    is_other = ~alike.all(-1)
    square = (values - rollout).double() ** 2
    # a forward of one token less rounds otherwise
    assert figures["agreement"] == pytest.approx(float(alike.double().mean()), abs=1e-6)
    others = float(is_other.double().mean())
    assert figures["tokens_with_others"] == pytest.approx(others, abs=1e-6)
    share = float(square[is_other].sum() / square.sum())
    assert figures["share_of_square"] == pytest.approx(share, abs=1e-6)
    assert figures["mean_abs"] == pytest.approx(float(square.sqrt().mean()), abs=1e-6)
    assert figures["mean_abs_replayed"] < 0.5 * figures["mean_abs"]
    assert figures["no_near_ties"] > 0
    assert sum(row["tokens"] for row in figures["by_agreement"]) == rollout.numel()


PERMUTED = torch.tensor([2, 0, 3, 1])


def first_layer_and_others_of_the_next_request(experts):
    others = experts.roll(1, dims=0)
    return torch.cat([experts[:, :, :1], others[:, :, 1:]], dim=2)


@pytest.mark.parametrize(
    "record",
    [
        lambda experts: PERMUTED[experts],
        lambda experts: experts.roll(1, dims=1),
        first_layer_and_others_of_the_next_request,
    ],
    ids=["permuted", "one token late", "layers of another request"],
)
def test_experts_that_the_rollout_did_not_use_are_named(record, mixtral, tmp_path):
    ids = prompts_of(mixtral)
    rollout, experts = roll_out(mixtral.model, ids)
    figures = explained(tmp_path, mixtral, ids, rollout, record(experts))["routing"].parameters
    assert figures["mean_abs"] < 1e-6
    assert figures["mean_abs_replayed"] > 0.1


def test_another_number_of_experts_is_said_and_not_compared(mixtral, tmp_path):
    ids = prompts_of(mixtral)
    changed = copy.deepcopy(mixtral.model)
    for layer in changed.model.layers:
        layer.mlp.gate.top_k = 1
    causes = explained(tmp_path, mixtral, ids, *roll_out(changed, ids))
    assert "experts not compared" in causes
    assert "routing" not in causes


def token_by_token(loaded, ids):
    """One forward a token, with a cache."""
    values = []
    experts = []
    for row in ids:
        with recording(loaded.model) as forwards, torch.no_grad():
            logits = walk(loaded.model, row, range(1, len(row)))
        values.append(scored(logits, row))
        experts.append(torch.cat([torch.stack(each, dim=1) for each in forwards]))
    return torch.stack(values), torch.stack(experts)


def experts_in_another_order(loaded, ids):
    other = with_experts_in_another_order(loaded.model, PERMUTED)
    values, experts = roll_out(other, ids)
    return values, PERMUTED[experts]


def with_zeros_of_a_dense_layer(loaded, ids):
    values, experts = roll_out(loaded.model, ids)
    # a buffer with a row for each layer of the model, of which dense ones stay 0
    return values, torch.cat([torch.zeros_like(experts), experts], dim=2)


def without_rows_of_the_prompt(loaded, ids):
    values, experts = roll_out(loaded.model, ids)
    # -1: not recorded, as of a prompt that came out of a prefix cache
    experts[:, :PROMPT] = -1
    return values, experts


def of_older_weights(loaded, ids):
    older = copy.deepcopy(loaded.model)
    for layer in older.model.layers:
        layer.self_attn.o_proj.weight.data *= 1.0001
    return roll_out(older, ids)


@pytest.mark.spread(4)
@pytest.mark.parametrize(
    ("name", "roll"),
    [
        ("qwen", lambda loaded, ids: roll_out(loaded.model, ids)),
        ("gpt_oss", token_by_token),
        ("mixtral", token_by_token),
        ("mixtral", experts_in_another_order),
        ("biased", with_zeros_of_a_dense_layer),
        ("biased", without_rows_of_the_prompt),
        ("mixtral", lambda loaded, ids: roll_out(loaded.model, ids, temperature=0.7)),
        ("qwen", of_older_weights),
    ],
)
def test_routing_is_no_cause_of_a_sound_rollout(name, roll, request, tmp_path):
    loaded = request.getfixturevalue(name)
    ids = prompts_of(loaded)
    causes = explained(tmp_path, loaded, ids, *roll(loaded, ids))
    assert causes
    assert not causes.keys() & {"routing", "experts not compared"}


def test_other_experts_of_near_ties_are_told_apart_from_a_fault(ties, tmp_path):
    ids = prompts_of(ties)
    figures = explained(tmp_path, ties, ids, *token_by_token(ties, ids))["routing"].parameters
    assert figures["no_near_ties"] == 0
    assert figures["mean_abs_replayed"] < 1e-5 < figures["mean_abs"]
