"""Engines as sides: real ones, against transformers, in the run file and on trial."""

import re
import sys

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.families import tiny_family, tiny_prompts
from benchmarks.verdicts.other_engines import (
    PLANTED,
    SCALED,
    SETTINGS,
    WIDE,
    planted,
    planted_folder,
)
from core.checks.modules_alone import LARGEST_ALONE
from core.engines import registry
from core.errors import CaptureError, UsageError
from core.inference.controls.judge_model import judge
from core.inference.controls.modules_alone import ModuleOutputs
from core.inference.models import engine_files
from core.inference.models.model import loaded_from
from core.inference.paths import engine_side
from core.inference.paths.engines import side_of, whole_side
from core.inference.watching.modules import traced_modules
from tests.core.evidence import rows_of
from tests.core.inference.sameness import alone, apart, logits_of, on_cpu, rms
from tests.covering import thorough
from tests.places import MODEL, ROOT

TEXT = (ROOT / "sample_runs" / "prompts" / "parser.txt").read_text()

OTHERS = ROOT / ".engines" / "bin" / "python"  # `make engines`

pytestmark = pytest.mark.model


@pytest.fixture(autouse=True)
def others(request, monkeypatch):
    """An engine of another environment is run by its interpreter, if there is one."""
    if request.node.get_closest_marker("engine") is None:
        return
    if not OTHERS.exists():
        pytest.skip("`make engines` has not made their environment")
    for name in ("VLLM", "OV", "MLX", "GENAI"):
        monkeypatch.setenv(f"ULPSCOPE_ENGINE_{name}", str(OTHERS))


@pytest.fixture(scope="module")
def ids(loaded):
    return tuple(loaded.tokenizer(TEXT)["input_ids"][:48])


# ---- the same function, measured: ENGINES of the documents says 1e-5 between engines in float32


@pytest.mark.spread(4)
@pytest.mark.parametrize(
    "path",
    [
        f"llamacpp:prefill+{WIDE}",
        f"llamacpp:decode+{WIDE}",
        f"llamacpp:chunked:7+{WIDE}",
        f"llamacpp:reuse:31+{WIDE}",
        f"llamacpp:reuse:31+{WIDE}+swap:on+batch:2",
        f"llamacpp:prefill+{WIDE}+batch:4",
        f"llamacpp:prefill+{WIDE}+ubatch:16+threads:1",
        "ort:prefill+optimize:off",
        "ct2:prefill",
        "ct2:prefill+batch:3+threads:1",
        *thorough(["transformers:decode+attn:eager", "transformers:prefill+threads:1"]),
    ],
)
def test_in_float32_engines_agree_with_transformers(loaded, ids, path):
    reference = logits_of("prefill", loaded, ids)
    found = logits_of(path, loaded, ids)
    assert found.dtype == torch.float32
    assert rms(found - reference) < 3e-5
    # the process is kept, and repeats itself
    assert torch.equal(logits_of(path, loaded, ids), found)


def test_transformers_of_the_same_environment_gives_the_same_bits(ids):
    """bfloat16 crosses the pipe as its bits, so that a run in bfloat16 takes them."""
    narrow = on_cpu(MODEL, "bfloat16")
    found = logits_of("transformers:prefill", narrow, ids)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, logits_of("prefill", narrow, ids))


# ---- a GGUF of the very weights

_SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 256,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
# what a family's shape has besides
FAMILIES = {
    "llama": {},
    "llama, own head": {"tie_word_embeddings": False},
    "llama 3 RoPE": {"rope_parameters": _LLAMA3},
    "mistral": {"head_dim": 16, "sliding_window": None},
    "qwen2": {},
    "qwen3": {"head_dim": 32},
    "gemma": {"head_dim": 16, "pad_token_id": 0},
}


def random_model(kind, **settings):
    torch.manual_seed(3)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **settings)).float().eval()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_gguf_written_here_is_the_model(family):
    kind, *_ = re.findall(r"\w+", family)
    model = random_model(kind, **_SHAPE, **FAMILIES[family])
    with torch.no_grad():
        # norms that are not 1, biases that are not 0, attention that looks around
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    tiny = loaded_from(model)
    tokens = list(range(1, 100, 2))
    reference = logits_of("prefill", tiny, tokens)
    found = logits_of(f"llamacpp:prefill+{WIDE}", tiny, tokens)
    # llama.cpp looks GELU up in a table of float16, even if all else is float32
    allowed = 1e-3 if family == "gemma" else 2e-5
    assert apart(found, reference) < allowed * float(reference.abs().max())


