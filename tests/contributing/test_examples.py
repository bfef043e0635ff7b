"""The examples of CONTRIBUTING.md's table are patches. Each applies, touches as many source files
as the table says, and what it adds is where the table says, in a copy of the tree.

A new example is NAME.patch, its row in the table and a function `shows_NAME` here.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.core.conftest import environment
from tests.core.runs.test_growth import file_of_1_0_0
from tests.shell import ran

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NAMES = sorted(path.stem for path in HERE.glob("*.patch"))
FILES = {
    name: int(count)
    for name, count in re.findall(
        r"\((?:\S+/)?(\w+)\.patch\) \| (\d+) \|",
        (ROOT / "CONTRIBUTING.md").read_text(),
    )
}
CAPTURE = (
    *("capture", "--model", ROOT / "sample_runs" / "model", "--dtype", "float32"),
    *("--prompt", "def add(a, b):"),
)
# tests/app/opening.py finds the pages of the tree that it lies in
TREE = ("core", "app", "pages", "docs/reference", ".streamlit", "tests/app")
PAGE = """
import json, sys
from tests.app.opening import open_page
page, key, run = sys.argv[1:]
app = open_page(page, run=run)
app.toggle(key=f"{key}_all_columns").set_value(True).run()
assert not app.exception
links = [link.proto.page for link in app.get("page_link")]
tables = {name: list(column) for table in app.dataframe for name, column in table.value.items()}
print(json.dumps({"title": app.title[0].value, "links": links, "table": tables}, default=str))
"""


def apply(name, folder, *options):
    """Apply a patch to a tree, with or without a history. -> the source files that it touches"""
    done = subprocess.run(
        ["git", "apply", "--numstat", *options, HERE / f"{name}.patch"],
        cwd=folder,
        # within another repository git skips files outside of it, without an error
        env=os.environ | {"GIT_CEILING_DIRECTORIES": str(folder.parent)},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        pytest.fail(
            f"tests/contributing/{name}.patch no longer applies; make its change to this tree and"
            f" save `git diff` as the patch:\n{done.stderr}",
            pytrace=False,
        )
    files = [line.split("\t")[2] for line in done.stdout.splitlines()]
    return [file for file in files if file.startswith(("core/", "app/", "pages/"))]


@pytest.mark.parametrize("name", NAMES)
def test_an_example_applies_and_touches_as_many_source_files_as_the_table_says(name):
    assert len(apply(name, ROOT, "--check")) == FILES[name]


def test_a_patch_that_does_not_apply_is_said_to_be_out_of_date(tmp_path):
    with pytest.raises(pytest.fail.Exception, match=r"(?s)column\.patch no longer .*kv_cache"):
        apply("column", tmp_path, "--check")


def test_every_example_of_the_table_is_a_patch_that_is_tried():
    tried = {name.removeprefix("shows_") for name in globals() if name.startswith("shows_")}
    assert set(NAMES) == set(FILES) == tried


@dataclass(frozen=True)
class Patched:
    """A copy of the tree with one example."""

    tree: Path

    def run(self, *words):
        given = os.environ | environment(self.tree.parent)
        return ran([sys.executable, *map(str, words)], cwd=self.tree, env=given).stdout

    def ulpscope(self, *words):
        return json.loads(self.run("-m", "core", *words, "--json"))

    def stored(self, *words):
        """Import or capture. -> the run's id"""
        return self.ulpscope(*words)["run_id"]

    def old(self, kind):
        """What `show` prints of a file of version 1.0.0."""
        run = self.stored("ingest", file_of_1_0_0(kind, self.tree.parent))
        return self.ulpscope("show", run, "--positions")

    def page(self, name, key, run):
        """A page with all columns of its table `key`."""
        return json.loads(self.run("-c", PAGE, name, key, run).splitlines()[-1])


@pytest.fixture
def patched(request, tmp_path):
    tree = tmp_path / "tree"
    for folder in TREE:  # with what Python and numba compiled
        shutil.copytree(ROOT / folder, tree / folder)
    shutil.copy(ROOT / "tests" / "places.py", tree / "tests")
    apply(request.node.callspec.params["name"], tree, "--apply")
    return Patched(tree)


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_what_an_example_adds_is_where_the_table_says(name, patched):
    globals()[f"shows_{name}"](patched)


