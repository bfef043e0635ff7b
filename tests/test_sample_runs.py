"""sample_runs/ holds what its README says."""

import hashlib
import re
from contextlib import ExitStack

import pandas as pd
import pytest

from core.judging.stored import explain_pair
from core.rl.queries import summary
from core.runs.reader import RunReader
from tests.faults.whole import read_whole
from tests.places import ROOT

FOLDER = ROOT / "sample_runs"
ROLLOUT = FOLDER / "trainer-against-rollout.duckdb"
RUNS = sorted(set(FOLDER.glob("*.duckdb")) - {ROLLOUT})
DUMPS = sorted((FOLDER / "dumps").glob("*.npz"))
README = (FOLDER / "README.md").read_text(encoding="utf-8")


def test_the_runs_and_dumps_stay_within_seventy_megabytes():
    assert len(RUNS) >= 5
    assert len(DUMPS) >= 2
    assert sum(path.stat().st_size for path in (*RUNS, ROLLOUT, *DUMPS)) <= 70_000_000


@pytest.mark.parametrize(
    "path",
    [*RUNS, ROLLOUT, *DUMPS, FOLDER / "model" / "model.safetensors"],
    ids=lambda path: path.name,
)
def test_the_digest_in_the_readme_is_the_files(path):
    assert hashlib.sha256(path.read_bytes()).hexdigest() in README


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_a_sample_run_is_whole_and_judged(path):
    others = {"injected-bug": "bug suspected", "llamacpp-kv-float16": "lower precision"}
    expected = others.get(path.stem, "rounding")
    read_whole(path)
    with RunReader(path) as run:
        assert all(side.sha256 in README for side in run.sides)
        for pair in run.pairs:
            assert pair.verdict == ("identical" if pair.summary.neq == 0 else expected)
            assert {"rerun", "float32"} <= {row.group for row in run.evidence(pair.index)}
        assert run.header.provenance.kind == "capture"
        assert len(run.vocabulary) == run.header.vocab


def test_the_rollout_is_rounding_until_a_temperature_is_named_at_the_last_step():
    with RunReader(ROLLOUT) as run:
        assert all(side.sha256 in README for side in run.sides)
        (cause,) = explain_pair(run, 0).causes
        assert cause.name == "temperature"
        assert cause.parameters["temperature"] == pytest.approx(0.8, rel=0.1)
        means = pd.DataFrame(summary(run, "steps"))["mean_abs"]
        assert len(means) == 6
        assert means[:5].max() < means[5] / 3


def test_each_shows_what_it_is_for():
    with ExitStack() as stack:
        shown = {path.stem: stack.enter_context(RunReader(path)) for path in RUNS}
        flips = shown["fresh-against-cached"].positions(0)
        assert set(flips[flips["is_flip"]]["prompt"]) == {0, 1}
        assert ["decode+batch:2", "decode+batch:8"] in shown["batch-1-against-n"].classes
        assert 100 < shown["llamacpp-kv-float16"].pairs[0].noise_ratio < 1000
        assert shown["vllm-against-transformers"].pairs[0].noise_ratio < 1.5
        assert len(shown["where-it-starts"].rows("layer", pair=0)) > 300
        assert shown["where-it-starts"].sides_with_kernels == {0, 1}
        cuda = shown["batches-on-an-h100"].query(
            "SELECT count(*) AS rows FROM kernel WHERE name LIKE 'nvjet%'",
        )
        assert cuda["rows"][0] > 0
        assert shown["injected-bug"].pairs[0].first_place == (0, 16)
        continued = shown["continuations-that-part"]
        figures = continued.positions(0).set_index(["prompt", "position"])
        for prompt, made in continued.generations.items():
            assert figures.loc[(prompt, made.parting(1)), "is_flip"]


@pytest.mark.model
def test_the_model_loads_with_the_plain_auto_classes_and_writes_python():
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(FOLDER / "model")
    model = AutoModelForCausalLM.from_pretrained(FOLDER / "model", dtype=torch.bfloat16)
    prompt = tokenizer("def __init__(self,", return_tensors="pt")
    text = tokenizer.decode(model.generate(**prompt, max_new_tokens=40, do_sample=False)[0])
    assert re.match(r"def __init__\(self, [\w*, =]+\):\n        self\.", text), text
    assert len(tokenizer) == model.config.vocab_size == 4096
