"""A store of its own for every test, and no configuration but the test's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app.hosting.serving import EDITOR, VIEWER, forget, set_up


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name in list(os.environ):
        if name.startswith(("ULPSCOPE_SIGN_IN_", "ULPSCOPE_HOSTING_", "ULPSCOPE_CONFIG")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("ULPSCOPE_STORE", str(tmp_path / "runs"))
    forget()
    yield tmp_path / "runs"
    forget()


@pytest.fixture
def passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signing in by one of two shared passwords."""
    set_up(monkeypatch, sign_in_editor_password=EDITOR, sign_in_viewer_password=VIEWER)
