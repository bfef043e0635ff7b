"""Every path computes the same function, on every kind of model; the grammar says what exists."""

from itertools import accumulate

import pytest
import torch
from transformers import DynamicCache

from benchmarks.families import tiny_family
from core.errors import CaptureError, UsageError
from core.inference.paths import batch
from core.inference.paths.engines import side_of
from core.inference.paths.paths import parse_path
from tests.core.inference.capture.test_capture import collect
from tests.core.inference.conftest import MODELS
from tests.core.inference.paths.test_modifiers import ON_A_MACHINE
from tests.core.inference.sameness import (
    computes_the_same,
    float32_bound,
    logits_of,
    planned,
    plant_base,
    tokens,
)
from tests.covering import covering

BASES = [
    "prefill",
    "decode",
    "chunked:5",
    "chunked:40",
    "reuse:1",
    "reuse:7",
    "reuse:31",
    "blocks:1",
    "blocks:8",
    "blocks:64",
    "static",
]
# paths of several forwards
OF_CACHES = ["decode", "chunked:5", "reuse:7", "blocks:8", "static"]
AROUND = [
    "prefill+batch:4",
    "decode+batch:4",
    "static+batch:4",
    "blocks:8+batch:3+row:2+neighbours:random",
    "chunked:5+batch:2+row:1+neighbours:same",
    "prefill+pad:left:5",
    "prefill+pad:right:5",
    "decode+pad:left:5",
    "decode+pad:right:3",
    "chunked:5+pad:left:3",
    "reuse:9+pad:left:5",
    "blocks:8+pad:left:5",
    "blocks:5+pad:right:3",
    "static+pad:left:5",
    "static+pad:right:3",
    "prefill+batch:3+row:1+pad:left:2",
]
PATHS = [*BASES, *AROUND, *ON_A_MACHINE]


@pytest.mark.model
@pytest.mark.parametrize(
    ("loaded", "path"),
    covering(MODELS, PATHS, whole=("llama", "gpt2", "mistral-window")),
    indirect=["loaded"],
)
def test_a_path_computes_what_a_float64_forward_computes(path, loaded):
    assert computes_the_same(path, loaded)


@pytest.mark.model
@pytest.mark.parametrize(
    "path",
    ["prefill+sdpa:math", "prefill+sdpa:flash", "decode+pad:left:5+sdpa:math"],
)
@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral-window", "gemma3"])
def test_a_chosen_kernel_of_sdpa_computes_it_too(path, name, model_of):
    assert computes_the_same(path, model_of(name))


@pytest.mark.model
@pytest.mark.parametrize(
    ("name", "path"),
    [
        *((name, path) for name in ("lfm2", "mamba2") for path in OF_CACHES),
        # a continuation of several tokens drops the state in transformers 5.23
        *(("mamba", path) for path in ("decode", "static")),
        *((name, path) for name in ("minimax", "rwkv") for path in OF_CACHES[:-1]),
        ("lfm2", "decode+pad:left:3"),
        *(("bamba", f"{path}+positions:given") for path in ("decode", "reuse:7", "static")),
    ],
)
def test_models_with_a_running_state_take_the_paths_that_copy_it(name, path, model_of):
    assert computes_the_same(path, model_of(name))


@pytest.mark.model
@pytest.mark.parametrize(
    ("family", "path", "reason"),
    [
        ("prophetnet", "chunked:5", "cannot continue a cache by several tokens; choose prefill"),
        ("prophetnet", "static", "cannot use a cache allocated beforehand; choose prefill"),
        ("deepseek_v4", "static", "has no cache that can be allocated beforehand; choose decode"),
        ("cpmant", "decode", "the model gave no logits of position 1"),
    ],
)
def test_a_family_that_cannot_use_its_cache_so_is_refused_with_the_reason(family, path, reason):
    loaded = tiny_family(family)
    with pytest.raises(CaptureError, match=f"path '{path}': .*{reason}"):
        collect(planned(loaded, [tokens(loaded)], "prefill", [path], kv=False))


@pytest.mark.model
def test_logits_of_reused_positions_are_the_earlier_calls(llama_bfloat16):
    ids = tokens(llama_bfloat16)
    whole = logits_of("prefill", llama_bfloat16)
    assert torch.equal(
        logits_of("reuse:7", llama_bfloat16)[:7],
        logits_of("prefill", llama_bfloat16, ids[:7]),
    )
    assert torch.equal(logits_of("blocks:5", llama_bfloat16)[:30], whole[:30])
    assert torch.equal(logits_of("blocks:31", llama_bfloat16)[:31], whole[:31])


@pytest.mark.model
@pytest.mark.parametrize(
    ("size", "fresh"),
    [
        (1, 1),
        (5, 2),
        (8, 8),
        (16, 16),
        (31, 1),
        (32, 32),
        (100, 32),
    ],
)
def test_blocks_reuse_the_longest_prefix_of_whole_blocks_that_leaves_a_token(
    size,
    fresh,
    llama,
):
    lengths = []
    with llama.model.register_forward_pre_hook(
        lambda _, args, kwargs: lengths.append(kwargs["input_ids"].shape[1]),
        with_kwargs=True,
    ):
        logits_of(f"blocks:{size}", llama)
    assert lengths == ([32, fresh] if fresh < 32 else [32])


