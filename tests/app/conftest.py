"""Page tests share one process: what the pages cached is let go of at the end, open run files among it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import streamlit as st

from app.hosting import live_settings
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


@pytest.fixture(autouse=True)
def own_configuration(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process keeps the last configuration that holds, and one with a sign-in above all: every test is a process of
    its own.
    """
    live_settings.forget()
    monkeypatch.setattr(live_settings, "_FRESH_SECONDS", 0.0)
    yield
    live_settings.forget()
