"""`label`, `delete` and `ingest` of a run file on the command line."""

import pytest

from core.runs.store import labels
from core.runs.store.store import Store
from tests.core.runs.damaging import damaged
from tests.core.runs.made_runs import copied


@pytest.fixture
def store(tmp_path):
    for name in ("a", "b"):
        copied(tmp_path / "runs" / f"{name}.duckdb")
    return tmp_path / "runs"


def test_a_label_pins_tags_and_keeps_what_it_is_not_asked_to_change(cli, store):
    assert (
        cli("label", "a", "--tag", "golden", "--tag", "old", "--note", "why", "--pin").returncode
        == 0
    )
    assert Store(store).labels("a") == labels.Labels(("golden", "old"), "why", True)
    said = cli("label", "a", "--remove-tag", "old", "--name", "x", "--json").json
    assert said == {
        "run_id": "a",
        "tags": ["golden"],
        "note": "why",
        "pinned": True,
        "judged_as": "",
        "name": "x",
    }
    assert cli("label", "a", "--unpin").returncode == 0
    assert not Store(store).labels("a").pinned
    assert cli("label", "none").returncode == 2


def test_a_sample_run_among_those_to_delete_leaves_all(cli, store, tmp_path, monkeypatch):
    copied(tmp_path / "samples" / "sample.duckdb")
    monkeypatch.setenv("ULPSCOPE_SAMPLES", str(tmp_path / "samples"))
    refusal = cli("delete", "a", "sample", "b").refusal
    assert "read-only sample run; nothing was deleted" in refusal
    assert len(list(store.glob("*.duckdb"))) == 2


@pytest.mark.thorough
def test_ingest_of_a_run_file_prints_the_new_run_or_a_sentence(cli, store, tmp_path):
    path = copied(tmp_path / "outside" / "theirs.duckdb")
    assert cli("ingest", path, "--name", "mine").returncode == 0
    assert "mine" in cli("list").stdout
    damaged(path, "CREATE MACRO f(x) AS x")
    assert cli("ingest", path, "--reference", "a").returncode == 2
    assert "theirs.duckdb: holds the macro 'f'" in cli("ingest", path).refusal