def test_a_family_that_is_not_written_is_refused():
    model = random_model("gpt2", n_embd=32, n_layer=1, n_head=2, vocab_size=64)
    with pytest.raises(CaptureError, match="no GGUF of a 'gpt2' model"):
        logits_of("llamacpp:prefill", loaded_from(model), [1, 2])


def test_weights_that_a_dtype_does_not_hold_are_not_rounded_in_silence():
    model = random_model("llama", **_SHAPE)
    with pytest.raises(CaptureError, match="does not hold the model's"):
        logits_of("llamacpp:prefill+weights:bf16", loaded_from(model), [1, 2])


def test_a_gguf_is_written_anew_when_a_weight_changes(loaded, ids):
    before = engine_files.digest_of(loaded)
    weight = loaded.model.model.norm.weight
    with torch.no_grad():
        kept = weight[0].clone()
        weight[0] += 1
        changed = engine_files.digest_of(loaded)
        weight[0] = kept
    assert changed != before
    assert engine_files.digest_of(loaded) == before


# ---- on trial


@pytest.mark.spread(3)
@pytest.mark.parametrize(("path", "verdict"), SETTINGS.items())
def test_no_setting_of_an_engine_is_called_a_bug(loaded, ids, path, verdict):
    found = judge(loaded, [ids], variant=path)
    assert found.name == verdict


ATTENTIONS = {f"model.layers.{n}.self_attn" for n in range(3)}
NORMS = {
    f"model.layers.{n}.{norm}_layernorm" for n in range(3) for norm in ("input", "post_attention")
}
MODULES_OF = {
    "RoPE's base 5 % larger": ATTENTIONS,
    "the norms' epsilon 1e-3": {"model.norm", *NORMS},
    "a row of a projection zero": {"model.layers.1.self_attn"},
    "two heads swapped": {"model.layers.1.self_attn.q_proj"},
    "a block transposed": {"model.layers.2.self_attn"},
    "a norm left out": {"model.layers.1.post_attention_layernorm"},
    SCALED: ATTENTIONS,
}


def figures_of_bug(found):
    """Figures of each module alone, of a verdict that suspects a bug."""
    assert found.name == "bug suspected"
    (alone,) = rows_of(found.evidence, "each module alone")
    return alone.figures


@pytest.mark.spread(2)
@pytest.mark.parametrize("fault", MODULES_OF)
@pytest.mark.parametrize("path", [f"llamacpp:prefill+{WIDE}", "llamacpp:decode"])
def test_a_fault_in_a_gguf_is_called_a_bug_and_its_module_named(
    loaded,
    ids,
    monkeypatch,
    tmp_path,
    fault,
    path,
):
    """Also under llama.cpp's own defaults, whose float16 is as large as some faults."""
    edited = planted(loaded, fault, tmp_path / "edited.gguf")
    monkeypatch.setattr(engine_side, "gguf_of", lambda *_: edited)
    figures = figures_of_bug(judge(loaded, [ids], variant=path))
    assert set(figures.modules_beyond) == MODULES_OF[fault]
    assert figures.largest_ratio_of_others < LARGEST_ALONE / 2


@pytest.mark.spread(1)
@pytest.mark.parametrize("fault", PLANTED)
def test_a_fault_in_a_converted_folder_is_called_a_bug(loaded, ids, monkeypatch, tmp_path, fault):
    edited = planted_folder(loaded, fault, tmp_path / "edited")
    monkeypatch.setattr(engine_side, "folder_of", lambda *_: edited)
    assert judge(loaded, [ids], variant="ct2:prefill").name == "bug suspected"


@pytest.mark.thorough
@pytest.mark.parametrize(
    "path",
    ["ort:prefill", pytest.param("genai:prefill", marks=pytest.mark.engine)],
)
@pytest.mark.parametrize("fault", PLANTED)
def test_a_fault_in_an_exported_graph_is_called_a_bug_and_its_module_named(
    loaded,
    ids,
    monkeypatch,
    tmp_path,
    fault,
    path,
):
    edited = planted_folder(loaded, fault, tmp_path / "edited")
    monkeypatch.setattr(engine_side, "folder_of", lambda *_: edited)
    figures = figures_of_bug(judge(loaded, [ids], variant=path))
    assert set(figures.modules_beyond) == MODULES_OF[fault]


# the values of the last layer are at the end of a sequence's bytes
FORGETFUL = """
import adapter_llamacpp as own
from ulpscope_engine import serve

sound = own.LlamaCppEngine.saved

def saved(engine, row):
    data = sound(engine, row)
    part = len(data) // 20
    return data[:-part] + bytes(part)

own.LlamaCppEngine.saved = saved
serve(dict(own.HELLO, version="1", is_here=True), own.load)
"""


