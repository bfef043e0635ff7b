"""Files that are damaged or gone while they are viewed: the other runs stay."""

import os
from pathlib import Path

import pytest

from core.runs.store.store import Store
from tests.app.opening import open_page, page_text
from tests.core.runs.made_runs import copied, opened


@pytest.fixture
def store(tmp_path, monkeypatch):
    """The dashboard's own, with two runs."""
    monkeypatch.setenv("ULPSCOPE_STORE", str(tmp_path / "runs"))
    made_here = Store(tmp_path / "runs")
    for run_id in ("mine", "other"):
        copied(made_here.directory / f"{run_id}.duckdb")
    return made_here


def _truncate(path):
    os.truncate(path, path.stat().st_size // 2)


def _scribble(path):
    with path.open("r+b") as file:
        # behind the three headers of a DuckDB file, into each block of a small one
        for start in range(3 * 4096, path.stat().st_size, 16384):
            file.seek(start + 100)
            file.write(os.urandom(64))


def _empty(path):
    path.write_bytes(b"")


FATES = {
    "gone": Path.unlink,
    "truncated": _truncate,
    "scribbled over": _scribble,
    "emptied": _empty,
}


@pytest.mark.spread(2)
@pytest.mark.parametrize("page", ["overview", "near_ties"])
@pytest.mark.parametrize("fate", FATES)
def test_a_run_lost_while_it_is_viewed_is_a_sentence_and_the_others_stay(
    fate,
    page,
    store,
):
    app = open_page(page, run="mine", position="1")
    FATES[fate](store.directory / "mine.duckdb")
    os.utime(store.directory)  # a changed file has another time than the one that was opened
    app.run()
    assert not app.exception
    assert "mine" in page_text(app)
    with opened(store, "other") as other:
        assert other.read_rows(1, 0, other.header.rows).any()
