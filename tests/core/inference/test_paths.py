"""Every path computes the same function; the grammar says what exists."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from pathlib import Path as FilePath

import pytest
import torch
from transformers import DynamicCache

from core.errors import CaptureError, UsageError
from core.inference import paths
from core.inference.models import LoadedModel, load_model
from core.inference.paths import Base, Setting, parse_path, run_path

PATHS = ["prefill", "decode", "prefill+batch:4", "decode+batch:4"]
PROMPT = "def walk(self, path): return [step for step in path if step]\nThe ferry left at ten"


@pytest.fixture(scope="module", params=["llama", "gpt2", "qwen2", "mixtral"])
def loaded(request: pytest.FixtureRequest, model_folders: dict[str, FilePath]) -> LoadedModel:
    return load_model(str(model_folders[request.param]), dtype="float32", device="cpu")


def tokens(loaded: LoadedModel) -> list[int]:
    return loaded.tokenizer(PROMPT)["input_ids"][:32]


def logits_of(path: str, loaded: LoadedModel) -> torch.Tensor:
    """All pieces as one. -> [positions, vocab]"""
    with torch.inference_mode():
        return torch.cat([logits.clone() for _, logits in run_path(parse_path(path), loaded, tokens(loaded))])


def exact_logits(loaded: LoadedModel) -> torch.Tensor:
    """The same weights in float64, by a plain forward that knows nothing of paths. -> [positions, vocab]"""
    model = copy.deepcopy(loaded.model).double()
    if loaded.model.config.model_type == "mixtral":
        model.set_experts_implementation("eager")  # the grouped product of experts knows no float64
    with torch.inference_mode():
        return model(torch.tensor([tokens(loaded)])).logits[0]


def float32_bound(loaded: LoadedModel) -> float:
    """How far float32 rounding may move a logit.

    A product of length n is off by at most n u relative to its operands' norms (Higham, "Accuracy and stability of numerical
    algorithms", 3.5; u = 2^-24). The residual stream passes 5 of them in sequence per layer (query-key, attention-value,
    output, up, down) and the head; the final norm gives a hidden state of norm sqrt(hidden), so by Cauchy-Schwarz a logit
    moves by at most that relative error times sqrt(hidden) * |row of the head|.
    """
    config = loaded.model.config
    longest = max(config.hidden_size * (4 if config.model_type == "gpt2" else 2), len(tokens(loaded)))
    stages = 5 * config.num_hidden_layers + 1
    head = loaded.model.get_output_embeddings().weight
    return stages * longest * 2.0**-24 * math.sqrt(config.hidden_size) * float(head.norm(dim=1).max())


def computes_the_same(path: str, loaded: LoadedModel) -> bool:
    found, exact = logits_of(path, loaded), exact_logits(loaded)
    is_close = float((found.double() - exact).abs().max()) <= float32_bound(loaded)
    return is_close and bool((found.argmax(-1) == exact.argmax(-1)).all())


@pytest.mark.model
@pytest.mark.parametrize("path", PATHS)
def test_a_path_computes_what_a_float64_forward_computes(path: str, loaded: LoadedModel) -> None:
    assert computes_the_same(path, loaded)


def _shifted(setting: Setting) -> Iterator[tuple[int, torch.Tensor]]:
    """Fault: the logits of each position are those of the one before."""
    logits = setting.loaded.model(input_ids=setting.token_ids).logits[setting.row]
    yield 0, torch.cat([logits[:1], logits[:-1]])


def _wrong_row(setting: Setting) -> Iterator[tuple[int, torch.Tensor]]:
    """Fault: a neighbour's logits."""
    yield 0, setting.loaded.model(input_ids=setting.token_ids).logits[-1]


def _faulty_cache(setting: Setting) -> Iterator[tuple[int, torch.Tensor]]:
    """Fault: one cached value of one head is scaled by 1.01."""
    cache = DynamicCache(config=setting.loaded.model.config)
    for position in range(setting.positions):
        token = setting.token_ids[:, position : position + 1]
        yield position, setting.loaded.model(input_ids=token, past_key_values=cache, use_cache=True).logits[setting.row]
        if position == 3:
            cache.layers[0].values[setting.row, 0, 2] *= 1.01


