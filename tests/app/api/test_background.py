"""What the server does by itself, and what it does when its disk is full."""

from __future__ import annotations

import hashlib
import io
import time
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from app.api import background, taking
from core.configuration import Limits
from core.errors import LimitError
from core.runs.store import Store
from tests.core.runs.made_runs import copied


def test_retention_is_applied_as_it_is_configured_at_that_moment(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        copied(store / f"{name}.duckdb")
        time.sleep(0.01)
    assert background.tidy() == []
    monkeypatch.setenv("ULPSCOPE_RETENTION_RUNS", "1")
    assert background.tidy() == ["a"]
    monkeypatch.setenv("ULPSCOPE_RETENTION_RUNS", "nonsense")
    assert background.tidy() == []  # a line in the log, and the server goes on


def test_it_runs_while_the_server_does_and_no_longer(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[float] = []
    monkeypatch.setattr(background, "_FIRST_SECONDS", 0.0)
    monkeypatch.setattr(background, "EVERY_SECONDS", 0.05)
    monkeypatch.setattr(background, "tidy", lambda: told.append(time.monotonic()))
    left = store / ".partial-incoming-of-a-killed-server"
    left.mkdir(parents=True)
    with TestClient(Starlette(lifespan=background.lifespan)):
        assert not left.exists()
        deadline = time.monotonic() + 10
        while len(told) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
    count = len(told)
    assert count >= 3
    time.sleep(0.2)
    assert len(told) == count


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux's disk that is always full")
def test_a_full_disk_is_507_and_a_sentence(store: Path) -> None:
    full = io.FileIO("/dev/full", "w")
    with pytest.raises(LimitError, match="disk is full; nothing was stored") as refused:
        taking._write(full, hashlib.sha256(), b"x" * 10, Store(store), Limits(free_bytes=0))
    assert refused.value.status == 507
