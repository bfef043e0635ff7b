"""A new run: its file is written aside and appears in the store when it is whole."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from .file.database import Database
from .store.store import Store
from .tables.schema import create_tables


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
