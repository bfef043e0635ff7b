"""Page tests share one process: what the pages cached is let go of at the end, open run files among it."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import streamlit as st

from app.hosting import live_settings


@pytest.fixture(scope="session", autouse=True)
def emptied_caches() -> Iterator[None]:
    yield
    st.cache_resource.clear()
    gc.collect()


@pytest.fixture(autouse=True)
def own_configuration(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process keeps the last configuration that holds, and one with a sign-in above all: every test is a process of
    its own.
    """
    live_settings.forget()
    monkeypatch.setattr(live_settings, "_FRESH_SECONDS", 0.0)
    yield
    live_settings.forget()
