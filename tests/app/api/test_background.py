"""What the server does at its start."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import streamlit as st
from starlette.applications import Starlette
from starlette.testclient import TestClient

from app.shell import store_cache
from app.uploads import maintenance
from tests.core.runs.made_runs import copied
from tests.waiting import until


def test_what_a_killed_server_left_is_removed_at_the_start(store: Path) -> None:
    partial, old, new = (store / name for name in (".partial-of-a-killed-server", ".uploads/old", ".uploads/new"))
    for folder in (partial, old, new):
        folder.mkdir(parents=True)
    os.utime(old, (1, 1))
    with TestClient(Starlette(lifespan=maintenance.lifespan)):
        assert [folder.exists() for folder in (partial, old, new)] == [False, False, True]


def test_what_the_first_page_reads_was_read_while_its_browser_loaded(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = copied(store / "a.duckdb")
    st.cache_resource.clear()
    maintenance.warm()
    monkeypatch.setattr(store_cache, "read_cards", lambda store, paths: pytest.fail(f"read again: {paths}"))
    monkeypatch.setattr(store_cache, "RunReader", lambda path: pytest.fail(f"opened again: {path}"))
    cards, _ = store_cache.cards()
    assert "a" in [card.run_id for card in cards]
    assert len(store_cache.positions(store_cache.open_run("a"), 0)) > 0
    os.utime(path)  # the planted fault: a file that has changed since
    with pytest.raises(pytest.fail.Exception, match="read again"):
        store_cache.cards()


def test_what_cannot_be_read_early_ends_no_server(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks() -> None:
        told.append("asked")
        raise RuntimeError("a library is broken")

    told: list[str] = []
    monkeypatch.setattr(store_cache, "cards", breaks)
    with TestClient(Starlette(lifespan=maintenance.lifespan)):
        until(lambda: told)
    assert told == ["asked"]
