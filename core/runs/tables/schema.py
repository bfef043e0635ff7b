"""All tables of a run file."""

from __future__ import annotations

from ...errors import StoreError
from ..file.database import Database
from ..file.table import Table
from . import (
    generations,
    heatmap,
    kernels,
    kv_cache,
    layers,
    logits,
    ops,
    pairs,
    positions,
    prompts,
    remedies,
    rollouts,
    run,
    sides,
    verdicts,
)

_MODULES = (
    *(run, prompts, sides, logits, positions, pairs, heatmap, verdicts),
    *(kv_cache, layers, generations, ops, kernels, remedies, rollouts),
)
TABLES = {
    table.name: table for module in _MODULES for table in vars(module).values() if isinstance(table, Table)
}  # those that each module declares


LATER = (rollouts.SEQUENCE, rollouts.CHOSEN_TOKEN)  # which runs of version 0.2 lack


def create_tables(database: Database) -> None:
    """Create the tables, within a transaction: committed one by one its 350 statements take three times as long."""
    database.execute("\n".join(table.ddl for table in TABLES.values()))


def check_tables(database: Database) -> None:
    """StoreError for a DuckDB file that is not a run file of this form. Columns that may be null and that an older file
    lacks are null.
    """
    database.refuse_views()
    ours = "WHERE database_name = 'run_file' AND schema_name = 'main'"
    columns_by_table = dict(database.rows(f"SELECT table_name, column_count FROM duckdb_tables() {ours}"))
    if run.RUN.name in columns_by_table:
        run.read_run(database, "vocab")
    for table in LATER:
        if table.name not in columns_by_table:
            database.add_empty(table.name, ", ".join(f"{name} {kind}" for name, kind in table.types.items()))
            columns_by_table[table.name] = len(table.columns)
    if missing := sorted(TABLES.keys() - columns_by_table.keys()):
        raise StoreError(f"{database.file}: a DuckDB file without the table '{missing[0]}', so not a run file.")
    if all(columns_by_table[name] == len(table.columns) for name, table in TABLES.items()):
        return  # the list of columns takes a tenth of opening a run
    names = set(database.rows(f"SELECT table_name, column_name FROM duckdb_columns() {ours}"))
    for name, table in TABLES.items():
        if absent := [column for column in table.columns if column.is_nullable and (name, column.name) not in names]:
            database.add_nulls(name, {column.name: column.type for column in absent})
