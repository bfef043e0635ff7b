"""Page tests share one process: what the pages cached is let go of at the end, open run files among it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import streamlit as st

from app.shell.jobs import Job, Jobs
from core.runs.store.store import Store


@pytest.fixture(scope="session", autouse=True)
def emptied_caches() -> Iterator[None]:
    yield
    st.cache_resource.clear()
    gc.collect()


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The directory of a store that `build(store, *about)` has filled: once, for all tests that only read it."""

    @cache
    def directory_of(build: Callable[..., object], *about: object) -> Path:
        store = Store(tmp_path_factory.mktemp("built") / "runs")
        build(store, *about)
        return store.directory

    return directory_of


@pytest.fixture
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """An empty store, which the pages of this test show with the samples."""
    monkeypatch.setenv("ULPSCOPE_STORE", str(tmp_path / "runs"))
    return Store(tmp_path / "runs")


@pytest.fixture
def bare_store(own_store: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    """An empty store without samples."""
    monkeypatch.setenv("ULPSCOPE_SAMPLES", "")
    return own_store


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Requested jobs, as `job` and their options; none of them is started."""
    jobs: list[dict[str, Any]] = []

    def submit(self: Jobs, arguments: Any, **about: Any) -> Job:
        job = Job(len(jobs) + 1, about["title"], about["device"], tuple(arguments), state="running", stage="starting")
        jobs.append({"job": job, "arguments": list(arguments), **about})
        return job

    monkeypatch.setattr(Jobs, "submit", submit)
    monkeypatch.setattr(Jobs, "all", lambda self, kind="capture": [each["job"] for each in reversed(jobs)])
    return jobs