def dump(patched):
    """A flip whose logsumexp is 1 higher, an exact tie, and a NaN."""
    sides = {
        "reference": np.array([[1, 0], [2, 2], [0, 1]], np.float32),
        "variant": np.array([[1, 2], [2, 2], [np.nan, 1]], np.float32),
    }
    np.savez(patched.tree / "dump.npz", **sides)
    return patched.stored("ingest", "dump.npz")


def shows_metric(patched):
    patched.run("-m", "docs.reference.generate")
    assert (
        "| `logsumexp_change` | nats |" in (patched.tree / "docs/reference/metrics.md").read_text()
    )
    run = dump(patched)
    rows = patched.ulpscope("show", run, "--positions")["by_position"]
    assert [row["logsumexp_change"] for row in rows] == [pytest.approx(1), 0, None]
    assert {row["logsumexp_change"] for row in patched.old("dump")["by_position"]} == {None}
    assert patched.page("near_ties", "close_margins", run)["table"]["logsumexp_change"] == [0]
    return run


def shows_metric_everywhere(patched):
    run = shows_metric(patched)
    table = patched.page("flips", "flip_table", run)["table"]
    assert table["logsumexp_change"] == [pytest.approx(1)]


def shows_column(patched):
    run = patched.stored(*CAPTURE, "--variant", "decode+dtype:bfloat16")
    heads = patched.ulpscope("show", run)["kv"][0]["by_head"]
    # bfloat16 rounds values of every head at more than one position
    assert min(head["last_position"] - head["first_position"] for head in heads) > 0
    old = patched.old("judged")["kv"][0]["by_head"]
    assert {head["last_position"] for head in old} == {None}


def shows_page(patched):
    page = patched.page("largest", "largest", dump(patched))
    assert page["title"] == "Largest differences"
    assert "largest" in page["links"]
    assert page["table"]["position"] == ["0", "1", "2"]


def shows_response_format(patched):
    def saved(name, *logprobs):
        tokens = [
            {"token": f"t{token}", "tokenId": token, "logProbability": value}
            for token, value in enumerate(logprobs)
        ]
        chosen = max(tokens, key=lambda one: one["logProbability"])
        result = {"chosenCandidates": [chosen], "topCandidates": [{"candidates": tokens}]}
        payload = {"candidates": [{"logprobsResult": result}]}
        (patched.tree / name).write_text(json.dumps(payload))
        return name

    report = patched.ulpscope("compare", saved("a.json", -0.1, -2.5), saved("b.json", -2.0, -0.2))
    (flip,) = report["flips"]
    assert flip["reference_token"] == 0
    assert flip["variant_token"] == 1


def shows_rl_framework(patched):
    row = {"token_ids": [1, 2], "rollout": [-1, -1], "trainer": [-1.5, -2.5]}
    (patched.tree / "rows.jsonl").write_text(json.dumps(row))
    run = patched.stored("ingest", "rows.jsonl")
    for command in (("compare", "rows.jsonl"), ("show", run)):
        figures = patched.ulpscope(*command, "--as", "skyrl")["mismatch"]["figures"]
        values = {figure["name"].rpartition("_")[2]: figure["value"] for figure in figures}
        assert values == pytest.approx({"mean": 1, "std": 0.5**0.5})  # of |r|, 0.5 and 1.5


def shows_path_modifier(patched):
    patched.run("-m", "docs.reference.generate")
    assert "\n| `deterministic` | " in (patched.tree / "docs/reference/paths.md").read_text()
    path = "prefill+deterministic"
    run = patched.stored(*CAPTURE, "--variant", path)
    assert patched.ulpscope("show", run)["sides"][1]["path"] == path


def shows_check(patched):
    patched.run("-m", "docs.reference.generate")
    assert "one argmax | `token`" in (patched.tree / "docs/reference/checks.md").read_text()
    reference = 3 * np.eye(8, 9, dtype=np.float32)
    variant = np.zeros_like(reference)
    variant[:, 8] = 1
    np.savez(patched.tree / "stale.npz", reference=reference, variant=variant)
    report = patched.ulpscope("compare", "stale.npz")
    assert report["verdict"] == "invalid dump"
    assert "'variant' has its largest logit at token 8 everywhere" in report["because"]


def shows_engine(patched):
    engines = {row["name"]: row["is_here"] for row in patched.ulpscope("engines")}
    assert engines["toy"]
    run = patched.stored(*CAPTURE, "--variant", "toy:prefill")
    assert patched.ulpscope("show", run)["sides"][1]["path"] == "toy:prefill"
