"""The store: directories of run files. One run = one DuckDB file, written under a temporary name, renamed, then read-only.

The only module that imports duckdb: `Database` is the edge at which its exceptions become `StoreError`. Reading never locks; any
number of processes read while a writer adds runs, because a writer only ever touches a file that nobody else can see.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import numpy as np
import pyarrow as pa

from core.errors import StoreError
from core.runs import labels, trash
from core.runs.partial import Partial, sweep

SCHEMA_VERSION = 3
VERDICTS_SINCE = 2  # from this version on a file has room for a verdict with its evidence
_READABLE_VERSIONS = (1, 2, 3)
SUFFIX = ".duckdb"
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,150}")
_SMALL_RUN = 32 << 20  # bytes of logits
_REQUIRED_TABLES = {"run", "prompt", "token", "vocabulary", "side", "logits", "side_position", "top_token"} | {
    "pair", "position", "ulp_histogram", "ulp_tile", "evidence",
}  # fmt: skip
_TABLES_OF_VERSION_2 = {"kv", "kv_position", "generation", "generated_token", "floor_position"}
_TABLES_OF_VERSION_3 = {"layer", "layer_position"}
_CONFIG: dict[str, Any] = {
    "threads": 2,
    "memory_limit": "320MB",
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "temp_directory": "",
}
# Beside its own errors: what its Python side throws at odd text, sizes and results, and std::exception as RuntimeError.
_FOREIGN = (duckdb.Error, pa.ArrowException, UnicodeError, OverflowError, MemoryError, RuntimeError)
_LISTING_THREADS = 2

# Names are looked up among the system's first: a macro in a foreign file could otherwise stand for `count` or `duckdb_views`.
_SEARCH = "SET search_path = 'system.main,run_file.main'"

Read = TypeVar("Read")


class Database:
    """One open run file. A reader's queries may come from several threads (each uses a cursor); a writer belongs to one."""

    def __init__(self, path: Path, connection: duckdb.DuckDBPyConnection, ask: Callable[[], duckdb.DuckDBPyConnection]) -> None:
        self.path = path
        self._connection = connection
        self._ask = ask

    @classmethod
    def to_read(cls, path: Path) -> Database:
        """Opened read-only and shut in: nothing inside a foreign file can reach any other file, or take the place of a function."""
        with _edge(path):
            connection = duckdb.connect(":memory:", config=_CONFIG)
            try:
                connection.execute(f"ATTACH {_quoted(_regular_file(path))} AS run_file (TYPE duckdb, READ_ONLY)")
                connection.execute("SET enable_external_access = false")
            except BaseException:
                connection.close()
                raise
            return cls(path, connection, partial(_reading_cursor, connection))

    @classmethod
    def to_write(cls, path: Path, *, expected_bytes: int) -> Database:
        """A new file for `expected_bytes` of logits: small runs get small blocks, or ten empty tables cost 3 MB."""
        with _edge(path):
            connection = duckdb.connect(":memory:", config=_CONFIG | {"temp_directory": str(path.absolute().parent / "spill")})
            block = 16384 if expected_bytes < _SMALL_RUN else 262144
            options = f"TYPE duckdb, ROW_GROUP_SIZE 2048, BLOCK_SIZE {block}"
            try:
                connection.execute(f"ATTACH {_quoted(path.absolute())} AS run_file ({options})")
                connection.execute("USE run_file")
            except BaseException:
                connection.close()
                raise
            # The connection itself: a cursor would be another one and not see the open transaction.
            return cls(path, connection, partial(_itself, connection))

    @classmethod
    def in_memory(cls) -> Database:
        """An empty run file that lies nowhere."""
        with _edge(Path("memory")):
            connection = duckdb.connect(":memory:", config=_CONFIG)
            connection.execute("ATTACH ':memory:' AS run_file; USE run_file")
            return cls(Path("memory"), connection, partial(_itself, connection))

    @classmethod
    def to_change(cls, path: Path) -> Database:
        """A file that nobody else can see yet, opened to be written to; shut in like a reader, for it may come from anybody."""
        with _edge(path):
            connection = duckdb.connect(":memory:", config=_CONFIG)
            try:
                connection.execute(f"ATTACH {_quoted(_regular_file(path))} AS run_file (TYPE duckdb)")
                connection.execute(_SEARCH)
                connection.execute("SET enable_external_access = false")
            except BaseException:
                connection.close()
                raise
            database = cls(path, connection, partial(_itself, connection))
        try:
            database.refuse_views()
        except BaseException:
            database.abandon()
            raise
        return database

    def table(self, sql: str, values: Sequence[Any] = ()) -> pa.Table:
        """The result of a query as an Arrow table."""
        with _edge(self.path):
            return self._ask().sql(sql, params=_plain(values)).to_arrow_table()

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple]:
        with _edge(self.path):
            return self._ask().execute(sql, _plain(values)).fetchall()

    def execute(self, sql: str, values: Sequence[Any] = ()) -> None:
        with _edge(self.path):
            self._connection.execute(sql, _plain(values))

    def insert(self, name: str, table: pa.Table) -> None:
        """Append an Arrow table to the table of that name; its columns are matched by name."""
        columns = ", ".join(table.column_names)
        with _edge(self.path):
            self._connection.register("arriving", table)
            self._connection.execute(f"INSERT INTO {name} ({columns}) SELECT {columns} FROM arriving")
            self._connection.unregister("arriving")

    def refuse_views(self) -> None:
        """A run file has none. In place of a table one could make us read other files of the directory, or never come back."""
        found = self.rows("SELECT view_name FROM duckdb_views() WHERE NOT internal LIMIT 1")
        if found:
            raise StoreError(f"{_shown(self.path)}: a DuckDB file with the view '{found[0][0]}', so not a run file.")

    def check_schema(self) -> int:
        """Refuse a DuckDB file that is not a run file of a schema that can be read; returns the schema's version."""
        self.refuse_views()
        tables = "SELECT table_name FROM duckdb_tables() WHERE database_name = 'run_file' AND schema_name = 'main'"
        there = {row[0] for row in self.rows(tables)}
        self._refuse_missing(_REQUIRED_TABLES - there)
        version = check_version(self.path, [row[0] for row in self.rows("SELECT schema_version FROM run")])
        if version >= 2:
            self._refuse_missing(_TABLES_OF_VERSION_2 - there)
        if version >= 3:
            self._refuse_missing(_TABLES_OF_VERSION_3 - there)
        return version

    def _refuse_missing(self, missing: set[str]) -> None:
        if missing:
            raise StoreError(f"{_shown(self.path)}: a DuckDB file without the table '{min(missing)}', so not a run file.")

    def close(self) -> None:
        """Write everything out and let go of the file."""
        with _edge(self.path):
            self._connection.execute("USE memory")
            self._connection.execute("DETACH run_file")  # this checkpoints: no log is left beside the file
            self._connection.close()

    def abandon(self) -> None:
        """Let go of the file whatever state it is in."""
        _close(self._connection)


