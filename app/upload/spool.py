"""Uploads on disk: `STORE/.uploads/KEY/` holds what arrived of one file and a record of its
state.
"""

import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, get_args

import msgspec
from msgspec.structs import replace

from app.api.responses import RefusedError
from core.disk import lock, write_atomic
from core.errors import StoreError
from core.runs.store.store import Store
from core.text import file_name

FOLDER = ".uploads"
KEPT_SECONDS = 86_400.0  # an upload that is neither continued nor imported
State = Literal["receiving", "received", "importing", "done", "failed"]
RECEIVING, RECEIVED, IMPORTING, DONE, FAILED = get_args(State)
_RECORD, _DATA, _LOCK = "record.json", "data", "lock"


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """State of an upload. file: the sender's name, made safe; total: bytes, -1 while unknown; run:
    name of the run.
    """

    file: str
    total: int
    state: State = RECEIVING
    run: str = ""
    run_id: str = ""
    message: str = ""


class Upload:
    """One file on its way in, known by the id that its sender chose."""

    def __init__(self, store: Store, upload_id: str) -> None:
        self.upload_id = upload_id
        key = hashlib.sha256(upload_id.encode(errors="replace")).hexdigest()[:32]
        self.directory = store.directory / FOLDER / key

    def record(self, *, is_held: bool = False) -> Record | None:
        """Return the record, None if there is none. An import that a killed server began never
        happened.

        is_held: the caller holds the lock, so no import runs.
        """
        record = self.read()
        if record is None:
            return None
        if record.state == IMPORTING:
            if not is_held:
                try:
                    with self.hold():
                        return self.record(is_held=True)
                except RefusedError:
                    return record
            record = replace(record, state=RECEIVING, run_id="")
        if record.state == RECEIVING and self.received_bytes() == record.total:
            # No counter can disagree with the size of the file.
            record = replace(record, state=RECEIVED)
        return record

    def read(self) -> Record | None:
        """Return the record as it was written."""
        try:
            return msgspec.json.decode((self.directory / _RECORD).read_bytes(), type=Record)
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError) as error:
            raise StoreError(
                f"{self.directory / _RECORD}: cannot be read ({error}). Remove its folder.",
            ) from None

    def write(self, record: Record) -> None:
        write_atomic(self.directory / _RECORD, msgspec.json.encode(record), mode=0o600)

    def begin(self, name: str, total: int) -> Record:
        """Make an upload of no bytes."""
        record = Record(file_name(name, 200) or "dump", total)
        (self.directory / _DATA).mkdir(mode=0o700, parents=True, exist_ok=True)
        self.write(record)
        return record

    def path(self, record: Record) -> Path:
        """Path of the file. It has the sender's name, which becomes the name of a side."""
        return self.directory / _DATA / record.file

    def received_bytes(self) -> int:
        """Bytes that arrived: the size of the file, so a killed server loses none of them."""
        return sum(path.stat().st_size for path in self.directory.glob(f"{_DATA}/*"))

    def remove(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the upload against other requests and processes; RefusedError (409) if another one
        holds it.
        """
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            descriptor = lock(self.directory / _LOCK, wait=False)
        except BlockingIOError:
            raise RefusedError(
                "Another request sends or imports this upload; try again.",
                409,
            ) from None
        try:
            yield
        finally:
            os.close(descriptor)


def purge(store: Store) -> None:
    """Remove uploads to which nothing was written for a day."""
    for directory in (store.directory / FOLDER).glob("*"):
        with suppress(OSError, BlockingIOError):
            newest = max(path.stat().st_mtime for path in (directory, *directory.rglob("*")))
            if newest < time.time() - KEPT_SECONDS:
                os.close(lock(directory / _LOCK, wait=False))
                shutil.rmtree(directory, ignore_errors=True)
