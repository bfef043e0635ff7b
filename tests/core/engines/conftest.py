"""Engines are ended after each module, and their files lie in a cache of the tests' own."""

from __future__ import annotations

import pytest

from core.engines import registry


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """GGUFs are written here, once for all tests of a worker."""
    monkeypatch.setenv("ULPSCOPE_CACHE", str(tmp_path_factory.getbasetemp() / "engine_cache"))


@pytest.fixture(autouse=True, scope="module")
def ended():
    """Let no engine outlive its tests."""
    yield
    registry.end_all()
