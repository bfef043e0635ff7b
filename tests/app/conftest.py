"""Page tests share one process: what the pages cached is let go of at the end, open run files among
it.
"""

import gc
import sys
from functools import cache, partial
from pathlib import Path

import pytest
import streamlit as st
from starlette.applications import Starlette
from starlette.testclient import TestClient

from app.routes import ROUTES
from app.shell import store_changes
from app.shell.jobs import Job, Jobs
from core.capture_request import CaptureRequest
from core.errors import UlpscopeError
from core.judging.ingest import ingest
from core.runs.importing import import_run, is_run_file
from core.runs.store.store import Store


@pytest.fixture(scope="session", autouse=True)
def emptied_caches():
    yield
    st.cache_resource.clear()
    gc.collect()


@pytest.fixture(autouse=True)
def main_stays(monkeypatch):
    # a script of AppTest takes its place, and processes that later tests spawn would run it
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """The directory of a store that `build(store, *about)` has filled: once, for all tests that
    only read it.
    """

    @cache
    def directory_of(build, *about):
        store = Store(tmp_path_factory.mktemp("built") / "runs")
        build(store, *about)
        return store.directory

    return directory_of


@pytest.fixture
def own_store(tmp_path, monkeypatch):
    """An empty store, which the pages of this test show with the samples."""
    monkeypatch.setenv("ULPSCOPE_STORE", str(tmp_path / "runs"))
    return Store(tmp_path / "runs")


@pytest.fixture
def bare_store(own_store, monkeypatch):
    """An empty store without samples."""
    monkeypatch.setenv("ULPSCOPE_SAMPLES", "")
    return own_store


@pytest.fixture
def store(bare_store):
    """The directory of an empty store without samples."""
    return bare_store.directory


@pytest.fixture
def own_jobs(own_store):
    """An empty store whose list of jobs is this test's own."""
    store_changes.jobs.cache_clear()
    yield own_store
    store_changes.jobs().stop()
    store_changes.jobs.cache_clear()


@pytest.fixture
def imports_here(own_jobs, monkeypatch):
    """The same; files are imported in this process: starting one of its own takes two seconds."""

    def run_here(self, task):
        _, *rest = task.job.arguments
        pairs = [part[2:].partition("=") for part in rest if part.startswith("--")]
        options = {"name": None, **{key.replace("-", "_"): value for key, _, value in pairs}}
        if "exact" in options:
            options["exact"] = Path(options["exact"])
        paths = [Path(part) for part in rest if not part.startswith("--")]
        if is_run_file(paths[0]):
            make = partial(import_run, self.store, paths[0])
        else:
            make = partial(ingest, self.store, paths)
        steps = []
        try:
            run_id = make(**options, on_progress=lambda *rows: steps.append(rows))
        except UlpscopeError as error:
            self._change(task, state="failed", message=str(error))
        else:
            self._change(
                task,
                state="done",
                rows_done=steps[-1][1],
                rows_total=steps[-1][2],
                run_id=run_id,
            )

    monkeypatch.setattr(Jobs, "_run", run_here)
    return own_jobs


@pytest.fixture
def client(store, imports_here):
    """A client of the HTTP routes."""
    with TestClient(Starlette(routes=ROUTES)) as client:
        yield client


@pytest.fixture
def submitted(monkeypatch):
    """Requested jobs, as `job` and their options; none of them is started."""
    jobs = []

    def submit(self, work, **about):
        arguments = work.arguments() if isinstance(work, CaptureRequest) else work
        job = Job(
            len(jobs) + 1,
            about["title"],
            about["device"],
            tuple(arguments),
            state="running",
            stage="starting",
        )
        jobs.append({"job": job, "arguments": list(arguments), **about})
        return job

    monkeypatch.setattr(Jobs, "submit", submit)
    monkeypatch.setattr(
        Jobs,
        "all",
        lambda self, kind="capture": [each["job"] for each in reversed(jobs)],
    )
    return jobs
