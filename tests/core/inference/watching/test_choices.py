"""Choices that a capture records: of every family of routers, in its own forwards."""

import re
from collections import Counter

import pytest
import torch
from transformers import AutoConfig

from benchmarks.verdicts.tiny_models import model_of, tiny_model, tiny_prompts
from core.capture_request import CaptureRequest
from core.commands.capturing import run_plan
from core.inference.capture.capture import plan_capture
from core.inference.controls.choices import choices_of
from core.inference.paths.engines import PLAIN, digest_of, side_of
from core.inference.watching.choices import ChoiceRecorder
from core.progress import no_progress
from tests.core.inference.odd_models import deepseek_v32
from tests.core.runs.made_runs import opened

pytestmark = pytest.mark.model

SHAPE = {
    "vocab_size": 384,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "pad_token_id": 0,
    "moe_intermediate_size": 32,
    "num_experts_per_tok": 2,
    "initializer_range": 0.15,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
LATENT = {
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
    "head_dim": 8,
    "n_routed_experts": 8,
    "first_k_dense_replace": 0,
}
GROUPS = {"n_group": 2, "topk_group": 1}
INDEXER = {"index_topk": 8, "index_n_heads": 2, "index_head_dim": 16}
# more of a config, and the choices of a layer: with groups also of the two best of each, and of
# groups; with an indexer also of keys
FAMILIES = {
    "mixtral": ({"num_local_experts": 8}, 1),
    "qwen2_moe": ({"num_experts": 8, "shared_expert_intermediate_size": 32}, 1),
    "qwen3_moe": ({"num_experts": 8}, 1),
    "qwen3_5_moe_text": ({"num_experts": 8, "shared_expert_intermediate_size": 32}, 1),
    "qwen3_next": ({"num_experts": 8, "shared_expert_intermediate_size": 32}, 1),
    "deepseek_v2": (LATENT | GROUPS | {"topk_method": "group_limited_greedy"}, 2),
    "deepseek_v3": (LATENT | GROUPS, 3),
    "deepseek_v32": (LATENT | GROUPS | INDEXER, 4),
    "deepseek_v4": ({"num_local_experts": 8, "mlp_layer_types": ["moe", "moe"]}, 1),
    "glm4_moe": ({"n_routed_experts": 8, "first_k_dense_replace": 0} | GROUPS, 3),
    "glm_moe_dsa": (LATENT | GROUPS | INDEXER | {"mlp_layer_types": ["sparse"] * 2}, 4),
    "gpt_oss": ({"num_local_experts": 8}, 1),
    "llama4_text": ({"num_local_experts": 8, "intermediate_size_mlp": 64}, 1),
    "granitemoe": ({"num_local_experts": 8}, 1),
    "ernie4_5_moe": (
        {
            "moe_num_experts": 8,
            "moe_k": 2,
            "moe_layer_start_index": 0,
        },
        1,
    ),
    "minimax_m2": ({"num_local_experts": 8}, 1),
    "olmoe": ({"num_experts": 8}, 1),
    "kimi_linear": ({**LATENT, "num_experts": 8} | GROUPS, 3),
    # its router takes the largest score twice, by max
    "phimoe": ({"num_local_experts": 8}, 0),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_routers_of_a_family_are_seen(family):
    more, expected = FAMILIES[family]
    loaded = model_of(AutoConfig.for_model(family, **SHAPE | more))
    with torch.inference_mode():
        choices = choices_of(loaded, PLAIN, range(5, 29))
    layers = Counter(re.search(r"layers\.(\d+)", name)[1] for name, _ in choices.ids)
    assert layers == ({"0": expected, "1": expected} if expected else {})


def captured(store, loaded, *variants, **request):
    """The run of a capture."""
    request = CaptureRequest(model="tiny", variants=variants, dtype="float32", **request)
    run_id, _ = run_plan(plan_capture(loaded, tiny_prompts(loaded), request), store, no_progress)
    return opened(store, run_id)


@pytest.mark.parametrize("layers", [False, True])
def test_a_capture_stores_what_its_own_forwards_chose_and_the_bits_of_plain_ones(store, layers):
    loaded = tiny_model("mixtral-ties")
    path = "prefill+batch:3+row:1+pad:left:2"
    prompts = tiny_prompts(loaded)
    with captured(store, loaded, path, layers=layers) as run, torch.inference_mode():
        for side, name in enumerate(["prefill", path]):
            assert run.sides[side].sha256 == digest_of(loaded, prompts, side_of(name))
            (scores, *_) = choices_of(loaded, side_of(name), prompts[1]).scores.values()
            best = scores[:, 0].topk(3)
            rows = run.rows("choice", side=side, prompt=1, ordinal=0)
            # what a layer chose is stored in the order of ids
            chosen = best.indices[:, :2].sort().values
            assert rows["ids"].map(list).tolist() == chosen.tolist()
            cut = torch.tensor(rows[["lowest_chosen", "highest_left_out"]].to_numpy())
            assert torch.equal(cut, best.values[:, 1:].double())


def test_keys_are_positions_whatever_the_padding_and_none_is_chosen_if_all_are_taken(store):
    loaded = model_of(deepseek_v32(8))
    variants = "decode", "prefill+batch:3+pad:left:2"
    with captured(store, loaded, *variants) as run:
        keys = run.query(
            "SELECT side, position, ids FROM choice WHERE ends_with(module, 'indexer')"
        )
        ids = keys["ids"].map(list)
    assert keys["side"].unique().tolist() == [0, 1, 2]
    # with 8 keys or fewer there is no choice
    assert keys.groupby("side")["position"].min().tolist() == [8, 8, 8]
    assert (ids.map(min) >= 0).all()
    assert (ids.map(max) <= keys["position"]).all()


def test_of_groups_of_experts_only_what_is_chosen_of_them_all_is_recorded():
    recorder = ChoiceRecorder(6)
    scores = torch.tensor([[4.0, 3.0, 1.0, 2.0, 8.0, 1.5]])
    of_groups = scores.reshape(1, 2, 3)
    recorder.note(("gate", 0), 5, of_groups.topk(1).indices, of_groups)
    recorder.note(
        ("gate", 1),
        5,
        scores[None].topk(2).indices,
        scores[None],
    )
    (table,) = recorder.take(0, 0)
    (row,) = table.to_pylist()
    assert row["call"] == 2
    assert row["position"] == 5
    assert row["ids"] == [0, 4]
    assert row["lowest_chosen"] == 4.0
    assert row["highest_left_out"] == 3.0
    # the spacing of float32 at 8 is 2^-20
    assert row["margin_row_ulps"] == 2**20
    assert list(recorder.take(0, 0)) == []
