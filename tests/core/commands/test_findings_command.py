"""`kernels` and `show --remedies`: what a run has is printed, what it lacks is a sentence."""

from __future__ import annotations

import json

import pytest

from core.inference.controls import remedies
from core.runs.reader import RunReader
from core.runs.store.store import open_store
from core.runs.tables.remedies import advice
from tests.core.runs.kernel_runs import kernel_run
from tests.core.runs.layer_runs import layer_run, with_kernels
from tests.core.runs.remedy_runs import ROWS, remedy_run


def test_remedies_are_shown_with_their_cost_and_what_could_not_be_measured(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    cli("list")
    remedy_run(open_store())
    done = cli("show", "remedies", "--remedies")
    assert done.returncode == 0, done.stderr
    assert f"{ROWS[2].name}: not measured. {ROWS[2].refusal}" in done.stdout
    assert advice(ROWS) in done.stdout
    (pair,) = json.loads(cli("show", "remedies", "--remedies", "--json").stdout)
    assert [row["neq"] for row in pair["remedies"]] == [600, 700, None, 0]


def test_a_run_without_them_is_one_sentence_that_says_how_to_have_them(cli):
    cli("list")
    kernel_run(open_store(), "plain", watched=False)
    for command, what in ((["kernels", "plain"], "kernels"), (["show", "plain", "--remedies"], "remedies")):
        done = cli(*command)
        assert done.returncode == 2
        assert "'plain' h" in done.stderr
        assert f"capture it with --{what}" in done.stderr
        assert "no variant 'x'; there are side_1." in cli(*command, "--variant", "x").stderr


@pytest.mark.thorough
@pytest.mark.model
def test_a_capture_keeps_both_where_it_is_asked_to(cli, monkeypatch):
    monkeypatch.setattr(remedies, "ROUNDS", 1)
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
