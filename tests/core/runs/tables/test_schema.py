"""A file of another form is refused with what to do."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from core.errors import StoreError
from core.runs.reader import RunReader
from tests.core.runs.made_runs import copied


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE run SET file_version = 4", "version 4; this ULPscope reads version 7"),
        ("ALTER TABLE run DROP COLUMN file_version", "version None; this ULPscope reads"),
        ("ALTER TABLE position DROP COLUMN kl", "its table 'position' has 23 columns; expected 24"),
        ("DROP TABLE kv", "without the table 'kv'"),
    ],
)
def test_a_file_of_another_form_is_refused(statement: str, words: str, tmp_path: Path) -> None:
    path = copied(tmp_path / "run.duckdb")
    RunReader(path).close()
    with duckdb.connect(str(path)) as shell:
        shell.execute(statement)
    with pytest.raises(StoreError, match=words):
        RunReader(path)
