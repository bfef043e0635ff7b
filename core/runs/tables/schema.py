"""All tables of a run file."""

from __future__ import annotations

from typing import Any

from ...errors import StoreError
from ...numerics.sizes import TOP_K
from ..file.database import Database
from ..file.records import MAX_LISTED_ROWS, MAX_ROWS, MAX_VALUES, MAX_VOCAB, TOKENS_TOGETHER
from ..file.table import Table
from . import heatmap, kernels, kv_cache, layers, logits, ops, pairs, positions, remedies, rollouts, run

_MODULES = (run, logits, positions, pairs, heatmap, kv_cache, layers, ops, kernels, remedies, rollouts)
TABLES = {
    table.name: table for module in _MODULES for table in vars(module).values() if isinstance(table, Table)
}  # those that each module declares


LATER = (rollouts.SEQUENCE, rollouts.CHOSEN_TOKEN, rollouts.MISMATCH)  # which runs of version 0.2 lack


def create_tables(database: Database) -> None:
    """Create the tables, within a transaction: committed one by one its 350 statements take three times as long."""
    database.execute("\n".join(table.ddl for table in TABLES.values()))


def check_tables(database: Database) -> dict[str, Any]:
    """Return the provenance. StoreError for a DuckDB file that is not a run file of this form."""
    database.refuse_views()
    ours = "WHERE database_name = 'run_file' AND schema_name = 'main'"
    columns_by_table = dict(database.rows(f"SELECT table_name, column_count FROM duckdb_tables() {ours}"))
    provenance = run.read_run(database) if run.RUN.name in columns_by_table else {}
    for table in LATER:
        if table.name not in columns_by_table:
            database.add_empty(table.name, ", ".join(f"{name} {kind}" for name, kind in table.types.items()))
            columns_by_table[table.name] = len(table.columns)
    for name, table in sorted(TABLES.items()):
        if name not in columns_by_table:
            raise StoreError(f"{database.file}: a DuckDB file without the table '{name}', so not a run file.")
        if columns_by_table[name] != len(table.columns):
            raise StoreError(
                f"{database.file}: its table '{name}' has {columns_by_table[name]} columns; expected"
                f" {len(table.columns)}."
            )
    return provenance


def check_rows(database: Database, provenance: dict[str, Any]) -> None:
    """StoreError for a table with more rows than a writer makes of a run of this size: a small file can hold millions
    of equal rows, and readers load whole tables. Reads counts, and the lengths of the vocabulary's texts.
    """
    sql = " UNION ALL ".join(f"SELECT '{name}', count(*) FROM {name}" for name in TABLES)
    counts = dict(database.rows(sql))
    is_list = database.rows("SELECT count(k) FROM side")[0][0] > 0
    sides, vocab = counts["side"], min(provenance["vocab"], MAX_VOCAB)
    positions = min(provenance["positions"], MAX_LISTED_ROWS if is_list else MAX_ROWS)
    values = sides * positions
    sizes = {
        "side": sides,
        "pair": max(0, sides - 1),
        "prompt": counts["prompt"],
        "position": positions,
        "tile": -(-4 * vocab // logits.TILE_BYTES),  # of float32
        "value": max(values, MAX_VALUES) if is_list else TOP_K * values,
        "vocabulary": MAX_VOCAB if is_list else vocab + positions,  # a dump may have tokens without a logit
    }
    for name, count in counts.items():
        most = TABLES[name].most_rows(sizes)
        if count > most:
            raise StoreError(
                f"{database.file}: its table '{name}' has {count:,} rows; expected at most {most:,} in a run of"
                " its size."
            )
    ((length,),) = database.rows("SELECT coalesce(sum(length(text)), 0)::BIGINT FROM vocabulary")
    if length > TOKENS_TOGETHER:
        raise StoreError(
            f"{database.file}: the texts of its vocabulary have {length:,} characters; expected at most"
            f" {TOKENS_TOGETHER:,}."
        )
