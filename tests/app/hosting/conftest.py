"""A store of its own for every test, and no configuration but the test's."""

import os

import pytest


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    for name in list(os.environ):
        if name.startswith(("ULPSCOPE_SIGN_IN_", "ULPSCOPE_HOSTING_", "ULPSCOPE_CONFIG")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("ULPSCOPE_STORE", str(tmp_path / "runs"))
    return tmp_path / "runs"
