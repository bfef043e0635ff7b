"""A stored run with another verdict: a new run of the same bits, for runs never change."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np

from ..errors import StoreError
from .file.database import Database
from .file.evidence import Verdict
from .reader import RunReader
from .store.store import Store
from .tables.pairs import delete_evidence, insert_evidence, update_verdict
from .tables.schema import check_tables


class Revision:
    """`with Revision(store, run, name) as revision:` the id it will have is known at once; `finish` puts it in place,
    leaving does not.

    The new run holds the old one's sides, figures and tokens bit for bit, and verdicts of its own.
    """

    def __init__(self, store: Store, run: RunReader, name: str) -> None:
        self._store, self._run, self._name = store, run, name
        self._created = datetime.now(UTC)
        store.sweep()
        store.check_space(run.path.stat().st_size)
        self._partial = store.new_partial(name, self._created)
        self.run_id = self._partial.path.stem

    def __enter__(self) -> Revision:
        return self

    def __exit__(self, *_: object) -> None:
        self._partial.remove()

    def finish(self, verdicts: Sequence[Verdict], note: str) -> str:
        """Write the verdicts, put the run in its place, return its id. `note` is added to the run's own."""
        path = self._partial.path
        try:
            shutil.copyfile(self._run.path, path)
        except OSError as error:
            what = f"run '{self._run.run_id}' cannot be copied ({error.strerror}); nothing was changed"
            raise StoreError(f"{what}. It takes as much disk again.") from error
        with Database.to_change(path) as database:
            self._write(database, verdicts, note)
        self._store.place(path, self.run_id)
        return self.run_id

    def _write(self, database: Database, verdicts: Sequence[Verdict], note: str) -> None:
        about = self._run.header.provenance
        places = np.array(self._run.header.places(), np.int32)
        created = self._created.replace(tzinfo=None)
        notes = " ".join(part for part in (about.note, note) if part)
        check_tables(database)
        database.execute("BEGIN")
        database.execute(
            "UPDATE run SET run_id = ?, name = ?, created = ?, note = ?", [self.run_id, self._name, created, notes]
        )
        for verdict in verdicts:
            delete_evidence(database, verdict.pair)
            update_verdict(database, verdict)
            insert_evidence(database, verdict.pair, places, verdict.evidence, verdict.floors)
        database.execute("COMMIT")
