"""The store: directories of run files. One run = one DuckDB file, written under a temporary name, renamed, then read-only.

The only module that imports duckdb: `Database` is the edge at which its exceptions become `StoreError`. Reading never locks; any
number of processes read while a writer adds runs, because a writer only ever touches a file that nobody else can see.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from core.errors import StoreError

SCHEMA_VERSION = 1
SUFFIX = ".duckdb"
_PARTIAL = ".partial-"
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,150}")
_SMALL_RUN = 32 << 20  # bytes of logits
_REQUIRED_TABLES = {"run", "prompt", "token", "vocabulary", "side", "logits", "side_position", "top_token", "pair", "position"} | {
    "ulp_histogram",
    "ulp_tile",
    "evidence",
}


class Database:
    """One open run file. A reader's queries may come from several threads (each uses a cursor); a writer belongs to one."""

    def __init__(self, path: Path, *, read_only: bool, expected_bytes: int = 0) -> None:
        """`expected_bytes` of logits, for a file to be written: small runs get small blocks, or ten empty tables cost 3 MB."""
        self.path = path
        config: dict[str, Any] = {"threads": 2, "memory_limit": "512MB", "autoinstall_known_extensions": False}
        with self._edge():
            if read_only:
                self._connection = duckdb.connect(str(path), read_only=True, config=config)
                self._ask = self._connection.cursor
                return
            self._connection = duckdb.connect(":memory:", config=config)
            block = 16384 if expected_bytes < _SMALL_RUN else 262144
            quoted = str(path).replace("'", "''")
            self._connection.execute(f"ATTACH '{quoted}' AS run_file (TYPE duckdb, ROW_GROUP_SIZE 2048, BLOCK_SIZE {block})")
            self._connection.execute("USE run_file")
            self._ask = lambda: self._connection  # a cursor would be another connection and not see the open transaction

    @contextmanager
    def _edge(self) -> Iterator[None]:
        try:
            yield
        except (duckdb.Error, UnicodeDecodeError) as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise StoreError(f"{self.path.name}: cannot be read or written as a run file ({reason}).") from error

    def table(self, sql: str, values: Sequence[Any] = ()) -> pa.Table:
        """The result of a query as an Arrow table."""
        with self._edge():
            return self._ask().sql(sql, params=list(values)).to_arrow_table()

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple]:
        with self._edge():
            return self._ask().execute(sql, list(values)).fetchall()

    def execute(self, sql: str, values: Sequence[Any] = ()) -> None:
        with self._edge():
            self._connection.execute(sql, list(values))

    def insert(self, name: str, table: pa.Table) -> None:
        """Append an Arrow table to the table of that name; its columns are matched by name."""
        columns = ", ".join(table.column_names)
        with self._edge():
            self._connection.register("arriving", table)
            self._connection.execute(f"INSERT INTO {name} ({columns}) SELECT {columns} FROM arriving")
            self._connection.unregister("arriving")

    def check_schema(self) -> None:
        """Refuse a DuckDB file that is not a run file of this schema; views are no substitute for its tables."""
        found = {row[0] for row in self.rows("SELECT table_name FROM duckdb_tables() WHERE NOT internal")}
        missing = sorted(_REQUIRED_TABLES - found)
        if missing:
            raise StoreError(f"{self.path.name}: a DuckDB file without the table '{missing[0]}', so not a run file.")
        versions = self.rows("SELECT schema_version FROM run")
        if len(versions) != 1 or versions[0][0] != SCHEMA_VERSION:
            seen = versions[0][0] if len(versions) == 1 else f"{len(versions)} rows of provenance"
            raise StoreError(f"{self.path.name}: schema version {seen}, this ULPscope reads version {SCHEMA_VERSION}.")

    def close(self) -> None:
        """Write everything out and let go of the file."""
        with self._edge():
            self._connection.execute("USE memory")
            self._connection.execute("DETACH run_file")
            self._connection.close()

    def abandon(self) -> None:
        """Let go of the file whatever state it is in."""
        try:
            self._connection.close()
        except duckdb.Error:
            return


def each_database(paths: Iterable[Path]) -> Iterator[tuple[Path, Database | StoreError]]:
    """Open run files one after another, read-only; a file that cannot be read yields its error and harms no other."""
    for path in paths:
        try:
            database = Database(path, read_only=True)
        except StoreError as error:
            yield path, error
            continue
        try:
            database.check_schema()
            yield path, database
        except StoreError as error:
            yield path, error
        finally:
            database.abandon()


