"""What ships in sample_runs/ is what its README says it is."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shlex
from pathlib import Path

import pytest

from core.capture_request import CaptureRequest
from core.runs.dumps.dump import open_dump
from core.runs.reader import RunReader
from core.runs.store.cards import list_runs
from core.runs.store.store import Store, open_store
from tests.app.opening import codes, opened

FOLDER = Path(__file__).resolve().parents[1] / "sample_runs"
RUNS = sorted(FOLDER.glob("*.duckdb"))
OF_ENGINES = ("vllm-against-transformers", "llamacpp-kv-float16")  # and the small model
README = (FOLDER / "README.md").read_text(encoding="utf-8")


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(autouse=True)
def shipped(monkeypatch):
    monkeypatch.setenv("ULPSCOPE_SAMPLES", str(FOLDER))


def test_the_runs_and_dumps_stay_within_sixty_megabytes():
    dumps = sorted((FOLDER / "dumps").glob("*.npz"))
    assert len(RUNS) >= 5
    assert len(dumps) >= 2
    assert sum(path.stat().st_size for path in (*RUNS, *dumps)) <= 60_000_000


@pytest.mark.parametrize(
    "path",
    [*RUNS, *sorted((FOLDER / "dumps").glob("*.npz")), FOLDER / "model" / "model.safetensors"],
    ids=lambda p: p.name,
)
def test_the_digest_in_the_readme_is_the_files(path):
    assert sha256(path) in README
    assert sha256(FOLDER / "build.py") not in README  # the search can fail


@pytest.mark.parametrize("path", RUNS, ids=lambda p: p.stem)
def test_the_digest_of_every_side_is_that_of_its_stored_bits(path):
    with RunReader(path) as run:
        for side in run.sides:
            bits = run.read_rows(side.index, 0, run.header.rows)
            assert hashlib.sha256(bits.tobytes()).hexdigest() == side.sha256
            assert side.sha256 in README


def test_they_are_of_a_real_model():
    for path in RUNS:
        with RunReader(path) as run:
            is_small = path.stem in OF_ENGINES
            assert run.header.vocab == (4096 if is_small else 49_152)
            assert run.header.provenance.model.endswith("sample_runs/model" if is_small else "smollm2")


def test_llama_cpps_cache_in_float16_is_a_lower_precision_hundreds_of_floors_away():
    with RunReader(FOLDER / "llamacpp-kv-float16.duckdb") as run:
        assert run.header.compute_dtype == "float32"
        assert run.header.provenance.versions["llamacpp"].startswith("xllamacpp")
        assert 100 < run.pairs[0].noise_ratio < 1000
        assert "kv:f16" in run.pairs[0].because


def test_vllm_differs_from_transformers_in_most_logits_and_by_rounding():
    with RunReader(FOLDER / "vllm-against-transformers.duckdb") as run:
        assert run.header.compute_dtype == "bfloat16"
        assert run.header.provenance.versions["vllm"].startswith("vllm")
        assert run.pairs[0].summary.neq_share > 0.5
        assert run.pairs[0].noise_ratio < 1.5


def test_fresh_against_cached_flips_in_prose_and_in_another_language_and_holds_code():
    with RunReader(FOLDER / "fresh-against-cached.duckdb") as run:
        assert run.header.compute_dtype == "bfloat16"
        assert run.pairs[0].summary.neq_share > 0.8
        figures = run.positions(0)
        assert set(figures[figures["is_flip"]]["prompt"]) == {0, 1}
        assert list(run.header.prompts[1].token_texts[:3]) == ["Am", " Mor", "gen"]
        assert list(run.header.prompts[2].token_texts[:2]) == ["def", " merge"]


def test_decode_alone_differs_from_every_batch_and_the_batches_are_equal():
    with RunReader(FOLDER / "batch-1-against-n.duckdb") as run:
        assert run.header.compute_dtype == "float32"
        pairs = {pair.variant: pair.summary for pair in run.pairs}
        assert pairs["decode+batch:2"].neq_share > 0.9
        assert ["decode+batch:2", "decode+batch:8"] in run.classes  # a kernel for one row, another for several


def test_where_it_starts_holds_modules_kernels_and_remedies_of_a_pair_that_differs_in_most_logits():
    with RunReader(FOLDER / "where-it-starts.duckdb") as run:
        assert run.pairs[0].summary.neq_share > 1 / 3
        assert len(run.layers(0)) > 300
        assert len(run.kernels) > 0
        assert len(run.remedies[0]) > 5


def test_the_planted_bug_is_named_at_its_position_and_module():
    """The cached block that another request overwrote is read in layer 0, by the token after it."""
    with RunReader(FOLDER / "injected-bug.duckdb") as run:
        said = " ".join(row.says for row in run.evidence(0))
        assert "It begins at position 16" in said
        assert "it enters at model.layers.0.self_attn" in said


def test_one_continuation_is_a_chat():
    with RunReader(FOLDER / "continuations-that-part.duckdb") as run:
        texts = ["".join(prompt.token_texts) for prompt in run.header.prompts]
        assert "<|im_start|>assistant" in texts[0]
        assert "<|im_start|>" not in texts[1]


@pytest.mark.parametrize("path", RUNS, ids=lambda p: p.stem)
def test_every_sample_pair_carries_a_verdict_with_its_evidence(path):
    others = {"injected-bug": "bug suspected", "llamacpp-kv-float16": "lower precision"}
    expected = others.get(path.stem, "rounding")
    with RunReader(path) as run:
        for pair in run.pairs:
            assert pair.verdict == expected
            assert {"rerun", "float32"} <= {row.rung for row in run.evidence(pair.index)}
            assert pair.because in [row.says for row in run.evidence(pair.index)]
            assert len(run.floor_positions(pair.index)) >= run.header.rows


def test_the_injected_bug_is_labelled_as_one():
    with RunReader(FOLDER / "injected-bug.duckdb") as run:
        assert run.header.name.startswith("Injected bug")
        assert "wrong on purpose" in run.header.provenance.note


def test_the_continuations_part_where_their_logits_flip():
    with RunReader(FOLDER / "continuations-that-part.duckdb") as run:
        assert len(run.generations) == len(run.header.prompts) == 2
        figures = run.positions(0)
        for prompt, made in run.generations.items():
            parting = made.parting(1)
            assert parting is not None
            here = figures[(figures["prompt"] == prompt) & (figures["position"] == parting)].iloc[0]
            assert here["is_flip"]
            step = parting - made.given_positions + 1
            assert (here["reference_token"], here["variant_token"]) == (made.tokens[0][step], made.tokens[1][step])


@pytest.mark.parametrize("path", RUNS, ids=lambda p: p.stem)
def test_captures_know_where_they_come_from(path):
    with RunReader(path) as run:
        about = run.header.provenance
        assert about.kind == "capture"
        assert re.match(r"(python -m core|ulpscope) (judge|generate) |python sample_runs/build\.py", about.command)
        assert {"torch", "transformers", "threads", "cpu_capability"} <= set(about.versions)
        assert all(prompt.token_texts for prompt in run.header.prompts)
        assert len(run.vocabulary) == run.header.vocab


def test_the_six_calls_fall_into_two_classes():
    from core.runs.reports.report_json import report_of_dump

    with open_dump([FOLDER / "dumps" / "six_calls.npz"]) as dump:
        _, classes = report_of_dump(dump)
    assert classes == [["call_1"], ["call_2", "call_3", "call_4", "call_5", "call_6"]]


def test_the_upcast_dump_is_recognised_and_brings_its_tokens():
    with open_dump([FOLDER / "dumps" / "fresh_and_cached_upcast.npz"]) as dump:
        assert dump.compute_dtype == "bfloat16"
        assert {side.source_dtype for side in dump.sides} == {"float32"}
        assert dump.prompts[0].token_texts[0] == "def"


def test_sample_runs_appear_in_a_new_store_read_only_and_nothing_in_them_can_be_deleted(tmp_path):
    from core.errors import StoreError

    store = open_store(tmp_path / "runs")
    cards, broken = list_runs(store)
    assert {card.run_id for card in cards} == {path.stem for path in RUNS}
    assert all(card.is_read_only for card in cards)
    assert not broken
    before = {path: sha256(path) for path in RUNS}
    for path in RUNS:
        with pytest.raises(StoreError, match="read-only"):
            store.delete(path.stem)
    assert {path: sha256(path) for path in RUNS} == before
    assert isinstance(store, Store)


def test_the_model_is_small_and_its_training_is_recorded():
    record = json.loads((FOLDER / "model" / "training.json").read_text())
    assert (FOLDER / "model" / "model.safetensors").stat().st_size <= 20_000_000
    assert record["held_out_loss_nats"] <= 3.0
    assert {"seed", "steps", "training_minutes", "torch", "corpus_sha256"} <= set(record)
    assert str(record["held_out_loss_nats"]) in README


@pytest.fixture(scope="module")
def model():
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = FOLDER / "model"
    return AutoModelForCausalLM.from_pretrained(folder, dtype="bfloat16"), AutoTokenizer.from_pretrained(folder)


def entropies_of(model, ids):
    """Mean entropy in nats of each head's attention, by scipy, over queries behind the first 8 that see 200 tokens."""
    from scipy.stats import entropy

    model.set_attn_implementation("eager")
    attentions = model(input_ids=ids[:, :200], output_attentions=True).attentions
    return [entropy(head[8:].float().detach().numpy(), axis=-1).mean() for layer in attentions for head in layer[0]]


