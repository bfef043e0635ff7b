"""`kernels` and `remedies` on the command line: what a run holds is printed, what it does not hold is a sentence; and a
capture holds it.
"""

from __future__ import annotations

import json

import pytest

from core.inference.capture import throughput
from core.inference.capture.throughput import by_turns
from core.inference.controls import remedies as remedies_control
from core.runs.reader import RunReader
from core.runs.store.store import open_store
from core.runs.tables.remedies import advice
from tests.core.runs.kernel_runs import kernel_run
from tests.core.runs.layer_runs import layer_run, with_kernels
from tests.core.runs.remedy_runs import ROWS, remedy_run


def test_remedies_are_printed_with_what_could_not_be_measured(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    cli("list")
    remedy_run(open_store())
    done = cli("remedies", "remedies")
    assert done.returncode == 0, done.stderr
    assert f"{ROWS[2].name}: not measured. {ROWS[2].refusal}" in done.stdout
    assert advice(ROWS).replace("**", "").split(". ")[0] in done.stdout
    assert "0.80 ± 0.02" in done.stdout
    (pair,) = json.loads(cli("remedies", "remedies", "--json").stdout)["pairs"]
    assert [row["neq"] for row in pair["remedies"]] == [600, 700, None, 0]


@pytest.mark.parametrize("command", ["kernels", "remedies"])
def test_a_run_without_them_is_one_sentence_that_says_how_to_have_them(cli, command):
    cli("list")
    kernel_run(open_store(), "plain", watched=False)
    done = cli(command, "plain")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: run 'plain' holds no {command}; capture it with --{command}")
    assert "no variant 'x'; there are side_1." in cli(command, "plain", "--variant", "x").stderr


@pytest.mark.thorough
@pytest.mark.model
def test_a_capture_keeps_both_where_it_is_asked_to(cli, monkeypatch):
    """With one turn of the clock, which is asked only what remedies cost."""
    for module in (remedies_control, throughput):
        monkeypatch.setattr(module, "by_turns", lambda *given, **named: by_turns(*given, **{**named, "turns": 1}))
    asked = ("--model", "sample_runs/model", "--prompt", "def walk(self):", "--variant", "decode", "--json")
    done = cli("capture", *asked, "--kernels", "--remedies")
    assert done.returncode == 0, done.stderr
    with RunReader(open_store().path_of(json.loads(done.stdout)["run_id"])) as run:
        assert set(run.kernels) == {0, 1}
        assert run.kernels[0].of == 1
        assert run.kernels[1].of == run.header.rows
        plain, *others = run.remedies[0]
        assert (plain.name, plain.neq, plain.max_ulps) == (
            "as it is",
            run.pairs[0].summary.neq,
            run.pairs[0].summary.max_ulps,
        )
        assert {row.name: row.neq for row in others}["invariant"] == 0
    with RunReader(open_store().path_of(json.loads(cli("capture", *asked).stdout)["run_id"])) as run:
        assert run.kernels == {}
        assert run.remedies == {}


def test_kernels_begin_where_the_sides_begin_to_differ(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    cli("list")
    run_id = with_kernels(open_store(), layer_run(open_store(), {(1, 1, 4): 3}))
    lines = cli("kernels", run_id).stdout.splitlines()
    assert lines[0].startswith("The first module that differs is 'model.layers.0.norm', at prompt 1,")
    assert "position 4. There ran 'aten::mean' on both sides" in lines[0]
    assert lines[0].endswith("other shape: bfloat16 [1, 8] against bfloat16 [2, 8].")
    (pair,) = json.loads(cli("kernels", run_id, "--json").stdout)["pairs"]
    assert (pair["where_it_starts"]["module"], pair["where_it_starts"]["position"]) == ("model.layers.0.norm", 4)
    kernel_run(open_store())
    assert "two sides begin to differ" in cli("kernels", "kernels").stdout
    assert json.loads(cli("kernels", "kernels", "--json").stdout)["pairs"][0]["where_it_starts"] is None
