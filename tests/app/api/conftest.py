from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from app.routes import ROUTES
from app.shell import store_changes
from app.shell.jobs import Jobs, _Task
from core.errors import UlpscopeError
from core.judging.ingest import ingest
from core.runs.importing import import_run, is_run_file
from core.runs.store.store import Store


@pytest.fixture
def store(bare_store: Store) -> Path:
    return bare_store.directory


def run_here(self: Jobs, task: _Task) -> None:
    """A job that takes in a file, in this process: starting one of its own takes two seconds."""
    _, *rest = task.job.arguments
    options = dict(part[2:].split("=", 1) for part in rest if part.startswith("--"))
    options_given = {key.replace("-", "_"): value for key, value in options.items()}
    paths = [Path(part) for part in rest if not part.startswith("--")]
    steps: list[tuple[int, int]] = []
    try:
        if is_run_file(paths[0]):
            run_id = import_run(
                self.store,
                paths[0],
                run_id=options_given["run_id"],
                name=options_given.get("name"),
                on_progress=lambda *rows: steps.append(rows),
            )
        else:
            run_id = ingest(self.store, paths, **options_given, on_progress=lambda *rows: steps.append(rows))
    except UlpscopeError as error:
        self._change(task, state="failed", message=str(error))
    else:
        done, total = steps[-1]
        self._change(task, state="done", stage="done", rows_done=done, rows_total=total, run_id=run_id)


@pytest.fixture
def client(real_client: TestClient, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    """Ingests run in this process."""
    monkeypatch.setattr(Jobs, "_run", run_here)
    return real_client


@pytest.fixture
def real_client(store: Path) -> Iterator[TestClient]:
    store_changes.jobs.cache_clear()
    with TestClient(Starlette(routes=ROUTES)) as client:
        yield client
    store_changes.jobs().stop()
    store_changes.jobs.cache_clear()
