"""`ops` on the command line: what it prints and stores, and what the other commands say of such a
run.
"""

import pytest
import torch

from core.runs.ops_run import read_ops, write_ops_run
from core.runs.store.store import Store
from tests.core.runs.test_ops_run import UNSTEADY, header, row_of

QUICK = (
    "ops",
    "--device",
    "cpu",
    "--quick",
    "--op",
    "mean",
    "--dtype",
    "float32",
    "--repeats",
    "1",
)


def test_probes_are_printed_stored_and_printed_again(cli, tmp_path):
    done = cli(*QUICK, "--json").succeeded()
    said = done.json
    assert [(row["op"], row["dtype"], row["size"]) for row in said["rows"]] == [
        ("mean", "float32", "width 256"),
        ("mean", "float32", "width 4096"),
    ]
    assert all(row["is_repeatable"] for row in said["rows"])
    assert said["versions"]["torch"] == torch.__version__
    run = read_ops(Store(tmp_path / "runs"), said["run_id"])
    assert run.header.command == " ".join(["ulpscope", *QUICK])
    assert run.rows == said["rows"]
    assert cli("ops", "--show", said["run_id"], "--json").json == said
    assert "same" in cli("ops", "--show", said["run_id"]).stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--op", "matmul"], "unknown operation 'matmul'; expected one of mm, addmm,"),
        (["--dtype", "int8"], "dtype 'int8' is not known"),
        (["--device", "tpu"], "device 'tpu' is unknown"),
        (["--show", "nothing"], "no run 'nothing'"),
        (["--model", "nowhere/at-all", "--quick"], "model 'nowhere/at-all': no such folder"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_code_2(cli, arguments, sentence):
    assert sentence in cli("ops", *arguments).refusal


def test_every_other_command_says_what_such_a_run_is(cli, tmp_path):
    run_id = write_ops_run(Store(tmp_path / "runs"), header(), [row_of(), UNSTEADY])
    assert [card["kind"] for card in cli("list", "--json").json] == ["ops"]
    for arguments in (
        ["show", run_id],
        ["compare", run_id],
        ["export", run_id, tmp_path / "x.npz"],
    ):
        assert f"'{run_id}' holds probes of operations" in cli(*arguments).refusal
    assert cli("delete", run_id).returncode == 0
