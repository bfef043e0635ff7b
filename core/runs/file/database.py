"""The edge to DuckDB, which only this module imports: `Database` is one open run file, and DuckDB's
exceptions become `StoreError`.

Reading never locks; any number of processes read while a writer adds runs, because a writer only
touches a file that no reader sees.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from ...errors import StoreError, UsageError
from ...numerics.arrays import Record
from ...text import clean

if TYPE_CHECKING:
    import duckdb

FILE_VERSION = 7  # the only one that is read

_SMALL_RUN = 32 << 20  # bytes of logits
# What a file of odd contents makes numpy, pandas and pyarrow raise while its rows become records
# and arrays. A judge runs inside too, whose other errors are not the file's.
_DECODING = (
    UsageError,
    TypeError,
    ValueError,
    IndexError,
    KeyError,
    AttributeError,
    OverflowError,
    RecursionError,
    pa.ArrowException,
)
_CONFIG: Record = {
    "threads": 2,
    "memory_limit": "320MB",
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "temp_directory": "",
}

# Names are looked up among the system's first: a macro in a foreign file could otherwise stand for
# `count` or `duckdb_views`.
_SEARCH = "SET search_path = 'system.main,memory.main,run_file.main'"
_SHUT_IN = "SET enable_external_access = false"
_LOCKED = f"{_SHUT_IN}; SET lock_configuration = true"

Read = TypeVar("Read")


class Database:
    """One open run file. A reader's queries may come from several threads; a writer belongs to
    one.
    """

    def __init__(
        self,
        path: Path,
        connection: duckdb.DuckDBPyConnection,
        *,
        is_shared: bool = False,
    ) -> None:
        self.path, self._connection, self._is_shared = path, connection, is_shared

    def __enter__(self) -> Database:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close a writer's file, or abandon it if something was raised."""
        if kind is None and not self._is_shared:
            self.close()
        else:
            self.abandon()

    @classmethod
    def to_read(cls, path: Path) -> Database:
        """Open a file read-only and confined: nothing in it can reach another file or replace a
        function.
        """
        with _edge(path):
            return cls(path, _connect(_attach(path), _LOCKED), is_shared=True)

    @classmethod
    def to_write(cls, path: Path, *, expected_bytes: int, row_group: int = 2048) -> Database:
        """Create a file for `expected_bytes` of logits: small runs get small blocks, or ten empty
        tables cost 3 MB.

        row_group: rows of a table that are stored and skipped together.
        """
        with _edge(path):
            block = 16384 if expected_bytes < _SMALL_RUN else 262144
            form = f"TYPE duckdb, ROW_GROUP_SIZE {row_group}, BLOCK_SIZE {block}"
            attach = f"ATTACH {quote(path.absolute())} AS run_file ({form})"
            spill = str(path.absolute().parent / "spill")
            return cls(path, _connect(attach, "USE run_file", temp_directory=spill))

    @classmethod
    def to_change(cls, path: Path) -> Database:
        """Open a file that no other process sees yet for writing, confined like a reader's."""
        with _edge(path):
            return cls(path, _connect(_attach(path, "READ_WRITE"), _SEARCH, _LOCKED))

    def _ask(self) -> duckdb.DuckDBPyConnection:
        """Return a cursor of a reader, which is a connection of its own with a search path of its
        own; of a writer the connection itself, for a cursor would not see the open transaction.
        """
        if not self._is_shared:
            return self._connection
        cursor = self._connection.cursor()
        cursor.execute(_SEARCH)
        return cursor

    def table(self, sql: str, values: Sequence[Any] = ()) -> pa.Table:
        """Return the result of a query as an Arrow table."""
        with _edge(self.path):
            return self._ask().sql(sql, params=_plain(values)).to_arrow_table()

    def rows(self, sql: str, values: Sequence[Any] = (), *, most: int | None = None) -> list[tuple]:
        """Return the result of a query; with `most` its first rows (a LIMIT would cost a tenth of a
        card).
        """
        with _edge(self.path):
            result = self._ask().execute(sql, _plain(values))
            return result.fetchall() if most is None else result.fetchmany(most)

    def records(self, sql: str) -> list[Record]:
        """Return the result of a query, each row by the names of its columns."""
        with _edge(self.path):
            result = self._ask().execute(sql)
            names = [column[0] for column in result.description or ()]
            return [dict(zip(names, row, strict=True)) for row in result.fetchall()]

    def execute(self, sql: str, values: Sequence[Any] = ()) -> None:
        with _edge(self.path):
            self._connection.execute(sql, _plain(values))

    def insert(self, name: str, table: pa.Table) -> None:
        """Append an Arrow table to the table of that name; its columns are matched by name."""
        columns = ", ".join(table.column_names)
        with _edge(self.path):
            self._connection.register("arriving", table)
            self._connection.execute(
                f"INSERT INTO {name} ({columns}) SELECT {columns} FROM arriving",
            )
            self._connection.unregister("arriving")

    def add_empty(self, table: str, columns: str) -> None:
        """Add a table without rows, for the queries of a reader; a writer's file gets it. columns:
        of its DDL.
        """
        self.execute(
            f"CREATE TABLE {'memory' if self._is_shared else 'run_file'}.main.{table} ({columns})",
        )

    def complete(self, table: str, names: Sequence[str], missing: Mapping[str, str]) -> None:
        """Give a table the columns `names`: `missing` (name to type) read as NULL, others are
        hidden.

        A reader's queries see a view in place of the table. A writer's file gets the missing
        columns.
        """
        if not self._is_shared:
            for name, kind in missing.items():
                self.execute(f"ALTER TABLE run_file.main.{table} ADD COLUMN {name} {kind}")
            return
        columns = [
            f"NULL::{missing[name]} AS {name}" if name in missing else name for name in names
        ]
        chosen = f"SELECT {', '.join(columns)} FROM run_file.main.{table}"
        self.execute(f"CREATE VIEW memory.main.{table} AS {chosen}")

    def refuse_views(self) -> None:
        """Refuse views: in place of a table one could make us read other files, or never come
        back.
        """
        views = self.rows("SELECT view_name FROM duckdb_views() WHERE NOT internal LIMIT 1")
        if views:
            raise StoreError(
                f"{self.file}: a DuckDB file with the view '{views[0][0]}', so not a run file.",
            )

    @property
    def file(self) -> str:
        """Name of the run file as text that can be printed."""
        return _name(self.path)

    @contextmanager
    def decoding(self, what: str) -> Iterator[None]:
        """Raise StoreError if rows of the file make no sense."""
        try:
            yield
        except _DECODING as error:
            raise StoreError(
                f"{self.file}: its {what} is invalid ({error}); the file is damaged.",
            ) from error

    def close(self) -> None:
        """Write everything and close the file."""
        with _edge(self.path):
            self._connection.execute("USE memory")
            # detaching checkpoints the file, so no log file is left beside it
            self._connection.execute("DETACH run_file")
            self._connection.close()

    def abandon(self) -> None:
        """Close the file in any state."""
        _close(self._connection)