@pytest.mark.model
@pytest.mark.parametrize("text", ["scheduler", "parser"])
def test_no_head_is_one_hot_on_text_that_it_was_not_trained_on(model, text):
    """Heads look around as those of a real model do: SmolLM2-135M's 270 have a median of 1.5 nats."""
    import numpy as np

    loaded, tokenizer = model
    ids = tokenizer((FOLDER / "prompts" / f"{text}.txt").read_text(), return_tensors="pt")["input_ids"]
    found = entropies_of(loaded, ids)
    assert len(found) == 18
    assert np.median(found) >= 1.0
    assert min(found) >= 0.2


@pytest.mark.model
def test_a_one_hot_head_would_be_seen(model):
    """The twin: queries of head 0 a hundred times as large."""
    import copy

    import torch

    loaded, tokenizer = model
    ids = tokenizer((FOLDER / "prompts" / "parser.txt").read_text(), return_tensors="pt")["input_ids"]
    sharp = copy.deepcopy(loaded)
    with torch.no_grad():
        sharp.model.layers[0].self_attn.q_proj.weight[:64] *= 100
    assert min(entropies_of(sharp, ids)) < 0.2


@pytest.mark.model
def test_the_model_loads_with_the_plain_auto_classes_and_writes_python():
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(FOLDER / "model")
    model = AutoModelForCausalLM.from_pretrained(FOLDER / "model", dtype=torch.bfloat16)
    prompt = tokenizer("def __init__(self,", return_tensors="pt")
    text = tokenizer.decode(model.generate(**prompt, max_new_tokens=40, do_sample=False)[0])
    assert re.match(r"def __init__\(self, [\w*, =]+\):\n        self\.", text), text
    assert model.config.architectures == ["LlamaForCausalLM"]
    assert len(tokenizer) == model.config.vocab_size == 4096


@pytest.mark.parametrize("page", ["layers", "remedies"])
@pytest.mark.parametrize("name", ["fresh-against-cached", "continuations-that-part", "injected-bug"])
def test_what_a_page_lacks_comes_by_the_runs_own_command_or_by_none(name, page, tmp_path, monkeypatch):
    """Its own prompts and paths, word for word; of texts that were continued, and of a planted fault, no command
    captures it.
    """
    monkeypatch.setenv("ULPSCOPE_STORE", str(tmp_path / "runs"))
    shown = [shlex.split(text) for text in codes(opened(page, run=name))]
    if name != "fresh-against-cached":
        assert shown == []
        return
    with RunReader(FOLDER / f"{name}.duckdb") as run:
        request = CaptureRequest.from_json(run.header.provenance.request)
    assert request is not None
    assert (request.judge, len(request.prompt_files)) == (True, 3)
    assert shown == [shlex.split(dataclasses.replace(request, **{page: True}).typed())]