def _plain(values: Sequence[Any]) -> list[Any]:
    """Numbers out of an array or a table are numpy's, which DuckDB does not take."""
    return [value.item() if isinstance(value, np.generic) else value for value in values]


@contextmanager
def _edge(path: Path) -> Iterator[None]:
    try:
        yield
    except _FOREIGN as error:
        raise StoreError(f"{_shown(path)}: cannot be read or written as a run file ({_first_line(error)}).") from error
    except OSError as error:
        raise StoreError(f"{_shown(path)}: cannot be opened ({error.strerror or error}).") from error


def _shown(path: Path) -> str:
    """A file's name as text that can be printed, whatever bytes it is made of."""
    return path.name.encode("utf-8", "backslashreplace").decode()


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"


def _regular_file(path: Path) -> Path:
    """Where a run file really lies, links followed; to open a pipe or a device might never return."""
    place = path.resolve()
    str(place).encode()  # DuckDB takes no name that is not text
    if not stat.S_ISREG(place.stat().st_mode):
        raise StoreError(f"{_shown(path)}: not a regular file, so not a run file.")
    return place


def check_version(path: Path, found: Sequence[Any]) -> int:
    """`found`: schema_version of every row of the table `run`, of which there must be one."""
    if len(found) != 1:
        raise StoreError(f"{_shown(path)}: {len(found)} rows of provenance, a run file has one.")
    if found[0] not in _READABLE_VERSIONS:
        raise StoreError(f"{_shown(path)}: schema version {found[0]}, this ULPscope reads versions 1 to {SCHEMA_VERSION}.")
    return int(found[0])


def check_size(path: Path, logits_bytes: int) -> int:
    """Bytes of the file. Logits are not compressed: a smaller file has lost some, or promises what would never fit in memory."""
    with _edge(path):
        size = path.stat().st_size
    if size < logits_bytes:
        raise StoreError(f"{_shown(path)}: {size} bytes cannot hold its {logits_bytes} bytes of logits; the file is damaged.")
    return size


