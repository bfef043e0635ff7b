"""`judge` as a shell sees it: the verdict, its evidence in the run, exit codes."""

import pytest

from core.runs.store.store import open_store
from tests.core.runs.made_runs import opened

pytestmark = pytest.mark.model
MODEL = ("--model", "sample_runs/model")
PROMPT = (
    "--prompt",
    "def walk(self, path):\n    for step in path:\n        if step is None:\n",
)


def test_rounding_is_called_rounding_with_its_evidence_in_the_run(cli):
    done = cli("judge", *MODEL, *PROMPT, "--variant", "decode", "--json").succeeded()
    told = done.json
    (pair,) = told["pairs"]
    assert pair["verdict"] in ("rounding", "identical")
    assert [row["group"] for row in pair["evidence"]][:1] == ["rerun"]
    with opened(open_store(), told["run_id"]) as run:
        (stored,) = run.pairs
        for name in ("verdict", "because", "noise_ratio"):
            assert getattr(stored, name) == pair[name]
        sentences = [row["says"] for row in pair["evidence"]]
        assert [row.says for row in run.evidence(0)] == sentences
        floors = run.rows("floor_position", pair=0)
        assert set(floors["compute_dtype"]) == {"bfloat16", "float32"}
        assert len(floors) == 2 * run.header.rows
        assert run.header.provenance.command.startswith("ulpscope judge --model sample_runs/model")
    assert cli("list", "--json").json[0]["verdicts"] == pair["verdict"]


def test_a_pair_that_cannot_be_judged_is_still_kept_and_the_sentence_told(cli, monkeypatch):
    from core.errors import CaptureError
    from core.inference.controls import judge_model

    names = []

    def refuse(*_, precisions, **__):
        names.extend(each.name for each in precisions)
        raise CaptureError("no floor for this model.")

    monkeypatch.setattr(judge_model, "judge", refuse)
    declared = ("--declare", "kv=fp8_e4m3", "--declare", "head=bf16")
    typed = ("--prompt", "def main():", "--variant", "decode", *declared)
    done = cli("judge", *MODEL, *typed, "--json")
    assert done.returncode == 2
    assert "'decode' was not judged: no floor for this model." in done.stderr
    with opened(open_store(), done.json["run_id"]) as run:
        assert run.pairs[0].verdict is None
        assert "was not judged" in run.header.provenance.note
        assert "--declare kv=fp8_e4m3 --declare head=bf16" in run.header.provenance.command
    assert names == ["KV cache in fp8_e4m3", "head in bf16"]
