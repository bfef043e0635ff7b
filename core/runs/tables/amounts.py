"""Amounts of a run file: how many rows its tables have and how much text, asked of DuckDB before any of it is read.

They are checked before a file is opened: it may have been put into the store by hand.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...errors import StoreError
from ...numerics.divergence import DENSE_DISTANCES, EXACT_DISTANCES
from ...numerics.sizes import TOP_K
from ..file.blob_tiles import TILE_BYTES
from ..file.bounds import MAX_LISTED_ROWS, MAX_ROWS, MAX_SIDES, MAX_VOCAB, MOST_ROWS, MOST_TEXT
from ..file.database import Database, check_size
from ..file.keep import ALL, NOTE
from .schema import TABLES

POSITIONS = "positions of all prompts"


def check_amounts(database: Database) -> dict[str, int]:
    """Rows by table, and under POSITIONS those of the logits; StoreError for more rows or more text than a run has."""
    queries = [f"SELECT '{POSITIONS}', coalesce(sum(positions), 0)::BIGINT, 0 FROM run_file.main.prompt"]
    for name, table in TABLES.items():
        texts = [f"coalesce(sum(strlen({column})), 0)" for column, kind in table.types.items() if kind == "VARCHAR"]
        queries.append(f"SELECT '{name}', count(*), ({' + '.join(texts) or 0})::HUGEINT FROM {name}")
    counts = {}
    for name, rows, text in database.rows(" UNION ALL ".join(queries)):
        if text > MOST_TEXT or (rows > MOST_ROWS and name != "logits"):
            has, most = f"{rows:,} rows and {text:,} bytes of text", f"{MOST_ROWS:,} and {MOST_TEXT:,}"
            raise StoreError(f"{database.file}: table {name} has {has}; expected at most {most}.")
        counts[name] = int(rows)
    return counts


def check_counts(
    database: Database, counts: Mapping[str, int], vocab: int, itemsize: int, keep: str, k: int | None = None
) -> None:
    """StoreError for more rows than a run of so many sides and positions makes, or other logits than it keeps.

    itemsize: bytes of a logit; k: most values of a list, None of whole rows.
    """
    sides, rows = counts["side"], counts[POSITIONS]
    is_known = vocab > 0 or (k is not None and vocab == 0)
    most_rows = MAX_ROWS if k is None else MAX_LISTED_ROWS
    if not (is_known and vocab <= MAX_VOCAB and rows <= most_rows and sides <= MAX_SIDES):
        problem = f"{sides:,} sides of {rows:,} x {vocab:,} logits"
        raise StoreError(f"{database.file}: {problem} are more than a run can have.")
    pairs = max(0, sides - 1)
    most = {
        "side_position": sides * rows,
        "pair": pairs,
        "position": pairs * rows,
        "token": rows,
        "vocabulary": vocab + rows if k is None else MAX_VOCAB,  # a dump's tokens may be beyond its logits
        "top_token": (TOP_K if k is None else k) * sides * rows,
        "ulp_tile": 2 * pairs * rows,
        "row_ulp_tile": 2 * pairs * rows,
        "ulp_histogram": pairs * (EXACT_DISTANCES + DENSE_DISTANCES),
    }
    for table, limit in most.items():
        if counts[table] > limit:
            problem = f"table {table} has {counts[table]:,} rows; the run makes at most {limit:,}"
            raise StoreError(f"{database.file}: {problem}; the file is damaged.")
    kept_rows = sides * rows if keep == ALL else 0
    tiles = kept_rows * -(-vocab * itemsize // TILE_BYTES)
    if counts["logits"] != tiles:
        keeps = f"a run that keeps {'all of them' if keep == ALL else NOTE} has {tiles:,}"
        problem = f"table logits has {counts['logits']:,} rows; {keeps}"
        raise StoreError(f"{database.file}: {problem}; the file is damaged.")
    check_size(database.path, kept_rows * vocab * itemsize)
