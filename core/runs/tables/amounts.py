"""Amounts of a run file: how many rows its tables have and how much text, asked of DuckDB before any of it is read.

Whoever opens a file asks first: it may have been put into the store by hand.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...errors import StoreError
from ...numerics.divergence import DENSE_DISTANCES, EXACT_DISTANCES
from ...numerics.sizes import TOP_K
from ..file.blob_tiles import TILE_BYTES
from ..file.bounds import MAX_ROWS, MAX_SIDES, MAX_VOCAB, MOST_ROWS, TOGETHER, TOGETHER_ELSEWHERE
from ..file.database import Database, check_size
from ..file.kept import ALL, NOTE
from ..file.table import Table
from .run import check_text
from .schema import TABLES

POSITIONS = "positions of all prompts"
_EXACT = ("logits", "side_position", "pair", "position")


def check_amounts(database: Database) -> dict[str, int]:
    """Rows by table, and under POSITIONS those of the logits; StoreError where there are more rows or longer texts than
    a run has.
    """
    asked = " UNION ALL ".join(
        [f"SELECT '{POSITIONS}', coalesce(sum(positions), 0)::BIGINT FROM run_file.main.prompt"]
        + [f"SELECT '{name}', count(*) FROM run_file.main.{name}" for name in TABLES]
    )
    counts = dict.fromkeys(TABLES, 0) | {str(name): int(rows) for name, rows in database.rows(asked)}
    for table, most in MOST_ROWS.items():
        if counts[table] > most:
            raise StoreError(f"{database.file}: table {table} has {counts[table]:,} rows; expected at most {most:,}.")
    _check_texts(database, {table: counts[table.name] for table in TABLES.values() if counts[table.name]})
    return counts


def _check_texts(database: Database, rows: Mapping[Table, int]) -> None:
    """StoreError for a text that is too long, or texts of one table that are too long together. rows: by table."""
    found = {table.name: [c.name for c in table.columns if c.type == "VARCHAR"] for table in rows}
    texts = {name: columns for name, columns in found.items() if columns}
    asked = " UNION ALL ".join(
        f"SELECT '{name}', [{', '.join(f'max(strlen({column}))' for column in columns)}] FROM run_file.main.{name}"
        for name, columns in texts.items()
    )
    many = {table.name: count for table, count in rows.items()}
    for name, sizes in database.rows(asked) if texts else ():
        for column, size in zip(texts[name], sizes, strict=True):
            check_text(database, name, column, size)
        most = TOGETHER.get(name, TOGETHER_ELSEWHERE)
        if many[name] * sum(size or 0 for size in sizes) > most:  # else they are not, whatever their lengths
            together = " + ".join(f"coalesce(sum(strlen({column})), 0)" for column in texts[name])
            size = database.rows(f"SELECT {together} FROM run_file.main.{name}")[0][0]
            if size > most:
                raise StoreError(
                    f"{database.file}: table {name} holds {int(size):,} bytes of text; expected at most {most:,}."
                )


def check_counts(
    database: Database, counts: Mapping[str, int], vocab: int, itemsize: int, kept: str, k: int | None = None
) -> dict[str, int]:
    """StoreError where a table has more rows than a run of so many sides and positions makes, or other logits than it
    keeps; returns those that it makes exactly, by table. itemsize: bytes of a logit; counts: of `check_amounts`; kept:
    of KEEPS; k: most values of a list, None of whole rows.
    """
    sides, prompts, rows = counts["side"], counts["prompt"], counts[POSITIONS]
    check_size(database.path, sides * rows * vocab * itemsize if kept == ALL else 0)
    if not ((k is not None or vocab > 0) and 0 <= vocab <= MAX_VOCAB and rows <= MAX_ROWS and sides <= MAX_SIDES):
        raise StoreError(
            f"{database.file}: {sides:,} sides of {rows:,} x {vocab:,} logits are more than a run can have."
        )
    pairs = max(0, sides - 1)
    most = {
        "side_position": sides * rows,
        "pair": pairs,
        "position": pairs * rows,
        "token": rows,
        "vocabulary": vocab + rows
        if k is None
        else MAX_VOCAB,  # a dump's are those of its tokens, which may be beyond its logits
        "top_token": (TOP_K if k is None else k) * sides * rows,
        "ulp_tile": 2 * pairs * rows,
        "row_ulp_tile": 2 * pairs * rows,
        "ulp_histogram": pairs * (EXACT_DISTANCES + DENSE_DISTANCES),
        "generation": sides * prompts,
        "kernel_side": sides,
    }
    for table, limit in most.items():
        if counts[table] > limit:
            raise StoreError(
                f"{database.file}: table {table} has {counts[table]:,} rows; the run makes at most {limit:,}; the file"
                " is damaged."
            )
    kept_rows = sides * rows if kept == ALL else 0
    most["logits"] = kept_rows * -(-vocab * itemsize // TILE_BYTES)
    if counts["logits"] != most["logits"]:
        raise StoreError(
            f"{database.file}: table logits has {counts['logits']:,} rows; a run that keeps "
            f"{'all of them' if kept == ALL else NOTE} has {most['logits']:,}; the file is damaged."
        )
    check_size(database.path, kept_rows * vocab * itemsize)
    return {table: most[table] for table in _EXACT} if k is None else {"logits": 0, "pair": pairs}
