"""`tidy`, `label` and `adopt` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from core.runs import audit, labels
from tests.core.runs.damaging import damaged
from tests.core.runs.made_runs import copied


@pytest.fixture
def store(tmp_path: Path) -> Path:
    for name in ("a", "b"):
        copied(tmp_path / "runs" / f"{name}.duckdb")
    return tmp_path / "runs"


def test_tidy_lists_without_changing_and_then_moves(cli, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no retention is configured" in cli("tidy", "--dry-run").stdout
    monkeypatch.setenv("ULPSCOPE_RETENTION_RUNS", "1")
    listed = json.loads(cli("tidy", "--dry-run", "--json").stdout)["due"]
    assert [run["run_id"] for run in listed] == ["a"]
    assert "1 runs are newer, and 1 are kept" in cli("tidy", "--dry-run").stdout
    assert len(list(store.glob("*.duckdb"))) == 2
    assert json.loads(cli("tidy", "--json").stdout) == {"moved": ["a"]}
    assert "nothing is due" in cli("tidy").stdout
    assert [path.name for path in store.glob("*.duckdb")] == ["b.duckdb"]


def test_a_label_pins_tags_and_keeps_what_it_is_not_asked_to_change(cli, store: Path) -> None:
    assert cli("label", "a", "--tag", "golden", "--tag", "old", "--note", "why", "--pin").returncode == 0
    assert labels.read(store, "a") == labels.Labels(("golden", "old"), "why", True)
    said = json.loads(cli("label", "a", "--remove-tag", "old", "--json").stdout)
    assert said == {"run_id": "a", "tags": ["golden"], "note": "why", "pinned": True}
    assert "not pinned" in cli("label", "a", "--unpin").stdout
    assert cli("label", "none").returncode == 2
    assert [event["what"] for event in audit.read(store, 9)] == ["label"] * 3


@pytest.mark.slow
def test_adopt_prints_the_new_run_or_a_sentence(cli, store: Path, tmp_path: Path) -> None:
    path = copied(tmp_path / "outside" / "theirs.duckdb")
    done = cli("adopt", path, "--name", "mine", "--json")
    run_id = json.loads(done.stdout)["run_id"]
    assert "mine" in cli("list").stdout
    assert run_id.endswith(tuple("0123456789abcdef"))
    damaged(path, "CREATE MACRO f(x) AS x")
    refused = cli("adopt", path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.strip() == "error: theirs.duckdb: holds the macro 'f', and a run file has none; nothing was taken in."
