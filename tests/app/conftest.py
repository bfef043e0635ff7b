"""Page tests share one process: what the pages cached is let go of at the end, open run files among it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import streamlit as st

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
    """An empty store, which the pages of this test show beside the samples."""
    monkeypatch.setenv("ULPSCOPE_STORE", str(tmp_path / "runs"))
    return Store(tmp_path / "runs")
