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
README = (FOLDER / "README.md").read_text(encoding="utf-8")


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_runs_and_dumps_stay_within_forty_megabytes():
    dumps = sorted((FOLDER / "dumps").glob("*.npz"))
    assert len(RUNS) >= 5
    assert len(dumps) >= 2
    assert sum(path.stat().st_size for path in (*RUNS, *dumps)) <= 40_000_000


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


def test_fresh_against_cached_and_batch_1_against_n_diverge_in_bfloat16_and_flip():
    with RunReader(FOLDER / "fresh-against-cached.duckdb") as run:
        assert run.header.compute_dtype == "bfloat16"
        assert run.pairs[0].summary.neq_share > 0.2
        assert run.pairs[0].summary.flips > 0
    with RunReader(FOLDER / "batch-1-against-n.duckdb") as run:
        pairs = {pair.variant: pair.summary for pair in run.pairs}
        assert pairs["decode+batch:2"].neq > 0
        assert ["decode+batch:2", "decode+batch:8"] in run.classes  # a kernel for one row, another for several
    with RunReader(FOLDER / "float32-three-paths.duckdb") as run:
        assert run.header.compute_dtype == "float32"
        assert run.pairs[0].summary.neq_share > 0.8
        assert run.pairs[0].summary.max_abs < 1e-3


@pytest.mark.parametrize("path", RUNS, ids=lambda p: p.stem)
def test_every_sample_pair_carries_a_verdict_with_its_evidence(path):
    expected = "bug suspected" if path.stem == "injected-bug" else "rounding"
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
        assert about.command.startswith(
            (
                "python -m core judge --model sample_runs/model",
                "python -m core generate --judge",
                "python -m core capture --judge --layers",
                "python sample_runs/build.py",
            )
        )
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
    assert record["training_minutes"] <= 40
    assert record["held_out_loss_nats"] < 4.0
    assert str(record["held_out_loss_nats"]) in README


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
    assert (request.judge, len(request.prompt_files)) == (True, 2)
    assert shown == [shlex.split(dataclasses.replace(request, **{page: True}).typed())]
