"""All tables of a run file."""

from collections.abc import Sequence
from itertools import chain

from ...errors import StoreError
from ...numerics.arrays import Record
from ...numerics.formats import FORMATS
from ...numerics.sizes import DENSE, TOP_K
from ...text import clean
from ..file.database import Database
from ..file.records import MAX_LISTED_ROWS, MAX_ROWS, MAX_VALUES, MAX_VOCAB, TOKENS_TOGETHER
from ..file.table import Table
from . import (
    choices,
    heatmap,
    kernels,
    kv_cache,
    layers,
    logits,
    mitigations,
    ops,
    pairs,
    positions,
    responses,
    rl,
    run,
)

_MODULES = (
    run,
    responses,
    logits,
    positions,
    pairs,
    heatmap,
    kv_cache,
    layers,
    choices,
    ops,
    kernels,
    mitigations,
    rl,
)
_DECLARED = chain.from_iterable(vars(module).values() for module in _MODULES)
TABLES = {table.name: table for table in _DECLARED if isinstance(table, Table)}
_NAMED = 3  # of what is unknown, in the note

# A run file of 1.0.0 or later grows by addition: a build reads the files of every other one.
# Columns that are added to a table are nullable; only a change of meaning takes another
# FILE_VERSION.


def create_tables(database: Database) -> None:
    """Create the tables, within a transaction: committed one by one its 350 statements take three
    times as long.
    """
    database.execute("\n".join(table.ddl for table in TABLES.values()))


def check_tables(database: Database) -> Record:
    """Return the provenance, and give the file's tables the columns of this build.

    A nullable column that the file lacks reads as NULL, a table that it lacks as empty. What only
    the file has is left alone; `note` of the provenance names it.

    Raises:
        StoreError: not a run file of this version, or a column that may not be null is missing.
    """
    database.refuse_views()
    ours = "WHERE database_name = 'run_file' AND schema_name = 'main'"
    counts = dict(database.rows(f"SELECT table_name, column_count FROM duckdb_tables() {ours}"))
    if run.RUN.name not in counts:
        raise StoreError(
            f"{database.file}: a DuckDB file without the table 'run', so not a run file.",
        )
    provenance = run.read_run(database)
    unknown: list[str] = []
    # Names of all columns take 9 ms in a new connection, as long as the rest of opening a run.
    # Builds only ever add, so a table of as many columns has the same ones.
    if counts != {name: len(table.columns) for name, table in TABLES.items()}:
        unknown = _complete(database)
    if pairs.EVIDENCE.name in counts:
        unknown += pairs.unknown_evidence(database)
    note = _note_on(unknown) if unknown else ""
    return provenance | {"note": " ".join(filter(None, (provenance["note"], note)))}


def _complete(database: Database) -> list[str]:
    """Give the tables the columns of this build; return what only the file has."""
    stored = stored_columns(database)
    unknown = [f"table {name}" for name in sorted(stored.keys() - TABLES.keys())]
    for name, table in TABLES.items():
        columns = stored.get(name)
        if columns is None:
            declared = ", ".join(f"{each.name} {each.type}" for each in table.columns)
            database.add_empty(name, declared)
            continue
        unknown += [f"column {name}.{each}" for each in columns if each not in table.types]
        missing = [each for each in table.columns if each.name not in columns]
        for each in missing:
            if not each.is_nullable:
                raise StoreError(
                    f"{database.file}: its table '{name}' lacks the column '{each.name}'; the file"
                    " is damaged.",
                )
        if list(columns) != table.names:
            database.complete(name, table.names, {each.name: each.type for each in missing})
    return unknown


def stored_columns(database: Database) -> dict[str, dict[str, str]]:
    """Return the columns of the file's tables: name and type by table."""
    sql = (
        "SELECT table_name, column_name, data_type FROM duckdb_columns() WHERE database_name ="
        " 'run_file' AND schema_name = 'main' ORDER BY table_name, column_index"
    )
    columns: dict[str, dict[str, str]] = {}
    for table, column, kind in database.rows(sql):
        columns.setdefault(table, {})[column] = kind
    return columns


def _note_on(unknown: Sequence[str]) -> str:
    names = ", ".join(clean(each) for each in unknown[:_NAMED])
    more = f" and {len(unknown) - _NAMED:,} more" if len(unknown) > _NAMED else ""
    return f"Written by a newer ULPscope; not shown here: {names}{more}."


def check_rows(database: Database, provenance: Record) -> None:
    """StoreError for a table with more rows than a writer makes of a run of this size: a small file
    can hold millions of equal rows, and readers load whole tables. Reads counts, and the lengths of
    the vocabulary's texts.
    """
    sides, lists = database.rows("SELECT count(*), count(k) FROM side")[0]
    ((prompts,),) = database.rows("SELECT count(*) FROM prompt")
    pairs_ = max(0, sides - 1)
    vocab = min(provenance["vocab"], MAX_VOCAB)
    positions = min(provenance["positions"], MAX_LISTED_ROWS if lists else MAX_ROWS)
    places = sides * positions
    # four rows of cells become one at each coarser level
    tiles = pairs_ * (2 * positions + 64)
    limits = {
        "side": 1 << 16,  # RunHeader takes MAX_SIDES, and says so
        "pair": pairs_,
        "prompt": positions,
        "sequence": positions,
        "chosen_token": positions,
        "token": positions,
        # a dump may have tokens without a logit
        "vocabulary": MAX_VOCAB if lists else vocab + positions,
        "position": places,
        "side_position": places,
        "top_token": max(places, MAX_VALUES) if lists else TOP_K * places,
        "floor_position": places * len(FORMATS),
        "ulp_tile": tiles,
        "row_ulp_tile": tiles,
        "ulp_histogram": pairs_ * (DENSE + 64),  # and the powers of two beyond
        "evidence": pairs_ * 1000,  # 30 are usual
        "remedy": pairs_ * 1000,  # 8 are usual
        "response": places,
        "generation": places,
        "generated_token": sides * MAX_ROWS,
        # 131 modules in 30 blocks; the largest models have 126
        "layer": pairs_ * prompts << 13,
        "layer_position": pairs_ * positions << 13,
        # 126 layers of 128 heads, keys and values, are 32,256
        "kv": pairs_ * prompts << 16,
        "kv_position": pairs_ * positions << 10,
        # 61 layers with an indexer and a router of three choices are 244
        "choice": places << 10,
        "kernel": sides << 16,  # 2,000 of 30 blocks
        "kernel_side": sides,
        "op": 1 << 16,
        "mismatch": 1000,  # 26 are usual
    }
    sql = " UNION ALL ".join(f"SELECT '{name}', count(*) FROM {name}" for name in limits)
    for name, count in database.rows(sql):
        most = limits[name]
        if count > most:
            raise StoreError(
                f"{database.file}: its table '{name}' has {count:,} rows; expected at most {most:,}"
                " in a run of its size.",
            )
    ((length,),) = database.rows("SELECT coalesce(sum(length(text)), 0)::BIGINT FROM vocabulary")
    if length > TOKENS_TOGETHER:
        raise StoreError(
            f"{database.file}: the texts of its vocabulary have {length:,} characters; expected at"
            f" most {TOKENS_TOGETHER:,}.",
        )
