"""New runs, whose files are written aside and appear in the store when they are whole: from the
start, or a stored run once more with another name or verdict, for runs never change.
"""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from ..errors import StoreError, os_errors
from ..text import clean
from ..verdict import Verdict
from .file.database import Database
from .reader import RunReader
from .store.store import Store
from .tables.pairs import insert_evidence, update_verdict
from .tables.schema import check_tables, create_tables


@contextmanager
def new_run(
    store: Store,
    name: str,
    run_id: str | None = None,
    logits_bytes: int = 0,
    *,
    created: datetime | None = None,
    **options: int,
) -> Iterator[tuple[Database, datetime]]:
    """Open the database of a new run with empty tables; an error leaves nothing. Its path has the
    new id. options: of `Database.to_write`.
    """
    created = created or datetime.now(UTC)
    store.check_space(logits_bytes)
    with (
        store.new_file(name, created, run_id) as partial,
        Database.to_write(partial.path, expected_bytes=logits_bytes, **options) as database,
    ):
        database.execute("BEGIN")
        create_tables(database)
        database.execute("COMMIT")
        yield database, created


@contextmanager
def changed_copy(
    store: Store,
    path: Path,
    name: str,
    run_id: str | None = None,
) -> Iterator[Database]:
    """Yield a copy of a run file to be changed, which is a new run when the block ends.

    Its path has the new id.
    """
    store.check_space(path.stat().st_size)
    with store.new_file(name, datetime.now(UTC), run_id) as partial:
        what = f"{clean(path.name)}: cannot be copied"
        with os_errors(StoreError, what, "; nothing was changed"):
            shutil.copyfile(path, partial.path)
        with Database.to_change(partial.path) as database:
            yield database


def revise(store: Store, run: RunReader, name: str, verdicts: Sequence[Verdict], note: str) -> str:
    """Store a run once more with these verdicts, listed in its place; return the new run's id.
    note: added to its own.

    The new run holds the old one's sides, figures and tokens bit for bit.
    """
    places = np.array(run.header.places(), np.int32)
    with changed_copy(store, run.path, name) as database:
        run_id = database.path.stem
        check_tables(database)
        ((old_note,),) = database.rows("SELECT note FROM run")
        notes = " ".join(filter(None, (old_note, note)))
        database.execute("BEGIN")
        values = [run_id, name, datetime.now(UTC).replace(tzinfo=None), notes]
        database.execute("UPDATE run SET run_id = ?, name = ?, created = ?, note = ?", values)
        for verdict in verdicts:
            for table in ("evidence", "floor_position"):
                database.execute(f"DELETE FROM {table} WHERE pair = ?", [verdict.pair])
            update_verdict(database, verdict)
            insert_evidence(database, verdict.pair, places, verdict.evidence, verdict.floors)
        database.execute("COMMIT")
    store.mark_judged(run.run_id, run_id)
    return run_id
