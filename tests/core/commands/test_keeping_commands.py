"""`label` and `adopt` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from core.__main__ import app
from core.errors import StoreError
from core.runs.store import labels
from core.runs.store.store import Store
from tests.core.runs.damaging import damaged
from tests.core.runs.made_runs import copied


@pytest.fixture
def store(tmp_path: Path) -> Path:
    for name in ("a", "b"):
        copied(tmp_path / "runs" / f"{name}.duckdb")
    return tmp_path / "runs"


def test_a_label_pins_tags_and_keeps_what_it_is_not_asked_to_change(cli, store: Path) -> None:
    assert cli("label", "a", "--tag", "golden", "--tag", "old", "--note", "why", "--pin").returncode == 0
    assert labels.read(store, "a") == labels.Labels(("golden", "old"), "why", True)
    said = json.loads(cli("label", "a", "--remove-tag", "old", "--json").stdout)
    assert said == {"run_id": "a", "tags": ["golden"], "note": "why", "pinned": True, "judged_as": ""}
    assert "not pinned" in cli("label", "a", "--unpin").stdout
    assert cli("label", "none").returncode == 2


def _sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied(tmp_path / "samples" / "sample.duckdb")
    monkeypatch.setenv("ULPSCOPE_SAMPLES", str(tmp_path / "samples"))


def test_a_sample_run_among_those_to_delete_leaves_all(
    cli, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _sampled(tmp_path, monkeypatch)
    done = cli("delete", "--yes", "a", "sample", "b")
    assert (done.returncode, done.stdout) == (2, "")
    assert "read-only sample run; nothing was deleted" in done.stderr
    assert len(list(store.glob("*.duckdb"))) == 2


@pytest.mark.parametrize("options", [[], ["--json"]])
@pytest.mark.parametrize("command", ["delete", "restore"])
def test_what_was_changed_before_one_that_fails_is_reported(
    command: str, options: list[str], store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process: nothing but a disk that fails stops it in the middle."""
    whole, made = getattr(Store, command), []

    def failing(self: Store, name: str) -> str:
        if made:
            raise StoreError("the disk is gone.")
        made.append(name)
        return whole(self, name)

    names = ["a", "b"] if command == "delete" else [Store(store).discard(name) for name in ("a", "b")]
    monkeypatch.setenv("ULPSCOPE_STORE", str(store))
    monkeypatch.setattr(Store, command, failing)
    done = CliRunner().invoke(app, [command, *names, *(["--yes"] if command == "delete" else []), *options])
    assert isinstance(done.exception, StoreError) or done.exit_code == 2
    assert json.loads(done.stdout) == {f"{command}d": ["a"]} if options else f"{command}d a" in done.stdout


@pytest.mark.thorough
def test_adopt_prints_the_new_run_or_a_sentence(cli, store: Path, tmp_path: Path) -> None:
    path = copied(tmp_path / "outside" / "theirs.duckdb")
    done = cli("adopt", path, "--name", "mine", "--json")
    run_id = json.loads(done.stdout)["run_id"]
    assert "mine" in cli("list").stdout
    assert run_id.endswith(tuple("0123456789abcdef"))
    damaged(path, "CREATE MACRO f(x) AS x")
    refused = cli("adopt", path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "theirs.duckdb: holds the macro 'f'" in " ".join(refused.stderr.split())
    assert refused.stderr.count("\n") == 1
