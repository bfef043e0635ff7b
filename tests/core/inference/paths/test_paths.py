"""Every path computes the same function, on every kind of model; the grammar says what exists."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from transformers import DynamicCache, StaticCache

from core.errors import CaptureError, UsageError
from core.inference.models.model import LoadedModel
from core.inference.paths import batch, paths
from core.inference.paths.batch import Emit, PromptBatch
from core.inference.paths.engines import side_of
from core.inference.paths.grammar import Base, Modifier
from core.inference.paths.paths import parse_path
from tests.core.inference.conftest import MODELS
from tests.core.inference.paths.test_modifiers import ON_A_MACHINE
from tests.core.inference.sameness import computes_the_same, float32_bound, logits_of, tokens
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
    ("loaded", "path"), covering(MODELS, PATHS, whole=("llama", "gpt2", "mistral-window")), indirect=["loaded"]
)
def test_a_path_computes_what_a_float64_forward_computes(path: str, loaded: LoadedModel) -> None:
    assert computes_the_same(path, loaded)


@pytest.mark.model
@pytest.mark.parametrize("path", ["prefill+sdpa:math", "prefill+sdpa:flash", "decode+pad:left:5+sdpa:math"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral-window", "gemma3"])
def test_a_chosen_kernel_of_sdpa_computes_it_too(path: str, name: str, model_of: Callable[[str], LoadedModel]) -> None:
    assert computes_the_same(path, model_of(name))


@pytest.mark.model
@pytest.mark.parametrize("path", ["decode", "chunked:5", "reuse:7", "static", "decode+pad:left:3"])
def test_models_with_a_running_state_take_the_paths_that_copy_it(
    path: str, model_of: Callable[[str], LoadedModel]
) -> None:
    assert computes_the_same(path, model_of("lfm2"))


@pytest.mark.model
@pytest.mark.parametrize("path", ["chunked:5", "reuse:7", "blocks:8", "static", "decode+batch:3+neighbours:random"])
def test_a_path_taken_twice_gives_the_same_bits(path: str, llama_bfloat16: LoadedModel) -> None:
    assert torch.equal(logits_of(path, llama_bfloat16), logits_of(path, llama_bfloat16))


@pytest.mark.model
def test_logits_of_reused_positions_are_the_earlier_calls(llama_bfloat16: LoadedModel) -> None:
    ids = tokens(llama_bfloat16)
    whole = logits_of("prefill", llama_bfloat16)
    assert torch.equal(logits_of("reuse:7", llama_bfloat16)[:7], logits_of("prefill", llama_bfloat16, ids[:7]))
    assert torch.equal(logits_of("blocks:5", llama_bfloat16)[:30], whole[:30])
    assert torch.equal(logits_of("blocks:31", llama_bfloat16)[:31], whole[:31])


@pytest.mark.model
@pytest.mark.parametrize(("size", "fresh"), [(1, 1), (5, 2), (8, 8), (16, 16), (31, 1), (32, 32), (100, 32)])
def test_blocks_reuse_the_longest_prefix_of_whole_blocks_that_leaves_a_token(size, fresh, llama) -> None:
    lengths: list[int] = []
    hook = llama.model.register_forward_pre_hook(
        lambda _, args, kwargs: lengths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    try:
        logits_of(f"blocks:{size}", llama)
    finally:
        hook.remove()
    assert lengths == ([32, fresh] if fresh < 32 else [32])


@pytest.mark.model
@pytest.mark.parametrize("path", ["decode", "chunked:5", "reuse:7", "blocks:8", "static"])
def test_a_model_whose_rotation_changes_with_the_length_takes_a_cache_only_below_that_length(
    path: str, model_of
) -> None:
    loaded = model_of("longrope")
    sentence = (
        rf"^path '{path}': a LlamaForCausalLM changes its rotary frequencies beyond 24 tokens, so .*, or"
        r" choose prefill\.$"
    )
    with pytest.raises(CaptureError, match=sentence):
        logits_of(path, loaded)
    assert computes_the_same("prefill", loaded)
    short = tokens(loaded)[:24]
    assert torch.allclose(
        logits_of(path, loaded, short), logits_of("prefill", loaded, short), atol=float32_bound(loaded), rtol=0
    )


def _shifted(batch: PromptBatch, emit: Emit) -> None:
    """Fault: the logits of each position are those of the one before."""
    logits = batch.loaded.model(input_ids=batch.token_ids).logits[batch.row]
    emit(0, torch.cat([logits[:1], logits[:-1]]))


def _wrong_row(batch: PromptBatch, emit: Emit) -> None:
    """Fault: a neighbour's logits."""
    emit(0, batch.loaded.model(input_ids=batch.token_ids).logits[-1])


def _faulty_cache(batch: PromptBatch, emit: Emit) -> None:
    """Fault: one cached value of one head is scaled by 1.01."""
    cache = DynamicCache(config=batch.loaded.model.config)
    for position in range(batch.positions):
        batch.forward(position, position + 1, emit, cache)
        if position == 3:
            cache.layers[0].values[batch.row, 0, 2] *= 1.01


