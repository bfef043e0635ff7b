"""`ops` on the command line: what it prints and stores, and what the other commands say of such a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from core.runs.ops_run import OpsHeader, read_ops, write_ops_run
from core.runs.store.store import Store
from core.runs.tables.ops import OpRow, Repeats


def stored(tmp_path, **changes) -> str:
    """A run of one probe, in the store of `cli`."""
    about = OpsHeader(
        "a machine",
        changes.pop("device", "cpu"),
        "A chip",
        ("float32",),
        0,
        "ulpscope ops",
        versions={"torch": "2.13.0"},
    )
    row = OpRow(
        "cumsum",
        "",
        "float32",
        "width 4096",
        elements=4096,
        repeats=Repeats(40, **changes),
        note="nothing else was asked",
    )
    return write_ops_run(Store(tmp_path / "runs"), about, (row,))


def test_probes_are_printed_stored_and_printed_again(cli, tmp_path):
    asked = "ops --device cpu --quick --op softmax --dtype bf16 --repeats 1 --seed 4"
    done = cli(*asked.split(), "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert [(row["op"], row["dtype"], row["size"]) for row in said["rows"]] == [
        ("softmax", "bfloat16", "width 256"),
        ("softmax", "bfloat16", "width 4096"),
    ]
    assert all(row["is_repeatable"] for row in said["rows"])
    assert said["rows"][0]["elements"] == 256
    assert said["versions"]["torch"] == torch.__version__
    assert said["seed"] == 4
    run = read_ops(Store(tmp_path / "runs"), said["run_id"])
    assert run.header.command == f"ulpscope {asked}"
    assert [row.classes[0].digest for row in run.rows] == [row["classes"][0]["digest"] for row in said["rows"]]
    again = cli("ops", "--show", said["run_id"], "--json")
    assert json.loads(again.stdout) == said
    table = cli("ops", "--show", said["run_id"])
    assert "calls, all identical" in table.stdout
    report = cli("ops", "--show", said["run_id"], "--markdown")
    assert "### bfloat16" in report.stdout
    assert "| softmax | width 256 | yes:" in report.stdout


def test_without_saving_nothing_is_stored(cli, tmp_path):
    done = cli("ops", "--device", "cpu", "--quick", "--op", "mean", "--dtype", "float32", "--repeats", "1", "--no-save")
    assert done.returncode == 0, done.stderr
    assert "mean" in done.stdout
    assert not (tmp_path / "runs").exists()


def test_programs_are_told_each_step_and_the_run(cli):
    done = cli(
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
        "--progress",
        "json",
    )
    steps = [json.loads(line) for line in done.stdout.splitlines()]
    assert steps[0] == {"stage": "loading torch"}
    assert {"stage": "mean, width 256, float32", "rows_done": 0, "rows_total": 2} in steps
    assert steps[-1]["stage"] == "done"
    assert steps[-1]["run_id"]


def test_a_models_own_shapes_are_probed_too(cli):
    done = cli(
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
        "--no-save",
        "--json",
        "--model",
        "sample_runs/model",
    )
    assert done.returncode == 0, done.stderr
    rows = [row for row in json.loads(done.stdout)["rows"] if row["op"] == "linear"]
    config = json.loads(Path("sample_runs/model/config.json").read_text())
    widths = {row["size"] for row in rows}
    assert f"{config['hidden_size']} to {config['intermediate_size']}" in widths
    assert f"{config['hidden_size']} to {config['vocab_size']}" in widths
    assert any("q_proj" in row["modules"] for row in rows)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--op", "matmul"], "operation 'matmul' is not known; expected one of mm, addmm,"),
        (["--dtype", "int8"], "dtype 'int8' is not known"),
        (["--device", "tpu"], "device 'tpu' is not known"),
        (["--json", "--markdown"], "--json and --markdown are two forms of the same"),
        (["--progress", "dots"], "--progress 'dots' is not known"),
        (["--show", "nothing"], "no run 'nothing'"),
        (["--model", "nowhere/at-all", "--quick"], "model 'nowhere/at-all': no such folder"),
        (["--op", "mm", "--seconds", "0"], "no operation was probed; nothing was stored"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_code_2(cli, tmp_path, arguments, sentence):
    done = cli("ops", *arguments)
    assert done.returncode == 2
    assert sentence in " ".join(done.stderr.split())
    assert len(done.stderr.strip().splitlines()) == 1
    assert not list((tmp_path / "runs").glob("*")) if (tmp_path / "runs").exists() else True


def test_two_machines_beside_each_other_say_on_what_they_disagree(cli, tmp_path):
    steady, unsteady = (
        stored(tmp_path),
        stored(tmp_path, device="cuda:0", differing=3, worst_batch=1, worst_call=2, worst_neq=9),
    )
    done = cli("ops", "--show", steady, "--show", unsteady)
    assert done.returncode == 0, done.stderr
    assert "run to run" in done.stdout
    assert "cuda:0" in done.stdout
    both = json.loads(cli("ops", "--show", steady, "--show", unsteady, "--json").stdout)
    assert [run["rows"][0]["is_repeatable"] for run in both] == [True, False]


def test_every_other_command_says_what_such_a_run_is(cli, tmp_path):
    run_id = stored(tmp_path)
    listed = cli("list")
    assert run_id in listed.stdout
    assert "operations" in listed.stdout
    assert [card["kind"] for card in json.loads(cli("list", "--json").stdout)] == ["ops"]
    for arguments in (
        ["show", run_id],
        ["compare", run_id],
        ["export", run_id, tmp_path / "x.npz"],
        ["verdict", run_id],
    ):
        done = cli(*arguments)
        assert done.returncode == 2, arguments
        assert f"'{run_id}' holds probes of operations" in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
    assert cli("delete", run_id, "--yes").returncode == 0
