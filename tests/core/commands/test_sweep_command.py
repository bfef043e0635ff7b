"""`sweep` as a shell sees it, with the small model."""

import json
import shlex
import xml.etree.ElementTree as ET

import pytest

from core.command_name import COMMAND
from tests.places import MODEL
from tests.shell import run_workflow

PLAN = """
name = "small"
models = [{model}]
prompts = ["p.jsonl"]
paths = ["decode", "chunked:2", "decode+batches:2"]
judge = false
dtypes = ["float32"]
"""


@pytest.fixture
def plan(tmp_path):
    (tmp_path / "p.jsonl").write_text('{"token_ids": [5, 9, 200]}')
    path = tmp_path / "small.toml"
    path.write_text(PLAN.format(model=json.dumps(str(MODEL))))
    return path


def _runs(tmp_path):
    return {path.stem for path in tmp_path.glob("runs/*.duckdb")}


@pytest.mark.model
def test_a_plan_is_computed_once_and_again_under_another_build(cli, plan, tmp_path):
    """Every cell by --cell, in this process; workers are the subject of
    tests/core/sweeps/test_executors.py.
    """
    cells = [cell["cell"] for cell in cli("sweep", plan, "--dry-run", "--json").json["cells"]]
    asked = ["sweep", plan, "--json", *(part for cell in cells for part in ("--cell", cell))]
    first = cli(*asked, "--build", "1")
    told = first.json
    assert first.returncode == 2, "a cell failed"
    assert told["computed"] == 2
    assert told["failed"] == 1
    assert [cell["state"] for cell in told["cells"]] == ["done", "done", "failed"]
    assert "'decode+batches:2': no modifier 'batches'" in first.stderr
    runs = _runs(tmp_path)
    assert len(runs) == 2
    assert {cell["run"] for cell in told["cells"][:2]} == runs

    again = cli(*asked, "--build", "1").json
    assert again["computed"] == 0
    assert again["were_there"] == 2
    assert _runs(tmp_path) == runs

    junit = tmp_path / "sweep.xml"
    other = cli(
        *asked[:-2], "--build", "2", "--fail-on", "changed,bug", "--junit", junit
    ).succeeded()
    told = other.json
    assert told["computed"] == 2
    assert [cell["builds"] for cell in told["cells"]] == [{"build": ["1", "2"]}] * 2
    assert [cell["changed"] for cell in told["cells"]] == [[], []]
    assert [test.get("name") for test in ET.parse(junit).iter("testcase")] == ["changed", "bug"] * 2
    assert runs < _runs(tmp_path)


@pytest.mark.model
def test_the_dry_run_foresees_what_is_missing_and_names_what_is_refused(cli, plan, tmp_path):
    done = cli("sweep", plan, "--dry-run", "--json").succeeded()
    told = done.json
    decode, chunked, refused = told["cells"]
    # prefill, and three tokens or two chunks
    assert decode["forwards"] == 1 + 3
    assert chunked["forwards"] == 1 + 2
    assert decode["file_bytes"] == 2 * 3 * 4096 * 4
    assert decode["state"] == "missing"
    assert "no modifier 'batches'" in refused["refused"]
    assert told["missing"]["forwards"] == 4 + 3
    assert _runs(tmp_path) == set()


@pytest.mark.model
def test_each_printed_command_computes_its_cell(cli, plan, tmp_path):
    printed = cli("sweep", plan, "--print").stdout.splitlines()
    assert len(printed) == 3
    words = shlex.split(printed[0].removeprefix(COMMAND))
    cli(*words).succeeded()
    (run_id,) = _runs(tmp_path)
    assert words[words.index("--cell") + 1] in run_id
    assert len(cli("sweep", plan, "--print").stdout.splitlines()) == 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--junit", "x.xml"], "--junit and --markdown write a gate; add --fail-on"),
        (["--cell", "00"], "the plan has no cell '00'"),
    ],
)
def test_what_makes_no_sense_is_one_sentence_and_nothing_is_run(
    cli,
    plan,
    tmp_path,
    arguments,
    sentence,
):
    assert sentence in cli("sweep", plan, *arguments).refusal
    assert _runs(tmp_path) == set()


def test_a_tag_that_no_run_of_a_cell_has_is_refused_before_anything_is_computed(
    cli,
    plan,
    tmp_path,
):
    assert "--against 'golden': no run" in cli("sweep", plan, "--against", "golden").refusal
    assert _runs(tmp_path) == set()


@pytest.mark.thorough
@pytest.mark.model
def test_the_workflow_of_the_documentation_runs_as_it_is_night_after_night(tmp_path):
    """The `run` step of docs/guides/sweeps.md that calls ULPscope, in a shell, on two nights."""
    for night in ("1", "2"):
        run_workflow("sweeps.md", tmp_path, GITHUB_SHA=night)
    told = (tmp_path / "summary.md").read_text().replace("\\", "")
    assert told.count("### ULPscope gate: passed") == 2
    assert told.count("unchanged (build 1 -> 2)") == 6
    assert ET.parse(tmp_path / "sweep.xml").getroot().find("testsuite") is not None