def _connect(*statements: str, **config: Any) -> duckdb.DuckDBPyConnection:
    """Open an instance and run the statements; close it if one fails."""
    import duckdb

    connection = duckdb.connect(":memory:", config=_CONFIG | config)
    try:
        # in Jupyter without ipywidgets it is off and cannot be set
        with suppress(duckdb.InvalidInputException):
            # the progress bar would be printed among results
            connection.execute("SET enable_progress_bar = false")
        for statement in statements:
            connection.execute(statement)
    except BaseException:
        connection.close()
        raise
    return connection


def _plain(values: Sequence[Any]) -> list[Any]:
    """Numbers out of an array or a table are numpy's, which DuckDB does not take."""
    return [value.item() if isinstance(value, np.generic) else value for value in values]


@contextmanager
def _edge(path: Path) -> Iterator[None]:
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(f"{_name(path)}: cannot be opened ({error.strerror or error}).") from error
    # DuckDB has kinds of its own, and raises others at odd text, sizes and results
    except Exception as error:
        raise StoreError(
            f"{_name(path)}: cannot be read or written as a run file ({_reason(path, error)}).",
        ) from error


def _name(path: Path) -> str:
    """Return a file's name as printable text, for any bytes."""
    return clean(path.name, 255)


def _reason(path: Path, error: BaseException) -> str:
    """Return the first line of an error, without the folders of this machine."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    first = lines[0].rstrip(".")
    for place in (os.path.realpath(path), path.absolute(), path):
        first = first.replace(str(place), path.name)
    return first


def quote(text: object) -> str:
    """Return a text, or a path, as a literal of SQL."""
    return "'" + str(text).replace("'", "''") + "'"


def _attach(path: Path, mode: str = "READ_ONLY") -> str:
    """Return the statement that attaches a run file; StoreError unless it is a regular file:
    opening a pipe might never return.
    """
    place = path.resolve()
    # DuckDB takes no name that is not UTF-8
    str(place).encode()
    if not stat.S_ISREG(place.stat().st_mode):
        raise StoreError(f"{_name(path)}: not a regular file, so not a run file.")
    return f"ATTACH {quote(place)} AS run_file (TYPE duckdb, {mode})"


def each_database(
    paths: Sequence[Path],
    read: Callable[[Database], Read],
) -> Iterator[tuple[Path, Read | StoreError]]:
    """Yield what `read` returns for every file, in order; one that cannot be read gives its
    StoreError and harms no other.

    The file is attached as `run_file`, so `read` says `run_file.run`. Opening an instance costs 10
    ms, attaching to one 0.4 ms.
    """
    folders = sorted({Path(os.path.realpath(path)).parent for path in paths})
    allowed = f"SET allowed_directories = [{', '.join(map(quote, folders))}]"
    # the queries of a listing are too small for one to pay
    few = "PRAGMA disable_optimizer"
    connection = None
    for path in paths:
        result: Read | StoreError
        try:
            with _edge(path):
                attach = _attach(path)
                # two instances in two threads were no faster: reading holds Python's lock
                instance = connection = connection or _connect(allowed, _SHUT_IN, few, threads=1)
                instance.execute(attach)
                database = Database(path, instance)
                database.refuse_views()
                result = read(database)
                instance.execute("DETACH run_file")
        except StoreError as error:
            result = error
            # whatever the file has broken, the next one gets a new instance
            _close(connection)
            connection = None
        yield path, result
    _close(connection)


def _close(connection: duckdb.DuckDBPyConnection | None) -> None:
    if connection is not None:
        with suppress(Exception):
            connection.close()
