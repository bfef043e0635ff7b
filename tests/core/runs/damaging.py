"""Run files whose rows somebody else wrote."""

from __future__ import annotations

from pathlib import Path

import duckdb


def damaged(path: Path, *statements: str) -> None:
    path.chmod(0o644)
    with duckdb.connect(str(path)) as database:
        for statement in statements:
            database.execute(statement)