def each_database(paths: Sequence[Path], read: Callable[[Database], Read]) -> Iterator[tuple[Path, Read | StoreError]]:
    """What `read` makes of every file, in order; one that cannot be read gives its StoreError and harms no other.

    The file is attached as `run_file`, so `read` says `run_file.run`. Opening an instance costs 10 ms, attaching to one 0.4 ms.
    """
    shares = [paths[i::_LISTING_THREADS] for i in range(_LISTING_THREADS)]
    with ThreadPoolExecutor(_LISTING_THREADS, thread_name_prefix="ulpscope-listing") as pool:
        results = list(pool.map(lambda share: _read_share(share, read), shares))
    for i, path in enumerate(paths):
        yield path, results[i % _LISTING_THREADS][i // _LISTING_THREADS]


def _read_share(paths: Sequence[Path], read: Callable[[Database], Read]) -> list[Read | StoreError]:
    """One instance reads all of `paths`; after a file that broke something, a new one."""
    places = [_place_or_error(path) for path in paths]
    folders = sorted({str(place.parent) for place in places if isinstance(place, Path)})
    results: list[Read | StoreError] = []
    connection: duckdb.DuckDBPyConnection | None = None
    for path, place in zip(paths, places, strict=True):
        result: Read | StoreError
        try:
            if isinstance(place, StoreError):
                raise place
            with _edge(path):
                opened = connection = connection or _listing_instance(folders)
                opened.execute(f"ATTACH {_quoted(place)} AS run_file (TYPE duckdb, READ_ONLY)")
                database = Database(path, opened, partial(_itself, opened))
                database.refuse_views()
                result = read(database)
                opened.execute("DETACH run_file")
        except StoreError as error:
            result = error
            _close(connection)
            connection = None
        results.append(result)
    _close(connection)
    return results


def _place_or_error(path: Path) -> Path | StoreError:
    try:
        with _edge(path):
            return _regular_file(path)
    except StoreError as error:
        return error


def _listing_instance(folders: list[str]) -> duckdb.DuckDBPyConnection:
    """Shut in like a reader, to `folders`; the queries of a listing are too small for an optimizer to pay."""
    connection = duckdb.connect(":memory:", config=_CONFIG | {"threads": 1})
    connection.execute("SET allowed_directories = ?", [folders])
    connection.execute("SET enable_external_access = false")
    connection.execute("PRAGMA disable_optimizer")
    return connection


def _reading_cursor(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    """A cursor is a connection of its own, with a search path of its own."""
    cursor = connection.cursor()
    cursor.execute(_SEARCH)
    return cursor


def _itself(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    return connection


def _close(connection: duckdb.DuckDBPyConnection | None) -> None:
    if connection is not None:
        with suppress(*_FOREIGN):
            connection.close()


class Store:
    """A directory that runs are written to, and directories that are only read (sample runs)."""

    def __init__(self, directory: Path, read_only: Sequence[Path] = ()) -> None:
        self.directory = directory
        own = directory.resolve()
        self.read_only = tuple(folder for folder in read_only if folder.resolve() != own)  # else every run would be there twice

    def paths(self) -> list[Path]:
        """Every visible run file; those of the writable directory first."""
        found = []
        for directory in (self.directory, *self.read_only):
            if directory.is_dir():
                visible = (p for p in directory.glob(f"*{SUFFIX}") if not p.name.startswith("."))
                found += sorted(visible, key=lambda path: path.name)  # of a thousand, four times as fast as comparing paths
        return found

    def is_writable(self, path: Path) -> bool:
        return path.parent.resolve() == self.directory.resolve()

    def path_of(self, run_id: str) -> Path:
        """Where a run lies. A unique beginning of its id will do; StoreError if there is none or several."""
        paths = self.paths()
        for path in paths:  # a file that somebody renamed may have any name
            if path.stem == run_id:
                return path
        if not _RUN_ID.fullmatch(run_id):
            raise StoreError(f"'{run_id[:80]}' is not a run id; `list` shows those there are.")
        close = [path for path in paths if path.stem.startswith(run_id)]
        if len(close) == 1:
            return close[0]
        if close:
            raise StoreError(f"run '{run_id}' could be {', '.join(p.stem for p in close[:3])}; give more of its id.")
        raise StoreError(f"no run '{run_id}' in {self.directory}; `list` shows those there are.")

    def delete(self, run_id: str) -> str:
        """Remove a run and its labels for good and give its disk back; returns its full id. Sample runs are refused.

        Who has it open reads on; the disk is free when the last of them lets go.
        """
        path = self._own_path_of(run_id)
        with _deleting(path):
            path.unlink()
        # A sample run may have the same id, and so the same labels.
        if not any(other.stem == path.stem for other in self.paths()):
            labels.forget(self.directory, path.stem)
        return path.stem

    def discard(self, run_id: str) -> str:
        """Move a run and its labels into the trash, from where `restore` puts them back; returns the entry. Sample runs are refused.

        The disk is free once the entry is purged: by `purge_trash`, or by sweeps a week later.
        """
        path = self._own_path_of(run_id)
        with _deleting(path):
            return trash.discard(self.directory, path)

    def restore(self, entry: str) -> str:
        """Put a discarded run back; returns its id. Never over an existing run."""
        return trash.restore(self.directory, entry)

    def discarded(self) -> list[trash.Discarded]:
        """The runs in the trash, the latest deleted first."""
        return trash.listed(self.directory)

    def purge_trash(self, older_than_seconds: float = 0.0, entry: str | None = None) -> int:
        """Remove for good what was discarded at least that long ago, or one entry of it; returns how many."""
        return trash.purge(self.directory, older_than_seconds, entry)

    def _own_path_of(self, run_id: str) -> Path:
        path = self.path_of(run_id)
        if not self.is_writable(path):
            raise StoreError(f"run '{path.stem}' is a read-only sample run; it is not deleted.")
        return path

    def new_run_id(self, name: str, created: datetime) -> str:
        """Sortable by time, readable, and unique: 20261120-213000-fresh-against-cached-3f9a."""
        words = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60].strip("-")
        return "-".join(part for part in (created.strftime("%Y%m%d-%H%M%S"), words, secrets.token_hex(2)) if part)

    def new_partial(self, name: str, created: datetime, run_id: str | None = None) -> Partial:
        """A place for a run to be written to, in the same directory, so that renaming it is atomic; its id is nobody else's."""
        if run_id is not None and not _RUN_ID.fullmatch(run_id):
            raise StoreError(f"'{run_id[:80]}' cannot be a run id; expected letters, digits, '.', '-' and '_'.")
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            for _ in range(1 if run_id else 1000):
                wanted = run_id or self.new_run_id(name, created)
                if not self._target(wanted).exists() and (made := Partial.make(self.directory, wanted)) is not None:
                    return made
        except OSError as error:
            where = f"{self.directory}: cannot be written to ({error.strerror})"
            raise StoreError(f"{where}; set ULPSCOPE_STORE or --store to another directory.") from error
        taken = f"run '{run_id}' exists already or is being written" if run_id else f"no id is left for a run called '{name}'"
        raise StoreError(f"{self.directory}: {taken}; nothing was changed.")

    def _target(self, run_id: str) -> Path:
        return self.directory / f"{run_id}{SUFFIX}"

    def place(self, path: Path, run_id: str) -> Path:
        """Make a finished file visible: to disk first, then under its name, then the directory. Never over an existing run."""
        target = self._target(run_id)
        try:
            to_disk(path)
            try:
                os.link(path, target)  # unlike a rename, a link refuses to replace
            except FileExistsError:
                raise StoreError(f"run '{run_id}' exists already; nothing was changed.") from None
            except OSError:  # a file system without hard links: take the name first, which fails if it is taken
                try:
                    target.touch(exist_ok=False)
                except FileExistsError:
                    raise StoreError(f"run '{run_id}' exists already; nothing was changed.") from None
                path.rename(target)
            to_disk(self.directory)
        except OSError as error:
            raise StoreError(f"run '{run_id}' could not be put in place ({error.strerror}).") from error
        return target

    def sweep(self) -> list[Path]:
        """Remove what killed writers left behind; returns the directories removed. Those of living writers stay.

        And what has been in the trash for a week: every writer begins with a sweep, so the trash costs disk only until then.
        """
        trash.expire(self.directory)
        labels.tidy(self.directory)
        return sweep(self.directory)


@contextmanager
def _deleting(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise StoreError(f"run '{path.stem}' is not there any more.") from None
    except OSError as error:
        raise StoreError(f"run '{path.stem}' cannot be deleted ({error.strerror}).") from error


def to_disk(path: Path) -> None:
    """fsync of a file or a directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_store(directory: str | Path | None = None) -> Store:
    """The store of `directory`, else of ULPSCOPE_STORE, else `runs/`; with the sample runs unless ULPSCOPE_SAMPLES is ''."""
    chosen = Path(directory or os.environ.get("ULPSCOPE_STORE") or "runs")
    shipped = Path(__file__).resolve().parents[2] / "sample_runs"
    samples = os.environ.get("ULPSCOPE_SAMPLES", str(shipped))
    return Store(chosen, [Path(samples)] if samples else [])
