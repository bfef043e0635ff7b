"""The marks `spread(n)` and `slow`.

spread: `make test` runs n cases of a test with many, first and last included, `make thorough` the others. Products of
cases, and cases chosen by name, are in covering.py.

slow: left out of `make quick`, which has a minute. slow.txt lists the functions whose cases took SLOW_SECONDS together
when `make slow.txt` was last run; a test that it does not know is quick.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.runs import ops_run, writer
from core.runs.file.database import Database
from tests import said

# Pages, commands and servers under test see these as the sample runs (tests/runs/README.md).
os.environ["ULPSCOPE_SAMPLES"] = str(Path(__file__).parent / "runs")

SLOW, SLOW_SECONDS = Path(__file__).with_name("slow.txt"), 0.15
_seconds: dict[str, float] = defaultdict(float)  # by function, its cases together


def spread(cases: int, kept: int) -> set[int]:
    """Numbers of `kept` of so many cases, evenly apart: the same ones on every machine."""
    if kept >= cases:
        return set(range(cases))
    return {round(i * (cases - 1) / max(kept - 1, 1)) for i in range(kept)}


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    cases: dict[tuple, list[pytest.Item]] = defaultdict(list)
    slow = set(SLOW.read_text(encoding="utf-8").splitlines())
    for item in items:
        if _function(item.nodeid) in slow:
            item.add_marker(pytest.mark.slow)
        mark = item.get_closest_marker("spread")
        if mark is not None and item.get_closest_marker("thorough") is None:
            cases[item.path, item.nodeid.split("[")[0], *mark.args].append(item)
    for (_, _, kept_cases), those in cases.items():
        kept = spread(len(those), kept_cases)
        for number, item in enumerate(those):
            if number not in kept:
                item.add_marker(pytest.mark.thorough)


def _function(nodeid: str) -> str:
    return nodeid.split("[")[0]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when != "teardown":
        _seconds[_function(report.nodeid)] += report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Rewrite slow.txt, where ULPSCOPE_SLOW asks for it, for the functions that ran; the others stay as listed. Under
    xdist the controller does, which has the reports of all workers.
    """
    if os.environ.get("ULPSCOPE_SLOW") == "rewrite" and not hasattr(session.config, "workerinput"):
        before = set(SLOW.read_text(encoding="utf-8").splitlines())
        slow = {function for function, seconds in _seconds.items() if seconds >= SLOW_SECONDS}
        SLOW.write_text("".join(f"{name}\n" for name in sorted(before - _seconds.keys() | slow)), encoding="utf-8")


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """A sentence of sentences.toml that is not said any more is shown beside what is."""
    return said.explained(op, left, right)


@pytest.fixture(scope="session", autouse=True)
def tables_are_described_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The tables of run files are made once, by the function itself, and copied into the run files of this process:
    nearly all of the tenth of a second that a new run file takes goes to the comments on its columns.
    """
    described = tmp_path_factory.mktemp("tables") / "described.duckdb"
    make = writer.create_tables
    made = Database.to_write(described, expected_bytes=0)
    make(made)
    made.close()

    def copy(database: Database) -> None:
        database.execute(f"ATTACH '{described}' AS described (READ_ONLY)")
        database.execute("COPY FROM DATABASE described TO run_file (SCHEMA)")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(writer, "create_tables", copy)
        patched.setattr(ops_run, "create_tables", copy)
        yield
