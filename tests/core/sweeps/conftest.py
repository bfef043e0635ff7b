"""Plans as files, and the stand-in for the worker that runs models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from core.runs.store.store import Store
from core.sweeps import workers


@pytest.fixture
def store(tmp_path: Path) -> Store:
    (tmp_path / "store").mkdir()
    return Store(tmp_path / "store")


@pytest.fixture
def plan_file(tmp_path: Path):
    """Write a plan, with its prompts beside it, and return its path."""

    def write(folder: str = "plan", prompt: str = "def f():", **keys: object) -> Path:
        place = tmp_path / folder
        place.mkdir(exist_ok=True)
        (place / "a.txt").write_text(prompt)
        (place / "b.jsonl").write_text('{"text": "one"}\n{"token_ids": [1, 2]}\n')
        said = {"models": ["m"], "prompts": ["a.txt"], "paths": ["decode"], **keys}
        excluded = said.pop("exclude", [])
        lines = [f"{key} = {json.dumps(value)}" for key, value in said.items()]
        for one in excluded:
            lines += ["[[exclude]]", *(f"{axis} = {json.dumps(value)}" for axis, value in one.items())]
        (place / "sweep.toml").write_text("\n".join(lines))
        return place / "sweep.toml"

    return write


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are the stand-in's."""
    monkeypatch.setattr(workers, "PACKAGE", "tests.core.sweeps.stand_in")
