"""Modules taken one at a time: a planted fault is named where it is and nowhere after it, and
rounding names none.
"""

from functools import partial
from itertools import count

import pytest
import torch
from transformers import Gemma3nTextConfig

from benchmarks.verdicts.engines import prefill
from benchmarks.verdicts.kinds import KINDS
from benchmarks.verdicts.mutations import MUTATIONS
from benchmarks.verdicts.tiny_models import model_of, tiny_model, tiny_prompts
from core.checks.modules_alone import ALONE, LARGEST_ALONE, alone_evidence
from core.errors import CaptureError
from core.inference.controls.judge_model import judge
from core.inference.paths.paths import parse_path
from core.inference.watching.modules import traced_modules
from tests.core.evidence import rows_of
from tests.core.inference import sameness
from tests.core.inference.conftest import config_of
from tests.core.inference.sameness import replacing_output
from tests.covering import thorough

pytestmark = pytest.mark.model
GLOBAL_FAULTS = [
    "one stale slot of an earlier request",
    "block table shifted by one",
    "attention scaled by head_dim, not its root",
    "rotary base 1 % off",
    "norm epsilon 1e-5 for 1e-6",
]


@pytest.fixture(scope="module")
def loaded():
    return tiny_model("llama")


def alone(loaded, engine):
    return sameness.alone(engine, loaded, tiny_prompts(loaded)[0])


def figures_alone(loaded, engine):
    return alone_evidence("c", alone(loaded, engine), "engine").figures


def with_fault(name, change):
    """An engine that is the model with one module's output changed."""

    def engine(model, ids):
        module = model.get_submodule(name)
        # before the hooks that watch modules, which have to see the fault
        handle = module.register_forward_hook(replacing_output(change), prepend=True)
        try:
            return prefill(model, ids)
        finally:
            handle.remove()

    return engine


@pytest.mark.parametrize(
    "path",
    ["decode", "decode+batch:4", "prefill+pad:left:3", "prefill+attn:eager"],
)
def test_of_the_same_function_no_module_differs_by_more_than_rounding(loaded, path):
    found = alone(loaded, path)
    assert len(found.names) > 30
    assert found.ratios.max() < LARGEST_ALONE / 2


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.input_layernorm",
        "model.layers.1.self_attn.v_proj",
        "model.layers.1.self_attn",
        "model.layers.2.mlp.gate_proj",
        "model.layers.2.mlp",
        "model.norm",
    ],
)
def test_a_fault_is_named_at_its_module_and_position_and_not_at_those_that_it_reaches(loaded, name):
    def change(output):
        output = output.clone()
        output[:, 11] *= 1.0001
        return output

    row = alone_evidence("c", alone(loaded, with_fault(name, change)), "engine", 1)
    beyond = set(row.figures.modules_beyond)
    assert row.figures.first == (1, 11)
    # what stands in the module computes as it did; what is made of its output alone bears the
    # fault's name
    assert name in beyond or f"{name}.o_proj" in beyond or f"{name}.down_proj" in beyond
    assert len(beyond) == 1
    assert row.figures.largest_ratio_of_others < LARGEST_ALONE / 2


def test_a_module_called_for_each_kind_of_layer_is_compared_by_call():
    model = model_of(config_of("gemma3"))
    blocks = [
        name
        for name, part in traced_modules(model.model).items()
        if "attn" in name and "norm" not in name
    ]
    assert len(blocks) == 2
    for block in blocks:
        found = alone(model, with_fault(block, lambda output: output * 1.001))
        assert "model.rotary_emb (call 2)" in found.names
        assert alone_evidence("c", found, "engine").figures.modules_beyond == (block,)

    def late(output):
        return (output[0] * 1.001, output[1]) if next(calls) % 2 else output

    def engine(model, ids):
        rotary = model.get_submodule("model.rotary_emb")
        with rotary.register_forward_hook(lambda *call: late(call[2]), prepend=True):
            return prefill(model, ids)

    calls = count()
    assert figures_alone(model, engine).modules_beyond == ("model.rotary_emb (call 2)",)


def test_a_model_that_scales_an_output_in_place_and_has_sizes_by_layer():
    """Gemma 3n has both: a projection times a constant, and a list of `intermediate_size`."""
    config = Gemma3nTextConfig(
        vocab_size=384,
        vocab_size_per_layer_input=384,
        hidden_size=32,
        hidden_size_per_layer_input=8,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_kv_shared_layers=0,
        head_dim=16,
        layer_types=["sliding_attention", "full_attention"],
        activation_sparsity_pattern=[0.0, 0.0],
        laurel_rank=4,
    )
    model = model_of(config)
    assert isinstance(model.model.config.intermediate_size, list)
    block = "model.layers.1.self_attn"
    mixed = with_fault(block, lambda output: output + 0.05 * output.roll(1, -1))
    assert figures_alone(model, mixed).modules_beyond == (block,)
    assert parse_path("prefill").working_bytes(model, 28) > 0


