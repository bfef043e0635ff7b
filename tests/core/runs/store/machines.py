"""Machines that share one store of objects, and the small runs that they put there."""

import shutil
import uuid

from core.runs.store import objects
from core.runs.store.cards import list_runs
from core.runs.store.store import open_store
from tests.core.runs.made_runs import copied
from tests.core.runs.store import s3_server
from tests.places import RUNS


def machines_of(request, tmp_path, monkeypatch):
    """Open one empty store on S3 as a machine of that name sees it, with a cache of its own and
    lists that are never old.
    """
    s3_server.set_environment(monkeypatch, request.getfixturevalue("server")[0])
    url = f"s3://{s3_server.BUCKET}/{uuid.uuid4().hex}/runs"
    monkeypatch.setattr(objects, "LIST_SECONDS", 0.0)
    monkeypatch.setenv("ULPSCOPE_SAMPLES", "")

    def open_machine(name):
        monkeypatch.setenv("ULPSCOPE_CACHE", str(tmp_path / name))
        return open_store(url)

    return open_machine


def place_run(store, run_id, source=None):
    """Put a small run there, or a copy of a sample run; its bytes."""
    path = copied(store.directory / f".partial-{run_id}" / f"{run_id}.duckdb")
    if source is not None:
        shutil.copyfile(RUNS / f"{source}.duckdb", path)
    body = path.read_bytes()
    store.place(path, run_id)
    return body


def ids(store):
    """Ids of the runs that a store lists, all of which can be read."""
    cards, unreadable = list_runs(store)
    assert unreadable == []
    return sorted(card.run_id for card in cards)
