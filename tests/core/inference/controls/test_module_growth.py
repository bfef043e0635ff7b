"""Where in the model two paths part: planted faults are found at the module they are in, rounding at none, and watching
changes no bit.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial

import pytest
import torch
from transformers import DynamicCache

from benchmarks.verdicts.mutations import MUTATIONS
from benchmarks.verdicts.tiny_models import tiny_model, tiny_prompts
from core.errors import CaptureError
from core.inference.controls.judge_model import judge_pair
from core.inference.controls.module_growth import KeptOutputs
from core.inference.controls.rounding_floor import whole_side
from core.inference.models.model import LoadedModel
from core.inference.paths.bases import BASES
from core.inference.paths.batch import Emit, PromptBatch
from core.inference.paths.paths import open_path, parse_path
from core.inference.watching.modules import traced_modules
from core.runs.file.evidence import PASSED, Evidence, ModulesFigures
from tests.covering import few, thorough

pytestmark = pytest.mark.model
BLOCKS = {
    "llama": "model.layers.{}",
    "gpt2": "transformer.h.{}",
    "gemma2": "model.layers.{}",
    "mixtral": "model.layers.{}",
}


@pytest.fixture(scope="module", params=few(BLOCKS, "gpt2"))
def loaded(request: pytest.FixtureRequest) -> LoadedModel:
    return tiny_model(request.param)


def _scaled_cache(layer: int) -> Callable[[PromptBatch, Emit], None]:
    def compute(batch: PromptBatch, emit: Emit) -> None:
        cache = DynamicCache(config=batch.loaded.model.config)
        for position in range(batch.positions):
            batch.forward(position, position + 1, emit, cache)
            if position == 3:
                cache.layers[layer].values[batch.row, 0, :4] *= 1.01

    return compute


def _rows(found: list[Evidence]) -> Evidence:
    return next(row for row in found if isinstance(row.figures, ModulesFigures))


def _judged(loaded: LoadedModel, variant: str) -> Evidence:
    return _rows(list(judge_pair(loaded, tiny_prompts(loaded), "prefill", variant).verdict.evidence))


@pytest.mark.parametrize(
    ("loaded", "layer"), few(itertools.product(BLOCKS, range(3)), ("gpt2", 1)), indirect=["loaded"]
)
def test_a_fault_in_the_cache_of_a_layer_enters_at_that_layers_attention(layer, loaded, monkeypatch):
    monkeypatch.setitem(BASES, "faulty", replace(BASES["decode"], compute=_scaled_cache(layer)))
    row = _judged(loaded, "faulty")
    first = row.figures.first_module
    assert first.startswith(
        BLOCKS[loaded.model.config.model_type if "gemma" not in loaded.model.config.model_type else "gemma2"].format(
            layer
        )
    )
    assert "attn" in first
    assert f"enters at {first}" in row.says


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    ("loaded", "variant"),
    few(
        itertools.product(BLOCKS, ["decode", "chunked:7", "prefill+batch:3+row:1", "prefill+pad:left:3", "reuse:9"]),
        ("gpt2", "chunked:7"),
        ("llama", "decode"),
    ),
    indirect=["loaded"],
)
def test_rounding_enters_nowhere(variant, loaded):
    """The twin."""
    row = _judged(loaded, variant)
    assert row.outcome == PASSED
    assert row.figures.first_module is None


def test_what_is_wrong_after_the_modules_is_said_to_be(loaded, monkeypatch):
    def rolled(batch: PromptBatch, emit: Emit) -> None:
        BASES["prefill"].compute(batch, lambda at, logits: emit(at, logits.roll(1, 0)))

    monkeypatch.setitem(BASES, "rolled", replace(BASES["prefill"], compute=rolled))
    row = _judged(loaded, "rolled")
    assert row.figures.first_module is None
    assert "wrong comes after them" in row.says


def test_watching_changes_no_bit_and_leaves_no_hook(loaded):
    ids = tiny_prompts(loaded)[0]
    before = _hooks(loaded)
    with torch.inference_mode():
        with open_path(parse_path("decode"), loaded) as run:
            bare = whole_side(run, ids)
        trace = KeptOutputs(ids, range(len(ids)))
        with open_path(parse_path("decode"), loaded, trace=trace) as run, _followed(loaded, trace):
            seen = whole_side(run, ids)
    assert torch.equal(bare, seen)
    assert _hooks(loaded) == before


def _followed(loaded: LoadedModel, trace: KeptOutputs) -> AbstractContextManager[None]:
    return trace.following(loaded.model, traced_modules(loaded.model))


def _hooks(loaded: LoadedModel) -> dict[str, int]:
    """transformers leaves some of its own once hidden states were asked for."""
    return {name: len(module._forward_hooks) for name, module in traced_modules(loaded.model).items()}


# ---- callables: nobody tells which positions their forwards compute


@pytest.mark.parametrize(
    "case",
    ["one stale slot of an earlier request", *thorough(["value cache of one head x 1.01", "one head's output x 1.01"])],
)
def test_the_forwards_of_a_callable_are_followed_by_their_tokens_and_cache(case):
    loaded = tiny_model("llama")
    mutation = next(each for each in MUTATIONS if each.name == case)
    found = judge_pair(loaded, tiny_prompts(loaded), "prefill", mutation.engine).verdict
    assert found.name == "bug suspected"
    assert "self_attn" in _rows(list(found.evidence)).figures.first_module


def test_a_module_that_puts_out_nan_is_named(monkeypatch):
    loaded = tiny_model("llama")

    def poisoned(batch, emit):
        cache = DynamicCache(config=batch.loaded.model.config)
        for position in range(batch.positions):
            batch.forward(position, position + 1, emit, cache)
            if position == 3:
                cache.layers[1].values[batch.row, 0, 0, 0] = float("nan")

    monkeypatch.setitem(BASES, "poisoned", replace(BASES["decode"], compute=poisoned))
    verdict = judge_pair(loaded, tiny_prompts(loaded), "prefill", "poisoned").verdict
    assert verdict.name == "bug suspected"
    row = _rows(list(verdict.evidence))
    assert row.figures.first_module == "model.layers.1.self_attn"
    assert "NaN or infinite" in row.says
    json.dumps(row.figures.to_json(), allow_nan=False)


# ---- engines that hand in what their modules put out


def _in_parts(model, ids, watch, fault=1.0, at=1):
    """Blocks by hand, whose outputs are handed in eight positions at a time: hooks on the model see no forward of
    it.
    """
    body, hidden = model.model, model.model.embed_tokens(ids[None])
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
    [("bfloat16", "variant"), ("float32", "reference"), *thorough([("float32", "variant"), ("bfloat16", "reference")])],
)
def test_a_module_that_an_engine_hands_in_is_named_whichever_side_it_is(dtype, side):
    loaded = tiny_model("llama", dtype)
    engine = partial(_in_parts, fault=1.01)
    sides = (
        {"reference": engine, "variant": "prefill"}
        if side == "reference"
        else {"reference": "prefill", "variant": engine}
    )
    found = judge_pair(loaded, tiny_prompts(loaded), sides["reference"], sides["variant"]).verdict
    assert found.name == "bug suspected"
    assert found.first_place == (0, 5)
    assert _rows(list(found.evidence)).figures.first_module == "model.layers.1"


@pytest.mark.parametrize(
    ("name", "tensor", "start", "sentence"),
    [
        (
            "model.layers.9",
            torch.ones(3, 64),
            0,
            "hands in 'model.layers.9', which is no module of LlamaForCausalLM that is compared; did it mean",
        ),
        ("attention", torch.ones(3, 64), 0, "they are model.embed_tokens, model.layers.0.self_attn, "),
        (
            "model.norm",
            torch.ones(1, 3, 64),
            0,
            r"as \[1, 3, 64\] from position 0 on; expected numbers \[positions, features\] within",
        ),
        ("model.norm", torch.ones(3, 64), 40, r"as \[3, 64\] from position 40 on; expected"),
        ("model.norm", torch.ones(3, 64, dtype=torch.int32), 0, "expected numbers"),
        ("model.norm", [1.0], 0, "as list; expected numbers"),
    ],
)
def test_what_is_no_output_of_a_module_is_refused_in_a_sentence(name, tensor, start, sentence):
    loaded = tiny_model("llama")

    def engine(model, ids, watch):
        watch(name, tensor, start)
        return model(ids[None]).logits[0]

    with pytest.raises(CaptureError, match=f"'engine' {sentence}" if sentence.startswith("hands") else sentence):
        judge_pair(loaded, tiny_prompts(loaded)[:1], "prefill", engine)
