"""Engines as sides of captures: every bit in the run file, and nothing of a capture whose engine
failed.
"""

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from core.commands.terminal.stopping import EXIT_CODE
from core.runs.reader import RunReader
from tests.core.engines.test_process import is_there
from tests.places import ROOT
from tests.waiting import until

MODEL = "sample_runs/model"
ADAPTER = """
import os
import numpy as np
from ulpscope_engine import serve
HELLO = {"engine": "Toy", "version": "7", "dtypes": ["float32", "bfloat16"], "logits": "float32",
         "bases": {"prefill": {"says": "all"}},
         "modifiers": {"batch": {"says": "rows", "least": 1}}}

def run(ids, rows):
    for place, token in enumerate(ids):
        FAULT
        rows(place, np.random.default_rng(token).standard_normal((1, VOCAB), np.float32))

serve(HELLO, lambda request: ({"vocab": VOCAB, "parts": {}}, run))
"""
pytestmark = pytest.mark.model


GIVEN = ("--model", MODEL, "--dtype", "float32", "--prompt", "def add(a, b):")


@pytest.fixture
def engine(tmp_path):
    """Write a toy engine; -> the words that name it as the variant"""

    def write(fault="pass", vocab=4096):
        adapter = tmp_path / "toy.py"
        adapter.write_text(ADAPTER.replace("FAULT", fault).replace("VOCAB", str(vocab)))
        return "--variant", "toy:prefill", "--engine", f"toy={sys.executable},{adapter}"

    return write


@pytest.fixture
def captured(cli, engine):
    """Capture with a toy engine as the variant."""
    return lambda *more, **toy: cli("capture", *GIVEN, *engine(**toy), *more)


def test_every_bit_of_an_engine_is_in_the_run(captured, store):
    captured().succeeded()
    (path,) = store.paths()
    with RunReader(path) as run:
        header = run.header
        ids = header.prompts[0].token_ids
        rows = [np.random.default_rng(t).standard_normal(4096, np.float32) for t in ids]
        bits = np.stack(rows).view(np.uint32)
        assert np.array_equal(run.read_rows(1, 0, len(ids)), bits)
        assert header.sides[1].path == "toy:prefill"
        assert header.provenance.versions["toy"] == "7"


@pytest.mark.parametrize("vocab", [5000, 100])
def test_a_vocabulary_that_is_padded_is_cut_and_a_smaller_one_refused(captured, store, vocab):
    said = captured(vocab=vocab)
    if vocab > 4096:
        said.succeeded()
        (path,) = store.paths()
        with RunReader(path) as run:
            assert run.header.vocab == 4096
    else:
        assert "Toy has 100 tokens, the model 4096" in said.refusal


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("if place == 2: os.kill(os.getpid(), 11)", "engine 'toy' ended by SIGSEGV"),
        (
            "if place == 2: raise RuntimeError('no room')",
            "engine 'toy' failed: RuntimeError: no room.",
        ),
        ("if place == 2: continue", "got positions 3 to 3; expected 2"),
        ("if place == 2: break", "got 2 positions; expected"),
    ],
)
def test_of_a_capture_whose_engine_fails_nothing_is_kept(captured, store, fault, sentence):
    said = captured(fault=fault)
    assert said.returncode == 2
    assert sentence in said.stderr
    assert "Traceback" not in said.stderr
    assert store.paths() == []


@pytest.mark.thorough
def test_a_capture_that_is_stopped_leaves_neither_a_run_nor_its_engine(engine, store, tmp_path):
    """By a signal, as Cancel sends it, while the engine computes and will never answer."""
    fault = "open('PID', 'w').write(f'{os.getpid()} '); __import__('threading').Event().wait()"
    words = engine(fault.replace("PID", str(tmp_path / "pid")))
    process = subprocess.Popen(
        [sys.executable, "-m", "core", "capture", *GIVEN, *words, "--store", store.directory],
        cwd=ROOT,
    )
    try:
        pid_file = tmp_path / "pid"
        # the blank is written last
        until(lambda: pid_file.exists() and pid_file.read_text().endswith(" "))
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == EXIT_CODE
    finally:
        process.kill()
    pid = int((tmp_path / "pid").read_text())
    until(lambda: not is_there(pid))
    assert list(store.directory.iterdir()) == []


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--layers"], "'toy:prefill' does not send module outputs; leave --layers out."),
        (
            ["--kernels"],
            (
                "--kernels is for transformers, and 'toy:prefill' runs in another engine; leave it"
                " out."
            ),
        ),
        (["--mitigations"], "--mitigations is for transformers"),
        (["--variant", "toy:decode"], "no Toy base 'decode'; Toy bases are prefill"),
    ],
)
def test_what_cannot_be_had_of_an_engine_is_refused(captured, store, more, sentence):
    assert sentence in captured(*more).refusal
    assert store.paths() == []


@pytest.mark.parametrize(
    ("variant", "sentence"),
    [
        ("llamacpp:static", "no llama.cpp base 'static'"),
        ("llamacpp:prefill+kv:q8_0+flash:off", "a quantized V cache needs flash attention"),
        ("sglang:walk", "SGLang is not installed for this interpreter"),
    ],
)
@pytest.mark.parametrize("command", ["capture", "judge"])
def test_a_side_is_refused_before_the_model_is_loaded(cli, tmp_path, command, variant, sentence):
    """The model here has no weights, which loading it would say."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_bytes((Path(MODEL) / "config.json").read_bytes())
    said = cli(command, "--model", folder, "--prompt", "x", "--variant", variant).refusal
    assert sentence in said
    assert "weights" not in said


def test_layers_shows_an_engines_modules_beside_transformers_own(cli, store):
    """A float16 cache begins to tell in the attention of the first block, and nowhere before it."""
    said = cli("capture", *GIVEN, "--layers", "--variant", "llamacpp:decode+flash:off").succeeded()
    (path,) = store.paths()
    said = cli("show", path.stem, "--layers", "--json")
    (pair,) = said.json["pairs"]
    assert pair["variant"] == "llamacpp:decode+flash:off"
    by_name = {row["module"]: row for row in pair["by_module"]}
    assert by_name["model.embed_tokens"]["neq"] == 0
    assert by_name["model.layers.0.self_attn.v_proj"]["ratio"] < 10
    assert by_name["model.layers.0.self_attn.o_proj"]["ratio"] > 100
    assert by_name["model.layers.2"]["positions"] == pair["positions"]


def test_engines_are_listed_with_what_they_can_do(cli):
    said = cli("engines", "--json").succeeded()
    found = {each["name"]: each for each in said.json}
    assert found["llamacpp"]["is_here"]
    assert found["ct2"]["is_here"]
    assert "kv:f32|f16" in found["llamacpp"]["modifiers"]
    assert {"vllm", "ort", "transformers"} <= set(found)