class Store:
    """A directory that runs are written to, and directories that are only read (sample runs)."""

    def __init__(self, directory: Path, read_only: Sequence[Path] = ()) -> None:
        self.directory = directory
        self.read_only = tuple(read_only)

    def paths(self) -> list[Path]:
        """Every visible run file; those of the writable directory first."""
        found = []
        for directory in (self.directory, *self.read_only):
            if directory.is_dir():
                found += sorted(p for p in directory.glob(f"*{SUFFIX}") if not p.name.startswith("."))
        return found

    def is_writable(self, path: Path) -> bool:
        return path.parent.resolve() == self.directory.resolve()

    def path_of(self, run_id: str) -> Path:
        """Where a run lies. A unique beginning of its id will do; StoreError if there is none or several."""
        if not _RUN_ID.fullmatch(run_id):
            raise StoreError(f"'{run_id[:80]}' is not a run id; `list` shows those there are.")
        paths = self.paths()
        for path in paths:
            if path.stem == run_id:
                return path
        close = [path for path in paths if path.stem.startswith(run_id)]
        if len(close) == 1:
            return close[0]
        if close:
            raise StoreError(f"run '{run_id}' could be {', '.join(p.stem for p in close[:3])}; give more of its id.")
        raise StoreError(f"no run '{run_id}' in {self.directory}; `list` shows those there are.")

    def delete(self, run_id: str) -> str:
        """Remove a run for good and give its disk back; returns its full id. Sample runs are refused."""
        path = self.path_of(run_id)
        if not self.is_writable(path):
            raise StoreError(f"run '{path.stem}' is a read-only sample run; it is not deleted.")
        path.unlink()
        return path.stem

    def new_run_id(self, name: str, created: datetime) -> str:
        """Sortable by time, readable, and unique: 20261120-213000-fresh-against-cached-3f9a."""
        words = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60].strip("-")
        return "-".join(part for part in (created.strftime("%Y%m%d-%H%M%S"), words, secrets.token_hex(2)) if part)

    def partial_path(self, run_id: str) -> Path:
        """A name no reader looks at, in the same directory, so that renaming it is atomic."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"{self.directory}: cannot be made ({error.strerror}); set ULPSCOPE_STORE or --store.") from error
        return self.directory / f"{_PARTIAL}{os.getpid()}-{run_id}{SUFFIX}"

    def place(self, partial: Path, run_id: str) -> Path:
        """Make a finished file visible: to disk first, then one rename. Never over an existing run."""
        target = self.directory / f"{run_id}{SUFFIX}"
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        try:
            os.link(partial, target)  # unlike a rename, a link refuses to replace
        except FileExistsError:
            raise StoreError(f"run '{run_id}' exists already; nothing was changed.") from None
        except OSError:  # a file system without hard links: ids are random, so nothing is there to replace
            os.rename(partial, target)
        partial.unlink(missing_ok=True)
        folder = os.open(self.directory, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return target

    def sweep(self) -> list[Path]:
        """Remove what killed writers left behind; returns the files removed. Files of living writers stay.

        DuckDB holds a POSIX record lock on the file it writes, which the system drops when the process dies. Such locks do not
        act within one process, so our own files are told by the process number in their name.
        """
        removed = []
        if not self.directory.is_dir():
            return removed
        for path in self.directory.glob(f"{_PARTIAL}*{SUFFIX}"):
            if path.name.startswith(f"{_PARTIAL}{os.getpid()}-"):
                continue
            try:
                with path.open("r+b") as file:
                    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    remove_partial(path)
                    removed.append(path)
            except OSError:
                continue  # locked by its writer, or gone meanwhile
        return removed


def remove_partial(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.with_name(path.name + ".wal").unlink(missing_ok=True)


def open_store(directory: str | Path | None = None) -> Store:
    """The store of `directory`, else of ULPSCOPE_STORE, else `runs/`; with the sample runs beside it unless ULPSCOPE_SAMPLES is ''."""
    chosen = Path(directory or os.environ.get("ULPSCOPE_STORE") or "runs")
    shipped = Path(__file__).resolve().parents[2] / "sample_runs"
    samples = os.environ.get("ULPSCOPE_SAMPLES", str(shipped))
    return Store(chosen, [Path(samples)] if samples else [])
