"""What the server does by itself, and what it does when its disk is full."""

from __future__ import annotations

import hashlib
import io
import os
import time
from pathlib import Path

import pytest
import streamlit as st
from starlette.applications import Starlette
from starlette.testclient import TestClient

from app.api import ingest
from app.shell import store_cache
from app.uploads import maintenance
from core.errors import LimitError
from tests.core.runs.made_runs import copied
from tests.waiting import throughout, until


def test_it_runs_while_the_server_does_and_no_longer(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[float] = []
    monkeypatch.setattr(maintenance, "EVERY_SECONDS", 0.05)
    monkeypatch.setattr(maintenance, "expire_uploads", lambda: told.append(time.monotonic()))
    left = store / ".partial-incoming-of-a-killed-server"
    left.mkdir(parents=True)
    with TestClient(Starlette(lifespan=maintenance.lifespan)):
        assert not left.exists()
        until(lambda: len(told) >= 3)
    count = len(told)
    throughout(0.2, lambda: len(told) == count)


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


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux's disk that is always full")
def test_a_full_disk_is_507_and_a_sentence() -> None:
    full = io.FileIO("/dev/full", "w")
    with pytest.raises(LimitError, match="disk is full") as refused:
        ingest._write(full, hashlib.sha256(), b"x" * 10)
    assert refused.value.status == 507
