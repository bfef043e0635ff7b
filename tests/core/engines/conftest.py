"""Engines are ended after each module, and their files lie in a cache of the tests' own."""

import sys

import pytest

from core.engines import registry
from tests.core.inference.sameness import on_cpu
from tests.places import MODEL


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """GGUFs are written here, once for all tests of a worker."""
    monkeypatch.setenv("ULPSCOPE_CACHE", str(tmp_path_factory.getbasetemp() / "engine_cache"))


@pytest.fixture(autouse=True, scope="module")
def ended():
    """Let no engine outlive its tests."""
    yield
    registry.end_all()


@pytest.fixture(scope="module")
def loaded():
    """The small model in float32."""

    return on_cpu(MODEL)


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Write modules that an interpreter of this test alone finds, and have an engine run by it:
    what it can do is remembered under its path.
    """
    place = tmp_path / "packages"
    place.mkdir()
    python = place / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{place}:$PYTHONPATH" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)

    def write(files, engine):
        monkeypatch.setenv(registry.VARIABLE + engine.upper(), str(python))
        for name, text in files.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(text)

    yield write
    registry.end_all()
