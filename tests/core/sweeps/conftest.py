"""Plans as files, and stores to compute them into."""

import json

import pytest

from core.runs.store.store import Store
from core.sweeps.plan import read_plan


@pytest.fixture
def store(tmp_path):
    (tmp_path / "store").mkdir()
    return Store(tmp_path / "store")


@pytest.fixture
def plan_file(tmp_path):
    """Write a plan and its prompts, and return its path."""

    def write(folder="plan", prompt="def f():", **keys):
        place = tmp_path / folder
        place.mkdir(exist_ok=True)
        (place / "a.txt").write_text(prompt)
        (place / "b.jsonl").write_text('{"text": "one"}\n{"token_ids": [1, 2]}\n')
        lists = {"models": ["m"], "prompts": ["a.txt"], "paths": ["decode"], **keys}
        excluded = lists.pop("exclude", [])
        lines = [f"{key} = {json.dumps(value)}" for key, value in lists.items()]
        for one in excluded:
            lines += [
                "[[exclude]]",
                *(f"{axis} = {json.dumps(value)}" for axis, value in one.items()),
            ]
        (place / "sweep.toml").write_text("\n".join(lines))
        return place / "sweep.toml"

    return write


@pytest.fixture
def cells_of(plan_file):
    return lambda *paths, **keys: read_plan(plan_file(paths=list(paths), **keys)).cells
