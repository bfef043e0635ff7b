"""The command line as its users meet it: real processes, real files, exit codes."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from rich.markup import render

from core import __version__
from core.__main__ import MODULES, load
from tests.core.conftest import environment
from tests.places import CASES, ROOT


def in_a_process(tmp_path, *arguments):
    """The same as a user's shell runs it."""
    command = [sys.executable, "-m", "core", *arguments]
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **environment(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("arguments", "code", "stream", "text"),
    [
        (
            ["compare", "tests/cases/flips_fp16.npz", "--fail-on", "bits"],
            1,
            "stderr",
            "gate failed",
        ),
        (["--help"], 0, "stdout", "rounding, or a bug"),
        (["--version"], 0, "stdout", f"ulpscope {__version__}\n"),
    ],
)
def test_a_shell_sees_the_exit_code_and_the_right_stream(tmp_path, arguments, code, stream, text):
    done = in_a_process(tmp_path, *arguments)
    assert done.returncode == code, done.stderr
    assert text in getattr(done, stream)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("typed", "word"), [("ulpscope sh", "show"), ("ulpscope show --lay", "--layers")]
)
def test_a_shell_completes_commands_and_options(tmp_path, monkeypatch, typed, word):
    # how bash asks click: the line so far, and the number of its word
    monkeypatch.setenv("_ULPSCOPE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(typed.count(" ")))
    assert in_a_process(tmp_path).stdout.split() == [word]


def test_warnings_of_libraries_reach_no_user(tmp_path):
    """Casting -1e38 to float16, as `explain` does for its grids, overflows."""
    a = np.zeros((8, 64), np.float32)
    a[:, 0] = 1e38
    a[:, 1] = -1e38
    np.savez(tmp_path / "large.npz", a=a, b=-a)
    stored = in_a_process(tmp_path, "ingest", str(tmp_path / "large.npz"), "--progress", "json")
    run_id = json.loads(stored.stdout.splitlines()[-1])["run_id"]
    done = in_a_process(tmp_path, "explain", run_id)
    assert done.returncode == 0
    assert stored.stderr == ""
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["compare", "nowhere.npz"], "nowhere.npz"),
        (["compare", CASES / "flips_fp16.npz", "--variant", "other"], "there are variant"),
        (["show", "../x"], "is not a run id"),
        (["delete", "--restore", "nothing"], "'nothing' is no deleted run"),
        (["capture", "--model", "no/such/folder", "--prompt", "x"], "no/such/folder"),
        (["capture", "--model", "sample_runs/model"], "no prompts; use"),
        (["nonsense"], "nonsense"),
        (["compare"], "A"),
    ],
)
def test_bad_input_gets_one_sentence_exit_code_2_and_writes_nothing(
    cli,
    tmp_path,
    arguments,
    sentence,
):
    assert sentence in cli(*arguments).refusal
    assert not list(tmp_path.glob("runs/*"))


def test_ingest_list_show_compare_export_delete_go_round(cli, tmp_path):
    source = CASES / "flips_fp16.npz"
    run_id = cli("ingest", source, "--name", "Golden", "--json").json["run_id"]
    (listed,) = cli("list", "--json").json
    names = "run_id", "name", "flips", "compute_dtype"
    assert [listed[name] for name in names] == [run_id, "Golden", 7, "float16"]
    shown = cli("show", run_id[:17], "--json").json
    from_dump = cli("compare", source, "--json").json
    from_run = cli("compare", run_id, "--json").json
    named = {"next_command": f"ulpscope verdict {run_id} --float32 PAIR_IN_FLOAT32.npz"}
    assert from_run == from_dump | named
    assert {key: shown[key] for key in from_dump} == from_run
    gated = cli("compare", run_id, "--fail-on", "flips")
    assert gated.returncode == 1
    for printed in (gated, cli("verdict", run_id)):
        assert f"next: {named['next_command']}\n" in printed.stderr
    assert cli("export", run_id, tmp_path / "back.npz").returncode == 0
    assert cli("compare", tmp_path / "back.npz", "--json").json["summary"] == from_run["summary"]
    assert cli("export", run_id, tmp_path / "back.npz").returncode == 2
    assert cli("export", run_id, "--html", tmp_path / "run.html").returncode == 0
    for file, magic in (("of_run.html", b"<!doctype html>"), ("of_pair.png", b"\x89PNG")):
        assert cli("export", run_id, tmp_path / file).returncode == 0
        assert (tmp_path / file).read_bytes().startswith(magic)
    for refused in (
        [tmp_path / "b.jpg"],
        ["--png", tmp_path / "b.html"],
        ["--html", tmp_path / "run.html"],
        [],
        [tmp_path / "b.npz", "--html", tmp_path / "b.html"],
    ):
        assert cli("export", run_id, *refused).returncode == 2
    assert not list(tmp_path.glob("b.*"))
    assert cli("delete", run_id, "--json").json == {"deleted": [run_id]}
    assert cli("list", "--json").json == []


def test_a_deleted_run_is_listed_restored_and_removed_for_good(cli, store):
    done = cli("ingest", CASES / "flips_fp16.npz", "--name", "[red]Golden", "--json")
    run_id = done.json["run_id"]
    path = store.path_of(run_id)
    body = path.read_bytes()
    assert cli("list", "--deleted", "--json").json == []
    assert cli("delete", run_id[:10]).returncode == 0
    (listed,) = cli("list", "--deleted", "--json").json
    assert listed["run_id"] == run_id
    assert listed["name"] == "[red]Golden"
    assert "[red]Golden" in cli("list", "--deleted").stdout
    assert cli("delete", "--restore", "--for-good", run_id).returncode == 2
    assert cli("delete", "--restore", run_id[:10], "--json").json == {"restored": [run_id]}
    assert path.read_bytes() == body
    for already in (False, True):
        if already:
            store.delete(run_id)
        assert cli("delete", "--for-good", run_id, "--json").json == {"deleted": [run_id]}
        assert store.deleted() == []
        assert not path.exists()
        path.write_bytes(body)


@pytest.mark.parametrize("name", MODULES)
def test_help_prints_what_its_source_says(name):
    """The terminal takes brackets for colors."""
    command = load(name)
    for text in (command.help, *(getattr(option, "help", None) for option in command.params)):
        assert text is None or render(text).plain == text
