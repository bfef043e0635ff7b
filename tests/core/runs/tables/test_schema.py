"""A column that may be null is one line: files without it, written before, are read and judged as if it were null."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from core.errors import StoreError
from core.runs.file.evidence import Verdict
from core.runs.importing import import_run
from core.runs.reader import RunReader
from core.runs.reports.report_json import report_of_run
from core.runs.revision import Revision
from core.runs.store.store import Store
from tests.core.runs.judged_runs import RERUN_FAILED
from tests.core.runs.made_runs import copied

OLDER = ("position DROP COLUMN kl", "evidence DROP COLUMN side_name", "pair DROP COLUMN because")


def test_columns_that_an_older_file_lacks_are_null(tmp_path: Path) -> None:
    store, path = Store(tmp_path), copied(tmp_path / "older.duckdb")
    with RunReader(path) as run:
        (whole,), _ = report_of_run(run)
    with duckdb.connect(str(path)) as shell:
        shell.execute("; ".join(f"ALTER TABLE {change}" for change in OLDER))
    with RunReader(path) as run:
        (report,), _ = report_of_run(run)
        assert report.rows == [row | {"kl": None} for row in whole.rows]
        assert run.positions(0)["kl"].isna().all()
        with Revision(store, run, "judged") as revision:
            judged = revision.finish([Verdict("nondeterministic", "why", (RERUN_FAILED,))], "")
    imported = import_run(store, path)
    for run_id, because in ((judged, "why"), (imported, None)):
        with RunReader(store.path_of(run_id)) as run:
            assert run.pairs[0].because == because
            assert [row.side for row in run.evidence(0)] == ([None] if because else [])
            assert run.positions(0)["kl"].isna().all()


def test_a_file_of_another_version_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = copied(tmp_path / "run.duckdb")
    with duckdb.connect(str(path)) as shell:
        shell.execute("UPDATE run SET file_version = 4")
    with pytest.raises(StoreError, match="version 4; this ULPscope reads version 7"):
        RunReader(path)
    with duckdb.connect(str(path)) as shell:  # as the first versions wrote it: columns are missing too
        shell.execute("ALTER TABLE run DROP COLUMN kept")
    with pytest.raises(StoreError, match="version 4; this ULPscope reads version 7"):
        RunReader(path)