def test_blocks_that_share_a_module_are_compared_by_call():
    model = tiny_model("llama")
    layers = model.model.model.layers
    for layer in layers:
        layer.post_attention_layernorm = layers[0].post_attention_layernorm
    scaled = with_fault("model.layers.2.mlp", lambda output: output * 1.001)
    assert figures_alone(model, scaled).modules_beyond == ("model.layers.2.mlp",)
    assert alone(model, "decode").ratios.max() < LARGEST_ALONE / 2


def test_nan_is_told_where_it_begins_and_no_module_after_it_is_blamed(loaded):
    def change(output):
        output = output.clone()
        output[:, 3, 0] = float("nan")
        return output

    with pytest.raises(CaptureError, match=r"first at model\.layers\.1\.mlp\.up_proj"):
        alone(loaded, with_fault("model.layers.1.mlp.up_proj", change))


def test_an_engine_that_shows_no_module_is_refused(loaded):
    weight = loaded.model.lm_head.weight
    with pytest.raises(CaptureError, match="hands on no module's outputs"):
        alone(loaded, lambda model, ids: weight[ids][:, :8] @ weight[:, :8].T)


CASES = {case.name: case.engine for case in (*MUTATIONS, *KINDS)}
BITS = {
    "TF32 by truncation": ("self_attn and mlp", 10),
    "partial sums in bfloat16": ("self_attn and mlp", 8),
    "partial sums in float16": ("self_attn and mlp", 11),
    "int8 cache, a scale a channel": ("self_attn", 7.5),
    "fp8 inputs of the MLP's last map": ("mlp", 4.5),
}


@pytest.mark.parametrize("name", BITS)
def test_a_lower_precision_is_known_by_its_bits_in_all_blocks(loaded, name):
    figures = figures_alone(loaded, CASES[name])
    assert figures.kind == BITS[name][0]
    assert figures.blocks == 3
    assert figures.bits == pytest.approx(BITS[name][1], abs=0.5)
    assert figures.first is None


@pytest.mark.parametrize("name", GLOBAL_FAULTS)
def test_a_fault_in_every_layer_is_no_lower_precision(loaded, name):
    figures = figures_alone(loaded, CASES[name])
    assert figures.modules_beyond
    assert figures.kind is None


def _in_parts(model, ids, watch, fault=1.0, at=1):
    """Blocks by hand, whose outputs are handed in eight positions at a time: hooks on the model see
    no forward of it.
    """
    body = model.model
    hidden = body.embed_tokens(ids[None])
    angles = body.rotary_emb(hidden, torch.arange(len(ids))[None])
    for number, block in enumerate(body.layers):
        hidden = block(hidden, position_embeddings=angles)
        if number == at:
            hidden[:, 5] *= fault
        for start in range(0, len(ids), 8):
            watch(f"model.layers.{number}", hidden[0, start : start + 8], start=start)
    return model.lm_head(body.norm(hidden))[0]


@pytest.mark.parametrize(
    ("dtype", "side"),
    [
        ("bfloat16", "variant"),
        ("float32", "reference"),
        *thorough([("float32", "variant"), ("bfloat16", "reference")]),
    ],
)
def test_a_module_that_an_engine_hands_in_is_named_whichever_side_it_is(dtype, side):
    loaded = tiny_model("llama", dtype)
    engine = partial(_in_parts, fault=1.01)
    sides = {"reference": "prefill", "variant": "prefill", side: engine}
    found = judge(loaded, tiny_prompts(loaded), **sides)
    assert found.name == "bug suspected"
    assert found.first_place == (0, 5)
    assert rows_of(found.evidence, ALONE)[0].figures.modules_beyond == ("model.layers.1",)


@pytest.mark.parametrize(
    ("name", "tensor", "start", "what"),
    [
        ("model.layers.9", torch.ones(3, 64), 0, r"'model\.layers\.9'"),
        ("attention", torch.ones(3, 64), 0, r"'attention'.*model\.embed_tokens"),
        ("model.norm", torch.ones(1, 3, 64), 0, r"\[1, 3, 64\]"),
        ("model.norm", torch.ones(3, 64), 40, "position 40"),
        ("model.norm", torch.ones(3, 64, dtype=torch.int32), 0, "numbers"),
        ("model.norm", [1.0], 0, "list"),
    ],
)
def test_what_is_no_output_of_a_module_is_refused(name, tensor, start, what):
    loaded = tiny_model("llama")

    def engine(model, ids, watch):
        watch(name, tensor, start)
        return prefill(model, ids)

    with pytest.raises(CaptureError, match=what):
        judge(loaded, tiny_prompts(loaded)[:1], reference="prefill", variant=engine)