@pytest.mark.model
@pytest.mark.parametrize(("fault", "path"), [(_shifted, "faulty"), (_wrong_row, "faulty+batch:4"), (_faulty_cache, "faulty")])
def test_a_planted_fault_is_caught_by_the_same_check(fault, path, loaded, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setitem(paths.BASES, "faulty", Base(fault))
    assert not computes_the_same(path, loaded)


@pytest.mark.parametrize("path", PATHS)
def test_pieces_come_in_order_and_are_bounded(path: str, llama: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "CHUNK_BYTES", 5 * llama.vocab_size * 4)
    with torch.inference_mode():
        pieces = [(position, len(logits)) for position, logits in run_path(parse_path(path), llama, range(12))]
    assert [position for position, _ in pieces] == [sum(n for _, n in pieces[:k]) for k in range(len(pieces))]
    assert max(n for _, n in pieces) <= 5
    assert sum(n for _, n in pieces) == 12


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("prefill", "prefill"),
        (" Decode ", "decode"),
        ("prefill+batch:08", "prefill+batch:8"),
        ("decode + batch:1", "decode+batch:1"),
    ],
)
def test_paths_have_one_canonical_form(text: str, canonical: str) -> None:
    assert str(parse_path(text)) == canonical
    assert parse_path(text) == parse_path(canonical)
    assert hash(parse_path(text)) == hash(parse_path(canonical))


def test_different_paths_differ() -> None:
    assert len({parse_path(text) for text in ["prefill", "decode", "prefill+batch:2", "prefill+batch:3"]}) == 4


BATCH = "modifiers are batch:N."


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("prefil", "path 'prefil': no base 'prefil'; bases are prefill, decode."),
        ("", "path '': no base ''; bases are prefill, decode."),
        ("batch:2", "path 'batch:2': no base 'batch'; bases are prefill, decode."),
        ("prefill+decode", f"path 'prefill+decode': no modifier 'decode'; {BATCH}"),
        ("prefill+", f"path 'prefill+': no modifier ''; {BATCH}"),
        ("prefill:3", "path 'prefill:3': base 'prefill:3' has 1 values, not 0; write prefill."),
        ("decode+batch", "path 'decode+batch': modifier 'batch' has 0 values, not 1; write batch:N."),
        ("decode+batch:2:3", "path 'decode+batch:2:3': modifier 'batch:2:3' has 2 values, not 1; write batch:N."),
        ("decode+batch:0", "path 'decode+batch:0': batch takes a whole number of at least 1, not '0'; write batch:N."),
        ("decode+batch:-1", "path 'decode+batch:-1': batch takes a whole number of at least 1, not '-1'; write batch:N."),
        ("decode+batch:²", "path 'decode+batch:²': batch takes a whole number of at least 1, not '²'; write batch:N."),
        ("decode+batch:2+batch:2", "path 'decode+batch:2+batch:2': modifier 'batch' stands twice; expected it once."),
    ],
)
def test_a_path_that_does_not_parse_is_answered_with_what_exists(text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_path(text)
    assert str(caught.value) == sentence


def _float64(setting: Setting) -> Iterator[tuple[int, torch.Tensor]]:
    yield 0, torch.zeros(setting.positions, setting.loaded.vocab_size, dtype=torch.float64)


def _narrow(setting: Setting) -> Iterator[tuple[int, torch.Tensor]]:
    yield 0, torch.zeros(setting.positions, 7)


def _short(setting: Setting) -> Iterator[tuple[int, torch.Tensor]]:
    yield 0, torch.zeros(setting.positions - 1, setting.loaded.vocab_size)


def _skipping(setting: Setting) -> Iterator[tuple[int, torch.Tensor]]:
    yield 1, torch.zeros(1, setting.loaded.vocab_size)


@pytest.mark.parametrize(
    ("base", "sentence"),
    [
        (_float64, "path 'odd': the model gave float64 logits, expected float32; capture it in float64."),
        (_narrow, "path 'odd': logits are [3, 7], expected [rows, 384]."),
        (_short, "path 'odd': 2 positions came, expected 3."),
        (_skipping, "path 'odd': position 1 came where 0 was expected."),
    ],
)
def test_a_base_that_breaks_the_contract_is_stopped(base, sentence, llama, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setitem(paths.BASES, "odd", Base(base))
    with pytest.raises(CaptureError) as caught:
        list(run_path(parse_path("odd"), llama, [1, 2, 3]))
    assert str(caught.value) == sentence
