"""A modifier acts while its path is open and leaves nothing behind; what cannot be done is refused
first.
"""

import shutil
from contextlib import contextmanager

import pytest
import torch
import torch._dynamo
import torch._inductor.config
from transformers import DynamicCache

from core.errors import CaptureError
from core.inference.paths.batch import PromptBatch, ignore
from core.inference.paths.engines import side_of
from core.inference.paths.modifiers import MODIFIERS
from core.inference.paths.paths import open_path, parse_path
from tests.core.inference.capture.test_capture import collect
from tests.core.inference.conftest import MODELS
from tests.core.inference.sameness import (
    apart,
    exact_logits,
    float32_bound,
    logits_of,
    on_cpu,
    planned,
    plant_modifier,
    tokens,
)
from tests.covering import covering

ON_A_CPU = [
    "batch:2+row:1+neighbours:same",
    "pad:left:3",
    "positions:given",
    "attn:eager",
    "dtype:float16",
    "sdpa:math",
    "sdpa:flash",
    "attn:eager+dtype:bfloat16+threads:3",
]
# Paths that change the machine and have to compute what a float64 forward does: `test_paths.py`
# holds them to it.
ON_A_MACHINE = [
    "prefill+attn:eager",
    "static+attn:eager",
    "prefill+pad:left:5+attn:eager",
    "prefill+positions:given",
    "decode+positions:given",
    "blocks:8+threads:2",
    "prefill+dtype:float32",
]


def state(loaded):
    """Everything a modifier may touch, the bits of every weight among it."""
    weights = {
        name: (weight.dtype, weight.shape, weight.contiguous().view(torch.uint8).numpy().tobytes())
        for name, weight in loaded.model.state_dict().items()
    }
    products = torch.backends.cuda.matmul
    return {
        "weights": weights,
        "storage": [weight.data_ptr() for weight in loaded.model.parameters()],
        "threads": torch.get_num_threads(),
        "attention": loaded.model.config._attn_implementation,
        "sdpa": (
            torch.backends.cuda.flash_sdp_enabled(),
            torch.backends.cuda.math_sdp_enabled(),
            torch.backends.cuda.mem_efficient_sdp_enabled(),
            torch.backends.cuda.cudnn_sdp_enabled(),
        ),
        "float32 products": torch.get_float32_matmul_precision(),
        "reductions": (
            products.allow_bf16_reduced_precision_reduction,
            products.allow_bf16_reduced_precision_reduction_split_k,
            products.allow_fp16_reduced_precision_reduction,
            products.allow_fp16_reduced_precision_reduction_split_k,
        ),
        "compile": torch._dynamo.config.fail_on_recompile_limit_hit,
    }


def _abandon(*_):
    raise RuntimeError("abandoned")


def leaves_no_trace(text, loaded):
    """The state is the same after the path ran to its end, after it was abandoned, and after it
    broke.
    """
    before = state(loaded)
    ids = tokens(loaded)
    with torch.inference_mode():
        side_of(text).run_on(loaded)(ids, ignore)
        after_the_end = state(loaded)
        with pytest.raises(RuntimeError, match="abandoned"):
            side_of(text).run_on(loaded)(ids, _abandon)
        abandoned = state(loaded)
        with pytest.raises(RuntimeError, match="planted"), open_path(parse_path(text), loaded):
            raise RuntimeError("planted")
    return before == after_the_end == abandoned == state(loaded)


@pytest.mark.model
@pytest.mark.parametrize(
    ("modifiers", "name"),
    # qwen2: its head is its embedding, one tensor with two names
    covering(list(ON_A_CPU), ["qwen2", "llama"]),
)
def test_a_path_leaves_no_trace(modifiers, name, model_of):
    assert leaves_no_trace(f"decode+{modifiers}", model_of(name))


@pytest.mark.model
def test_a_modifier_that_leaves_a_bit_flipped_is_caught(model_folders, monkeypatch):
    @contextmanager
    def leaky(batch):
        yield batch
        weight = next(batch.loaded.model.parameters()).data
        weight.view(torch.int32).view(-1)[0] ^= 1

    plant_modifier(monkeypatch, "leaky", leaky)
    loaded = on_cpu(model_folders["llama"])
    assert not leaves_no_trace("prefill+leaky", loaded)