@pytest.mark.model
@pytest.mark.parametrize("path", OF_CACHES)
def test_a_model_whose_rotation_changes_with_the_length_takes_a_cache_only_below_that_length(
    path,
    model_of,
):
    loaded = model_of("longrope")
    with pytest.raises(CaptureError, match="changes its rotary frequencies beyond 24 tokens"):
        logits_of(path, loaded)
    assert computes_the_same("prefill", loaded)
    short = tokens(loaded)[:24]
    assert torch.allclose(
        logits_of(path, loaded, short),
        logits_of("prefill", loaded, short),
        atol=float32_bound(loaded),
        rtol=0,
    )


def _faulty_cache(batch, emit):
    """Fault: one cached value of one head is scaled by 1.01."""
    cache = DynamicCache(config=batch.loaded.model.config)
    for position in range(batch.positions):
        batch.forward(position, position + 1, emit, cache)
        if position == 3:
            cache.layers[0].values[batch.row, 0, 2] *= 1.01


def _position_off_by_one(batch, emit):
    """Fault: the tokens after the reused prefix believe to stand one further right."""
    model, prefix = batch.loaded.model, 8
    cache = DynamicCache(config=model.config)
    batch.forward(0, prefix, emit, cache)
    places = torch.arange(prefix, batch.positions)[None] + 1
    rest = model(
        input_ids=batch.token_ids[:, prefix:],
        position_ids=places,
        past_key_values=cache,
        use_cache=True,
    )
    emit(prefix, rest.logits[batch.row])


@pytest.mark.model
@pytest.mark.parametrize("fault", [_faulty_cache, _position_off_by_one])
def test_a_planted_fault_is_caught_by_the_same_check(fault, loaded, monkeypatch):
    plant_base(monkeypatch, "faulty", fault)
    assert not computes_the_same("faulty", loaded)


@pytest.mark.parametrize("path", PATHS)
def test_pieces_come_in_order_and_are_bounded(path, llama, monkeypatch):
    monkeypatch.setattr(batch, "CHUNK_BYTES", 5 * llama.vocab_size * 4)
    with torch.inference_mode():
        pieces = []
        side_of(path).run_on(llama)(
            range(40),
            lambda position, logits: pieces.append((position, len(logits))),
        )
    positions, counts = zip(*pieces, strict=True)
    assert (*positions, 40) == (0, *accumulate(counts))
    assert max(counts) <= 5


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        (" Decode ", "decode"),
        ("prefill+batch:08", "prefill+batch:8"),
        (
            "Blocks:032 + PAD:Left:3 + batch:4 + attn:Eager + row:2",
            "blocks:32+batch:4+row:2+pad:left:3+attn:eager",
        ),
        (
            "prefill+compile+tf32+threads:1+neighbours:same+batch:2",
            "prefill+batch:2+neighbours:same+threads:1+tf32+compile",
        ),
    ],
)
def test_paths_have_one_canonical_form(text, canonical):
    assert str(parse_path(text)) == canonical
    assert parse_path(text) == parse_path(canonical)
    assert hash(parse_path(text)) == hash(parse_path(canonical))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "prefil",
            "no base 'prefil'; bases are prefill, decode, chunked:N, reuse:N, blocks:N, static,",
        ),
        ("prefill:3", "base 'prefill:3' has 1 values, not 0; write prefill."),
        ("decode+batch", "modifier 'batch' has 0 values, not 1; write batch:N."),
        ("decode+batch:0", "batch takes a whole number of at least 1, not '0'; write batch:N."),
        ("decode+batch:²", "not '²'"),
        ("decode+batch:2+batch:2", "modifier 'batch' is given twice"),
        (
            "prefill+pad:middle:3",
            "pad takes one of left, right, not 'middle'; write pad:left|right:N.",
        ),
        ("prefill+row:3", "row:3 needs a batch of at least 4; add batch:N."),
        ("decode+neighbours:same", "neighbours:same needs other rows; add batch:N."),
        ("prefill+threads:257", "threads takes a whole number of 1 to 256"),
        ("prefill+dtype:int8", "dtype takes one of float32, float16, bfloat16, not 'int8'"),
        ("prefill+attn:../x", "attn takes the name of an attention, not '../x'"),
    ],
)
def test_a_path_that_does_not_parse_is_answered_with_what_exists(text, sentence):
    with pytest.raises(UsageError) as caught:
        parse_path(text)
    assert f"path '{text}'" in str(caught.value)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("position", "logits", "sentence"),
    [
        (0, torch.zeros(3, 384, dtype=torch.float64), "gave float64 logits; expected float32"),
        (0, torch.zeros(3, 7), r"logits are \[3, 7\]; expected \[rows, 384\]"),
        (0, torch.zeros(2, 384), "gave logits of 2 positions; expected 3"),
        (1, torch.zeros(1, 384), "gave no logits of position 0"),
    ],
)
def test_a_base_that_breaks_the_contract_is_stopped(
    position,
    logits,
    sentence,
    llama,
    monkeypatch,
):
    plant_base(monkeypatch, "odd", lambda batch, emit: emit(position, logits))
    with pytest.raises(CaptureError, match=sentence):
        logits_of("odd", llama, [1, 2, 3])
