"""All tables of a run file."""

from __future__ import annotations

from typing import Any

from ...errors import StoreError
from ..file.database import Database
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