def _position_off_by_one(batch: PromptBatch, emit: Emit) -> None:
    """Fault: the tokens after the reused prefix believe to stand one further right."""
    model, prefix = batch.loaded.model, 8
    cache = DynamicCache(config=model.config)
    batch.forward(0, prefix, emit, cache)
    places = torch.arange(prefix, batch.positions)[None] + 1
    rest = model(input_ids=batch.token_ids[:, prefix:], position_ids=places, past_key_values=cache, use_cache=True)
    emit(prefix, rest.logits[batch.row])


def _blocks_table_shifted(batch: PromptBatch, emit: Emit) -> None:
    """Fault: after the cache is trimmed, the block table is off by one: the first block is lost, the last is read
    twice.

    (Blocks merely in another order are no fault under full attention: keys carry their positions, and a sum has no
    order.)
    """
    size, reused = 4, 28
    earlier = DynamicCache(config=batch.loaded.model.config)
    earlier.activate_past_recording()
    batch.forward(0, batch.positions, lambda at, logits: emit(at, logits[:reused]), earlier)
    cache = copy.deepcopy(earlier)
    cache.crop(reused - batch.positions)
    for layer in cache.layers:
        layer.keys = torch.cat([layer.keys[:, :, size:], layer.keys[:, :, -size:]], dim=-2)
        layer.values = torch.cat([layer.values[:, :, size:], layer.values[:, :, -size:]], dim=-2)
    batch.forward(reused, batch.positions, emit, cache)


def _stale_slot(batch: PromptBatch, emit: Emit) -> None:
    """Fault: one slot of the reused cache still holds what another prompt left there."""
    model, prefix = batch.loaded.model, 8
    other = DynamicCache(config=model.config)
    model(input_ids=batch.token_ids[:, :prefix].flip(-1), past_key_values=other, use_cache=True)
    cache = DynamicCache(config=model.config)
    batch.forward(0, prefix, emit, cache)
    for layer, stale in zip(cache.layers, other.layers, strict=True):
        layer.keys[:, :, 6], layer.values[:, :, 6] = stale.keys[:, :, 6], stale.values[:, :, 6]
    batch.forward(prefix, batch.positions, emit, cache)


def _trimmed_one_short(batch: PromptBatch, emit: Emit) -> None:
    """Fault: the cache keeps one token more than the block boundary says, so that token is seen twice."""
    reused = 24
    cache = DynamicCache(config=batch.loaded.model.config)
    cache.activate_past_recording()
    batch.forward(0, batch.positions, lambda at, logits: emit(at, logits[:reused]), cache)
    cache.crop(reused + 1 - batch.positions)
    batch.forward(reused, batch.positions, emit, cache)


def _static_slot_unwritten(batch: PromptBatch, emit: Emit) -> None:
    """Fault: a slot of the static cache is cleared after it was written."""
    cache = StaticCache(config=batch.loaded.model.config, max_cache_len=batch.columns)
    for position in range(batch.positions):
        batch.forward(position, position + 1, emit, cache)
        if position == 5:
            for layer in cache.layers:
                layer.keys[:, :, 5] = 0
                layer.values[:, :, 5] = 0


@pytest.mark.model
@pytest.mark.parametrize(
    ("fault", "path"),
    [
        (_shifted, "faulty"),
        (_wrong_row, "faulty+batch:4"),
        (_faulty_cache, "faulty"),
        (_position_off_by_one, "faulty"),
        (_blocks_table_shifted, "faulty"),
        (_stale_slot, "faulty"),
        (_trimmed_one_short, "faulty"),
        (_static_slot_unwritten, "faulty"),
    ],
)
def test_a_planted_fault_is_caught_by_the_same_check(fault, path, loaded, monkeypatch) -> None:
    monkeypatch.setitem(paths.BASES, "faulty", Base(fault))
    assert not computes_the_same(path, loaded)


class _Unplaced(PromptBatch):
    """Fault: padding is masked, but positions are counted from the first column."""

    @property
    def position_ids(self) -> torch.Tensor:
        return torch.arange(self.columns).expand(self.rows, -1)


class _Unmasked(PromptBatch):
    """Fault: padding keeps its place before the prompt, and is attended to."""

    @property
    def attention_mask(self) -> torch.Tensor:
        return torch.ones_like(self.token_ids)


def _with(kind: type[PromptBatch]) -> Modifier:
    @contextmanager
    def change(given: PromptBatch) -> Iterator[PromptBatch]:
        yield kind(given.loaded, left_padding=5)

    return Modifier(change)


