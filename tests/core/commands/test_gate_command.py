"""`compare` as a gate of a CI job: conditions, its files, exit codes."""

import re
import tempfile

import numpy as np
import pytest

from core.judging.ingest import ingest
from core.runs.dumps.export import export_npz
from tests.core.runs.damaging import damaged
from tests.core.runs.dumps.made_dumps import logits
from tests.core.runs.made_runs import sample
from tests.places import CASES, ROOT

FLIPS = CASES / "flips_fp16.npz"


@pytest.mark.parametrize(
    ("run", "code"),
    [("injected-bug", 1), ("fresh-against-cached", 0)],
)
def test_the_first_documented_gate_fails_on_an_injected_bug_and_passes_a_clean_pair(
    cli,
    tmp_path,
    run,
    code,
):
    """On the arrays alone: of a stored run `verdict` would have what its controls said."""
    gates = set()
    for page in ("README.md", "docs/guides/gates.md", "core/commands/comparing.py"):
        text = (ROOT / page).read_text()
        conditions = re.findall(r"^ *ulpscope compare .*--fail-on (\S*>\S*)", text, re.M)
        gates.add(conditions[0].strip("'"))
    with sample(run) as stored:
        export_npz(stored, tmp_path / "pair.npz")
    for gate in gates:
        assert cli("compare", tmp_path / "pair.npz", "--fail-on", gate).returncode == code


def test_json_gains_a_gate_and_nothing_else_changes(cli):
    plain = cli("compare", FLIPS, "--json", "--positions").json
    done = cli("compare", FLIPS, "--json", "--positions", "--fail-on", "flips,bits,ulps:40,ulps:39")
    gated = done.json
    assert done.returncode == 1
    gate = gated.pop("gate")
    assert gated == plain
    assert [(c["condition"], c["outcome"], c["figure"]) for c in gate["conditions"]] == [
        ("flips", "failed", 7),
        ("bits", "failed", 39204),
        ("ulps:40", "passed", 40),
        ("ulps:39", "failed", 40),
    ]
    assert gate["worst"]["max_abs"] == plain["summary"]["max_abs"]
    assert gate["outcome"] == "failed"


def test_a_file_of_no_gate_is_refused(cli):
    assert "report a gate; add --fail-on" in cli("compare", FLIPS, "--junit", "x.xml").refusal


def test_the_verdict_of_a_dump_is_what_it_would_be_stored_with_and_nothing_is_left(
    cli,
    tmp_path,
    monkeypatch,
):
    """NaN on one side is an invalid dump; without controls the rest is undecided, and says so."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "passing"))
    (tmp_path / "passing").mkdir()
    invalid = cli("compare", CASES / "nonfinite_fp32.npz", "--fail-on", "verdict")
    assert invalid.returncode == 1
    assert "gate failed: verdict: 'variant' vs 'reference' is invalid dump" in invalid.stderr
    undecided = cli("compare", FLIPS, "--fail-on", "verdict").succeeded()
    assert "gate undecided: verdict: 'variant' vs 'reference' is undecided: " in undecided.stderr
    assert "id that `ulpscope ingest` prints" in undecided.stderr
    assert "gate passed" not in undecided.stdout
    identical = cli("compare", CASES / "identical_bf16_bits.npz", "--fail-on", "verdict")
    assert (identical.returncode, "gate passed: 1 condition" in identical.stdout) == (0, True)
    assert list((tmp_path / "passing").iterdir()) == []
    assert not list(tmp_path.glob("runs/*.duckdb"))


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE position ALTER kl TYPE VARCHAR USING 'much'",
        "UPDATE position SET max_abs = 'inf'",
        "ALTER TABLE position ALTER reference_margin TYPE VARCHAR USING 'wide'",
        "ALTER TABLE position ALTER max_ulps TYPE VARCHAR USING 'far'",
        "UPDATE position SET position = position + 1000",
        "UPDATE position SET prompt = 7",
        "UPDATE pair SET rms = 'nan'",
        "ALTER TABLE pair ALTER flips TYPE VARCHAR USING 'some'",
    ],
)
def test_a_gate_over_a_damaged_run_is_one_sentence_and_never_green(cli, store, tmp_path, statement):
    run_id = ingest(store, [FLIPS])
    damaged(store.path_of(run_id), statement)
    gate = "bits,flips,flips:margin>1ulps,ulps:1,kl>0,rms>0,max-abs>0,share>0,same-top1<1,verdict"
    junit = tmp_path / "gate.xml"
    done = cli("compare", run_id, "--fail-on", gate, "--junit", junit)
    assert "the file is damaged" in done.refusal
    assert not junit.exists()


@pytest.mark.parametrize("command", ["compare", "ingest"])
def test_one_position_far_off_is_a_fault_unless_there_are_experts(cli, tmp_path, command):
    reference = logits(0, (40, 64))
    moved = reference * np.float32(1 + 1e-6)
    moved[17] += logits(1, 64)
    np.savez(tmp_path / "pair.npz", reference=reference, variant=moved)
    verdicts = []
    for option in ((), ("--mixture-of-experts",)):
        words = (tmp_path / "pair.npz", *option, "--store", tmp_path / "runs", "--json")
        answer = cli(command, *words).json
        if command == "ingest":
            answer = cli("compare", answer["run_id"], "--store", tmp_path / "runs", "--json").json
        verdicts.append(answer["verdict"])
    assert verdicts == ["bug suspected", "undecided"]
