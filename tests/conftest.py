"""The mark `spread(n)`.

spread: `make test` runs n cases of a test with many, first and last included, `make thorough` the
others. Products of cases, and cases chosen by name, are in covering.py.
"""

import os
from collections import defaultdict
from pathlib import Path

import pytest

from core.runs import new_run
from core.runs.file.database import Database

# Pages, commands and servers under test see these as the sample runs (tests/runs/README.md).
os.environ["ULPSCOPE_SAMPLES"] = str(Path(__file__).parent / "runs")


def spread(cases, count):
    """Numbers of `kept` of so many cases, evenly spaced: the same ones on every machine."""
    if count >= cases:
        return set(range(cases))
    return {round(i * (cases - 1) / max(count - 1, 1)) for i in range(count)}


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items):
    cases = defaultdict(list)
    for item in items:
        mark = item.get_closest_marker("spread")
        if mark is not None and item.get_closest_marker("thorough") is None:
            cases[item.path, item.nodeid.split("[")[0], *mark.args].append(item)
    for (_, _, kept_cases), those in cases.items():
        numbers = spread(len(those), kept_cases)
        for number, item in enumerate(those):
            if number not in numbers:
                item.add_marker(pytest.mark.thorough)


@pytest.fixture(scope="session", autouse=True)
def tables_are_described_once(tmp_path_factory):
    """The tables of run files are made once, by the function itself, and copied into the run files
    of this process: nearly all of the tenth of a second that a new run file takes goes to the
    comments on its columns.
    """
    path = tmp_path_factory.mktemp("tables") / "described.duckdb"
    make = new_run.create_tables
    made = Database.to_write(path, expected_bytes=0)
    make(made)
    made.close()

    def copy(database):
        database.execute(f"ATTACH '{path}' AS described (READ_ONLY)")
        database.execute("COPY FROM DATABASE described TO run_file (SCHEMA)")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(new_run, "create_tables", copy)
        yield
