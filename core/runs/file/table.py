"""A table of the run file, declared once: its DDL with comments and the Arrow types of what is
inserted come from one text.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from ...errors import StoreError
from ...numerics.arrays import Floats
from .database import Database, quote

_SQL = {
    "bool": "BOOLEAN",
    "int": "BIGINT",
    "int32": "INTEGER",
    "int64": "BIGINT",
    "float": "DOUBLE",
    "float64": "DOUBLE",
}
_ARROW = {
    "BLOB": pa.binary(),
    "BOOLEAN": pa.bool_(),
    "BIGINT": pa.int64(),
    "DOUBLE": pa.float64(),
    "INTEGER": pa.int32(),
    "INTEGER[]": pa.list_(pa.int32()),
    "USMALLINT": pa.uint16(),
    "VARCHAR": pa.string(),
}


@dataclass(frozen=True)
class Column:
    """Column of a table. type: DuckDB's name of it; more: what DDL says beyond that."""

    name: str
    type: str
    help: str
    more: str = "NOT NULL"

    @property
    def is_nullable(self) -> bool:
        return "NOT NULL" not in self.more


def column(name: str, dtype: str, unit: str, help: str, is_nullable: bool) -> Column:
    """Column of a figure. dtype: numpy's or Python's name of its type."""
    about = f"{unit}: {help}" if unit else help
    return Column(name, _SQL[dtype], about, "" if is_nullable else "NOT NULL")


class Table:
    """Table of the run file, declared as in SQL, one column per line: `name TYPE -- help`, `name
    TYPE NULL -- help`. A line that begins with `--` continues the help before it, and the first
    lines are the table's own.
    """

    def __init__(self, name: str, declared: str, columns: Sequence[Column] = ()) -> None:
        """columns: more of them, after those of the text."""
        self.name, self.help = name, ""
        parsed = []
        for line in declared.strip().splitlines():
            head, _, text = (part.strip() for part in line.partition("--"))
            if head:
                column, kind, *more = head.split()
                null = "" if "NULL" in more else "NOT NULL "
                parsed.append(Column(column, kind, text, (null + " ".join(more)).strip()))
            elif parsed:
                last = parsed.pop()
                parsed.append(replace(last, help=f"{last.help} {text}"))
            else:
                self.help = f"{self.help} {text}".strip()
        self.columns = (*parsed, *columns)
        self.types = {column.name: column.type for column in self.columns}
        self.names = list(self.types)

    @property
    def ddl(self) -> str:
        """CREATE TABLE, and what the table and every column mean as their comments."""
        columns = ", ".join(f"{column.name} {column.type} {column.more}" for column in self.columns)
        comments = [
            f"COMMENT ON COLUMN {self.name}.{column.name} IS {quote(column.help)};"
            for column in self.columns
        ]
        table = f"COMMENT ON TABLE {self.name} IS {quote(self.help)};"
        return "\n".join([f"CREATE TABLE {self.name} ({columns});", table, *comments])

    def arrow(self, **values: Any) -> pa.Table:
        """Rows in the columns' types. An array or list holds a value per row, a number or text is
        in every row, and what is not named is null.
        """
        # what is no column is repeated as often as the others have rows
        rows = next((len(value) for value in values.values() if _is_column(value)), 1)
        columns = {}
        for column in self.columns:
            value = values.pop(column.name, None)
            kind = _ARROW[column.type]
            if not _is_column(value):
                value = pa.repeat(pa.scalar(value, kind), rows)
            elif not isinstance(value, pa.Array):
                value = pa.array(value, kind)
            columns[column.name] = value
        if values:
            raise TypeError(f"table {self.name} has no column {', '.join(values)}")
        return pa.table(columns)

    def rows(self, database: Database, **values: Any) -> pa.Table:
        """Return rows, given as for `arrow`, for this file. StoreError for what no column takes."""
        try:
            return self.arrow(**values)
        # a long id, half a surrogate
        except (pa.ArrowException, OverflowError, UnicodeError) as error:
            raise StoreError(
                f"{database.file}: its table '{self.name}' cannot be stored ({error}).",
            ) from error

    def insert(self, database: Database, **values: Any) -> None:
        """Append rows, given as for `arrow`."""
        database.insert(self.name, self.rows(database, **values))

    def insert_records(self, database: Database, records: Sequence[Any], **values: Any) -> None:
        """Append a row for each record, its attributes under the columns that `values` does not
        give.
        """
        names = [name for name in self.names if name not in values]
        columns = {name: [getattr(record, name) for record in records] for name in names}
        self.insert(database, **values, **columns)

    def insert_row(self, database: Database, **values: Any) -> None:
        """Append one row; columns that are not named are null."""
        places = ", ".join("?" * len(values))
        database.execute(
            f"INSERT INTO {self.name} ({', '.join(values)}) VALUES ({places})",
            list(values.values()),
        )


def null_if_nan(values: Floats) -> pa.Array:
    """Return a column of figures, null if NaN."""
    return pa.array(values, mask=np.isnan(values))


def nullable(kind: pa.DataType) -> Any:
    """Return the dtype in pandas of whole numbers that may be null; None, which is quicker, for
    anything else.
    """
    import pandas as pd

    return {pa.int32(): pd.Int32Dtype(), pa.int64(): pd.Int64Dtype()}.get(kind)


def _is_column(value: object) -> bool:
    return isinstance(value, np.ndarray | pa.Array | list)