@pytest.mark.model
@pytest.mark.parametrize("base", ["prefill", "decode", "blocks:8"])
@pytest.mark.parametrize(
    ("name", "kind", "is_caught"),
    [
        ("gpt2", _Unplaced, True),  # positions are learned: another place is another vector
        ("llama", _Unplaced, False),  # rotary positions: only distances count, and all tokens are shifted alike
        ("gpt2", _Unmasked, True),
        ("llama", _Unmasked, True),
        ("gemma3", _Unmasked, True),
    ],
)
def test_padding_without_positions_or_without_a_mask_is_caught(
    base, name, kind, is_caught, model_of, monkeypatch
) -> None:
    monkeypatch.setitem(paths.MODIFIERS, "faulty", _with(kind))
    assert computes_the_same(f"{base}+faulty", model_of(name)) is not is_caught


@pytest.mark.parametrize("path", PATHS)
def test_pieces_come_in_order_and_are_bounded(path: str, llama: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "CHUNK_BYTES", 5 * llama.vocab_size * 4)
    with torch.inference_mode():
        pieces: list[tuple[int, int]] = []
        side_of(path).run_on(llama)(range(40), lambda position, logits: pieces.append((position, len(logits))))
    assert [position for position, _ in pieces] == [sum(n for _, n in pieces[:k]) for k in range(len(pieces))]
    assert max(n for _, n in pieces) <= 5
    assert sum(n for _, n in pieces) == 40


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("prefill", "prefill"),
        (" Decode ", "decode"),
        ("prefill+batch:08", "prefill+batch:8"),
        ("decode + batch:1", "decode+batch:1"),
        ("Blocks:032 + PAD:Left:3 + batch:4 + attn:Eager + row:2", "blocks:32+batch:4+row:2+pad:left:3+attn:eager"),
        (
            "prefill+compile+tf32+threads:1+neighbours:same+batch:2",
            "prefill+batch:2+neighbours:same+threads:1+tf32+compile",
        ),
    ],
)
def test_paths_have_one_canonical_form(text: str, canonical: str) -> None:
    assert str(parse_path(text)) == canonical
    assert parse_path(text) == parse_path(canonical)
    assert hash(parse_path(text)) == hash(parse_path(canonical))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("prefil", "no base 'prefil'; bases are prefill, decode, chunked:N, reuse:N, blocks:N, static."),
        ("", "no base ''"),
        ("batch:2", "no base 'batch'"),
        ("prefill:3", "base 'prefill:3' has 1 values, not 0; write prefill."),
        ("decode+batch", "modifier 'batch' has 0 values, not 1; write batch:N."),
        ("decode+batch:2:3", "has 2 values, not 1"),
        ("decode+batch:0", "batch takes a whole number of at least 1, not '0'; write batch:N."),
        ("decode+batch:-1", "not '-1'"),
        ("decode+batch:²", "not '²'"),
        ("decode+batch:2+batch:2", "modifier 'batch' is given twice"),
        ("chunked", "base 'chunked' has 0 values, not 1; write chunked:N."),
        ("prefill+pad:middle:3", "pad takes one of left, right, not 'middle'; write pad:left|right:N."),
        ("prefill+pad:left:2+pad:right:2", "modifier 'pad' is given twice"),
        ("prefill+row:3", "row:3 needs a batch of at least 4; add batch:N."),
        ("prefill+batch:3+row:3", "row:3 needs a batch of at least 4"),
        ("decode+neighbours:same", "neighbours:same needs other rows; add batch:N."),
        ("prefill+threads:257", "threads takes a whole number of 1 to 256"),
        ("prefill+dtype:int8", "dtype takes one of float32, float16, bfloat16, not 'int8'"),
        ("prefill+attn:../x", "attn takes the name of an attention, not '../x'"),
    ],
)
def test_a_path_that_does_not_parse_is_answered_with_what_exists(text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_path(text)
    assert f"path '{text}'" in str(caught.value)
    assert sentence in str(caught.value)


def _float64(batch: PromptBatch, emit: Emit) -> None:
    emit(0, torch.zeros(batch.positions, batch.loaded.vocab_size, dtype=torch.float64))


def _narrow(batch: PromptBatch, emit: Emit) -> None:
    emit(0, torch.zeros(batch.positions, 7))


def _short(batch: PromptBatch, emit: Emit) -> None:
    emit(0, torch.zeros(batch.positions - 1, batch.loaded.vocab_size))


def _skipping(batch: PromptBatch, emit: Emit) -> None:
    emit(1, torch.zeros(1, batch.loaded.vocab_size))


@pytest.mark.parametrize(
    ("base", "sentence"),
    [
        (_float64, "path 'odd': the model gave float64 logits; expected float32. Capture in float64."),
        (_narrow, "path 'odd': logits are [3, 7]; expected [rows, 384]."),
        (_short, "path 'odd': got 2 positions; expected 3."),
        (_skipping, "path 'odd': got position 1; expected 0."),
    ],
)
def test_a_base_that_breaks_the_contract_is_stopped(base, sentence, llama, monkeypatch) -> None:
    monkeypatch.setitem(paths.BASES, "odd", Base(base))
    with pytest.raises(CaptureError) as caught:
        logits_of("odd", llama, [1, 2, 3])
    assert str(caught.value) == sentence