def test_a_cache_that_is_restored_wrongly_has_its_layer_and_position(
    loaded,
    ids,
    tmp_path,
    monkeypatch,
):
    adapter = tmp_path / "forgetful.py"
    adapter.write_text(FORGETFUL)
    place = registry.EngineLocation(sys.executable, adapter)
    monkeypatch.setitem(registry._locations, "forgetful", place)
    found = judge(loaded, [ids], variant=f"forgetful:reuse:20+{WIDE}+swap:on")
    assert set(figures_of_bug(found).modules_beyond) == {"model.layers.2.self_attn"}
    assert found.first_place == (0, 20)


def test_a_restored_cache_has_the_bits_of_one_that_stayed(loaded, ids):
    restored = logits_of("llamacpp:reuse:20+swap:on", loaded, ids)
    assert torch.equal(restored, logits_of("llamacpp:reuse:20", loaded, ids))
    with pytest.raises(UsageError, match="choose reuse:N"):
        side_of("llamacpp:decode+swap:on")


# ---- modules


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    "path",
    [
        f"llamacpp:decode+{WIDE}",
        f"llamacpp:chunked:7+{WIDE}",
        f"llamacpp:reuse:20+{WIDE}",
        f"llamacpp:prefill+{WIDE}+ubatch:16",
        *thorough(["ort:prefill", "transformers:decode"]),
    ],
)
def test_the_modules_of_a_sound_engine_are_transformers_own(loaded, ids, path):
    """By name and by value, at every position: 10 norms, embedding and blocks at least, none beyond
    rounding.
    """
    found = alone(path, loaded, ids)
    names = {"model.embed_tokens", "model.layers.2", "model.layers.0.self_attn.k_proj"}
    assert names | {"model.norm"} <= set(found.names)
    assert len(found.names) >= 32
    assert found.ratios.max() < LARGEST_ALONE / 2


@pytest.mark.parametrize(
    "path",
    [f"llamacpp:prefill+{WIDE}", "llamacpp:prefill", "llamacpp:decode"],
)
def test_being_followed_changes_no_bit(loaded, ids, path):
    trace = ModuleOutputs(ids)
    with torch.inference_mode():
        trace.modules = traced_modules(loaded.model).keys()
        followed = whole_side(side_of(path).run_on(loaded, trace), ids)
    assert len(trace.outputs) > 10
    assert torch.equal(followed, logits_of(path, loaded, ids))


@pytest.mark.thorough
@pytest.mark.engine
@pytest.mark.parametrize(
    "path",
    [
        "vllm:prefill",
        "vllm:walk",
        "vllm:walk+prefix:on",
        "ov:prefill",
        "mlx:decode",
        "mlx:chunked:7",
    ],
)
def test_an_engine_of_another_environment_is_the_model_and_so_is_every_module_of_it(
    loaded,
    ids,
    path,
):
    found = judge(loaded, [ids[:24]], variant=path)
    assert found.name == "rounding"
    modules = alone(path, loaded, ids[:24])
    assert len(modules.names) >= 32
    assert modules.ratios.max() < LARGEST_ALONE


@pytest.mark.thorough
@pytest.mark.engine
def test_only_the_activations_of_a_gemma_differ_in_mlx():
    gemma = tiny_family("gemma")
    modules = alone("mlx:prefill", gemma, tiny_prompts(gemma)[1])
    named = zip(modules.names, modules.ratios.max(axis=1), strict=True)
    wrong = {name for name, ratio in named if ratio > LARGEST_ALONE}
    # mlx-lm 0.32 has the exact GELU
    assert wrong == {f"model.layers.{layer}.mlp" for layer in range(4)}


@pytest.mark.thorough
@pytest.mark.engine
@pytest.mark.parametrize(
    "path",
    ["ov:prefill+precision:bf16", "mlx:prefill+kv:q8", "mlx:decode+kv:q4"],
)
def test_what_an_engine_of_another_environment_rounds_is_no_bug(loaded, ids, path):
    try:
        found = judge(loaded, [ids[:24]], variant=path)
    except CaptureError as error:
        if "this processor has no" not in str(error):
            raise
        pytest.skip(str(error))
    assert found.name == "lower precision"


@pytest.mark.thorough
@pytest.mark.engine
def test_vllm_decodes_given_tokens_where_it_replays_them_and_says_so_where_not(loaded, ids):
    """Its runner for a CPU has no trace replay."""
    try:
        found = logits_of("vllm:decode", loaded, ids[:12])
    except CaptureError as error:
        assert "no trace replay" in str(error)  # noqa: PT017 - either is right
    else:
        assert apart(found, logits_of("prefill", loaded, ids[:12])) < 1e-3