@pytest.mark.parametrize(
    ("modifier", "values", "key", "changed"),
    [
        ("threads", (3,), "threads", 3),
        ("attn", ("eager",), "attention", "eager"),
        ("sdpa", ("math",), "sdpa", (False, True, False, False)),
        ("sdpa", ("flash",), "sdpa", (True, False, False, False)),
        # settings of CUDA can be set and read anywhere
        ("tf32", (), "float32 products", "high"),
        ("reduced", ("off",), "reductions", (False, True, False, True)),
        ("reduced", ("on",), "reductions", (True, True, True, True)),
    ],
)
def test_a_switch_is_set_while_its_path_is_open_and_put_back(
    modifier,
    values,
    key,
    changed,
    llama,
):
    before = state(llama)
    during = {}

    def break_inside():
        with MODIFIERS[modifier].change(PromptBatch(llama), *values):
            during.update(state(llama))
            raise RuntimeError("planted")

    with pytest.raises(RuntimeError, match="planted"):
        break_inside()
    assert during == {**before, key: changed}
    assert state(llama) == before


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's own reasons
def test_a_backend_without_a_kernel_is_named(llama):
    # flash attention takes four dimensions
    x = torch.ones(2, 3, 4)
    with (
        pytest.raises(CaptureError, match="sdpa:flash"),
        MODIFIERS["sdpa"].change(PromptBatch(llama), "flash"),
    ):
        torch.nn.functional.scaled_dot_product_attention(x, x, x)


def test_the_prompt_stands_in_its_row_between_its_neighbours_and_padding_surrounds_every_row(
    llama,
):
    ids = tuple(tokens(llama))
    own = torch.tensor([ids])
    first = PromptBatch(llama, ids, rows=4).token_ids
    third = PromptBatch(llama, ids, rows=4, row=2, left_padding=3, right_padding=1).token_ids
    assert torch.equal(first[:1], own)
    expected = torch.cat([first[1:3], own, first[3:]])
    assert torch.equal(third[:, 3:-1], expected)


@pytest.mark.spread(8)
@pytest.mark.model
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", MODELS)
def test_a_converted_model_gives_the_bits_of_one_loaded_in_that_dtype(
    name,
    dtype,
    model_of,
):
    wide = model_of(name)
    narrow = model_of(name, dtype)
    found = logits_of(f"prefill+dtype:{dtype}", wide)
    assert found.dtype == torch.float32
    assert torch.equal(found, logits_of("prefill", narrow).float())
    assert not torch.equal(found, logits_of("prefill", wide))


@pytest.mark.model
def test_a_capture_says_which_dtype_a_side_was_computed_in_and_keeps_its_bits(llama):
    plan = planned(
        llama,
        ["def walk(self, path)", "The ferry"],
        "prefill",
        ["prefill+dtype:bfloat16", "decode+batch:2"],
    )
    assert [side.source_dtype for side in plan.header.sides] == ["float32", "bfloat16", "float32"]
    assert plan.header.compute_dtype == "float32"
    sides = collect(plan).sides
    assert all(bits.dtype.itemsize == 4 for parts in sides for bits in parts)
    # every value is a bfloat16
    assert not any((bits & 0xFFFF).any() for bits in sides[1])
    assert any((bits & 0xFFFF).any() for bits in sides[0])


@pytest.mark.parametrize(
    ("model", "path", "sentence"),
    [
        ("llama", "reuse:32", "has nothing left to compute after the first 32"),
        (
            "llama",
            "prefill+attn:flash_attention_2",
            "has no attention 'flash_attention_2'; choose eager or",
        ),
        (
            "gemma2",
            "decode+attn:sdpa",
            "a Gemma2ForCausalLM on cpu has no attention 'sdpa'; choose eager.",
        ),
        (
            "gemma2",
            "decode+sdpa:math",
            "needs sdpa attention, and this is eager; leave it",
        ),
        (
            "llama",
            "prefill+sdpa:efficient",
            "sdpa on a CPU has no backend 'efficient'; choose",
        ),
        (
            "llama",
            "prefill+tf32",
            "tf32 needs CUDA, and the model is on cpu; leave it out.",
        ),
        (
            "llama float16",
            "prefill+dtype:bfloat16",
            "bfloat16 logits do not fit a run in float16 bit for bit",
        ),
        (
            "gpt1",
            "decode",
            "a OpenAIGPTLMHeadModel has no cache to read from; choose prefill.",
        ),
        (
            "rwkv",
            "static",
            "a RwkvForCausalLM has no cache that can be allocated beforehand; choose decode.",
        ),
        (
            "bloom",
            "prefill+pad:left:3",
            "has no position_ids, so padding would change its function",
        ),
        ("bloom", "decode+positions:given", "has no position_ids"),
    ],
)
def test_what_a_model_or_device_cannot_do_is_refused_before_any_forward(
    model,
    path,
    sentence,
    model_of,
):
    loaded = model_of(*model.split())
    forwards = []
    with loaded.model.register_forward_pre_hook(lambda *_: forwards.append("computed")):
        for attempt in (planned, lambda *_: logits_of(path, loaded)):
            with pytest.raises(CaptureError) as caught:
                attempt(loaded, [tokens(loaded)], "prefill", [path])
            assert str(caught.value).startswith(f"path '{path}': ")
            assert sentence in str(caught.value)
    assert forwards == []


