"""`verdict` as a shell sees it: what is stored, what controls make of an upload, exit codes,
refusals that change nothing.
"""

import numpy as np
import pytest

from core.commands import capturing
from core.runs.store.store import open_store
from core.verdict import VERDICTS
from tests.core.judging.engine_dumps import ROWS, in_bfloat16, in_float32, saved, states, with_fault
from tests.core.runs.judged_runs import judged_run

X, HEAD = states()
IDS = np.arange(ROWS)


@pytest.fixture
def dump(cli, tmp_path):
    """The id of a stored upload, and its float32 pair, right and with a fault."""
    path = saved(
        tmp_path / "d.npz",
        reference=in_bfloat16(X, HEAD, 1),
        variant=in_bfloat16(X, HEAD, 2),
        token_ids=IDS,
    )
    pair = saved(
        tmp_path / "pair.npz",
        reference=in_float32(X, HEAD, 1),
        variant=in_float32(X, HEAD, 2),
    )
    bad = saved(
        tmp_path / "bad.npz",
        reference=in_float32(X, HEAD, 1),
        variant=in_float32(with_fault(X), HEAD, 2),
    )
    return cli("ingest", path, "--json").json["run_id"], pair, bad


def test_the_stored_verdict_is_printed_with_its_evidence(cli, dump):
    done = cli("verdict", dump[0]).succeeded()
    assert "likely rounding" in done.stdout
    assert "arrays alone" in done.stdout
    assert "float32 comparison" in done.stdout


def test_a_control_makes_a_new_run_and_a_fault_exits_with_1(cli, dump):
    run_id, pair, bad = dump
    done = cli("verdict", run_id, "--float32", pair, "--json").succeeded()
    told = done.json
    assert told["run_id"] != run_id
    assert told["pairs"][0]["verdict"] == "rounding"
    assert cli("verdict", told["run_id"]).returncode == 0
    done = cli("verdict", run_id, "--float32", bad, "--name", "the fault")
    assert done.returncode == 1, done.stderr
    assert "bug suspected" in done.stdout
    assert len(open_store().paths()) == 3
    listed = cli("list", "--json", "--all").json
    assert {card["name"] for card in listed} == {"d", "d, judged", "the fault"}


@pytest.mark.spread(3)
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("nothing",), "no run 'nothing'"),
        (("RUN", "--float32", "no_such.npz"), "there is no such file"),
        (("RUN", "--model", "no/such/model"), "model 'no/such/model'"),
        (
            ("RUN", "--model", "no/such/model", "--floor", "no_such.npz"),
            "--floor or --model, not both",
        ),
        (("RUN", "--declare", "kv=fp8_e4m3"), "--declare needs --model"),
        (
            ("RUN", "--model", "no/such/model", "--declare", "cache=int8"),
            "Parts are kv, weights, products",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_with_2_and_stores_nothing(cli, dump, arguments, sentence):
    words = [dump[0] if word == "RUN" else word for word in arguments]
    assert sentence in cli("verdict", *words).refusal
    assert len(open_store().paths()) == 1


@pytest.mark.parametrize("verdict", VERDICTS)
def test_judge_verdict_and_compare_end_with_one_exit_code(cli, monkeypatch, verdict):
    run_id = judged_run(open_store(), verdict)
    monkeypatch.setattr(capturing, "capture_to_store", lambda *_: (run_id, []))
    judge = ("judge", "--model", "m", "--prompt", "a", "--variant", "decode")
    ended = [
        cli(*line).returncode
        for line in (judge, ("verdict", run_id), ("compare", run_id, "--fail-on", "verdict"))
    ]
    failing = {"bug suspected", "nondeterministic", "invalid dump"}
    assert ended == [verdict in failing] * 3
