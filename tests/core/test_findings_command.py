"""`kernels` and `remedies` on the command line: what a run holds is printed, what it does not hold is a sentence; and a capture holds it."""

from __future__ import annotations

import json

import pytest

from core.runs.reader import RunReader
from core.runs.store import open_store
from tests.core.runs.kernel_runs import NARROW, REDUCE, WIDE, kernel_run
from tests.core.runs.remedy_runs import remedy_run


def test_kernels_are_printed_side_by_side(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    cli("list")
    kernel_run(open_store())
    done = cli("kernels", "kernels", "--differing")
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in (NARROW, WIDE, REDUCE))
    assert "aten::mm" not in done.stdout
    (pair,) = json.loads(cli("kernels", "kernels", "--json").stdout)["pairs"]
    assert [each["only"] for each in pair["kernels"]] == ["reference", "variant", "", ""]
    assert pair["kernels"][2]["ratio"] == 3.0


def test_remedies_are_printed_with_what_could_not_be_measured(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    cli("list")
    remedy_run(open_store())
    done = cli("remedies", "remedies")
    assert done.returncode == 0, done.stderr
    assert "TF32 off: not measured. TF32 exists on CUDA only." in done.stdout
    assert "invariant makes the sides equal in every logit, at 75% of the throughput." in done.stdout
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


@pytest.mark.model
def test_a_capture_keeps_both_where_it_is_asked_to(cli):
    asked = ("--model", "sample_runs/model", "--prompt", "def walk(self):", "--variant", "decode", "--json")
    done = cli("capture", *asked, "--kernels", "--remedies")
    assert done.returncode == 0, done.stderr
    with RunReader(open_store().path_of(json.loads(done.stdout)["run_id"])) as run:
        assert set(run.kernels) == {0, 1}
        assert run.kernels[0].of == 1
        assert run.kernels[1].of == run.header.rows
        plain, *others = run.remedies[0]
        assert (plain.name, plain.neq, plain.max_ulps) == ("as it is", run.pairs[0].summary.neq, run.pairs[0].summary.max_ulps)
        assert {row.name: row.neq for row in others}["invariant"] == 0
    with RunReader(open_store().path_of(json.loads(cli("capture", *asked).stdout)["run_id"])) as run:
        assert run.kernels == {}
        assert run.remedies == {}