def own_loop(loaded, size, *, gives_positions):
    """A decoding loop of the user's own, `size` tokens a call. [positions, vocab]"""
    ids = torch.tensor([tokens(loaded)])
    cache = DynamicCache(config=loaded.model.config)
    rows = []
    with torch.inference_mode():
        for start in range(0, ids.shape[1], size):
            own = ids[:, start : start + size]
            places = torch.arange(start, start + own.shape[1])[None]
            given = {"position_ids": places} if gives_positions else {}
            output = loaded.model(own, past_key_values=cache, use_cache=True, **given)
            rows.append(output.logits[0])
    return torch.cat(rows)


@pytest.mark.model
@pytest.mark.parametrize(
    ("base", "size"),
    [
        ("decode", 1),
        ("chunked:5", 5),
        ("reuse:16", 16),
    ],
)
@pytest.mark.parametrize("name", ["llama", "bamba"])
def test_positions_are_the_models_own_unless_given(name, base, size, model_of):
    loaded = model_of(name)
    own = logits_of(base, loaded)
    given = logits_of(f"{base}+positions:given", loaded)
    assert torch.equal(own, own_loop(loaded, size, gives_positions=False))
    assert torch.equal(given, own_loop(loaded, size, gives_positions=True))


@pytest.mark.model
@pytest.mark.parametrize("base", ["decode", "chunked:5", "reuse:7", "blocks:8", "static"])
def test_given_positions_change_only_a_model_that_counts_wrongly(base, model_folders):
    """The planted fault is that of Bamba in transformers 5.23: every call begins at 0."""
    loaded = on_cpu(model_folders["llama"])
    sound = logits_of(base, loaded)
    assert torch.equal(logits_of(f"{base}+positions:given", loaded), sound)

    def begin_at_zero(_, args, kwargs):
        if kwargs.get("position_ids") is None:
            kwargs["position_ids"] = torch.arange(kwargs["input_ids"].shape[1])[None]
        return args, kwargs

    loaded.model.register_forward_pre_hook(begin_at_zero, with_kwargs=True)
    assert torch.equal(logits_of(f"{base}+positions:given", loaded), sound)
    assert apart(logits_of(base, loaded), sound) > float32_bound(loaded)


def test_the_memory_of_logits_is_known_beforehand(llama):
    rows = {
        "prefill": 40,
        "decode": 1,
        "chunked:8": 8,
        "chunked:80": 40,
        "reuse:10": 30,
        "reuse:30": 30,
        "blocks:16": 40,
        "prefill+batch:3": 120,
        # 5 columns of padding in each of three rows
        "prefill+batch:3+pad:left:5": 135,
    }
    row_bytes = llama.vocab_size * 4
    found = {path: parse_path(path).logits_bytes(llama, 40) // row_bytes for path in rows}
    assert found == rows


@pytest.mark.model
@pytest.mark.thorough
@pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None,
    reason="needs a C++ compiler",
)
def test_a_compiled_model_computes_the_same_with_other_bits_and_is_forgotten(model_of):
    loaded = model_of("llama")
    before = state(loaded)
    compiled = logits_of("prefill+compile", loaded)
    assert state(loaded) == before
    assert apart(compiled, exact_logits(loaded)) <= float32_bound(loaded)
    # or nothing was compiled
    assert not torch.equal(compiled, logits_of("prefill", loaded))
    code = type(loaded.model).forward.__code__
    assert torch._dynamo.eval_frame._debug_get_cache_entry_list(code) == []
