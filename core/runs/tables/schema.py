"""All tables of a run file."""

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
# Most rows of each table, in SQL over the size of the run.
# RunHeader takes MAX_SIDES, and says so. A dump may have tokens without a logit. Four rows of cells
# become one at each coarser level. Beyond DENSE a histogram has powers of two. 30 rows of evidence,
# 8 mitigations and 26 figures of mismatch are usual. 30 blocks have 131 modules and 2,000 kernels;
# the largest models have 126 layers: keys and values of 128 heads are 32,256 rows of kv. 61 layers
# with an indexer and a router of three choices make 244 choices.
_MOST_ROWS = {
    "side": f"{1 << 16}",
    "pair": "pairs",
    "prompt": "positions",
    "sequence": "positions",
    "chosen_token": "positions",
    "token": "positions",
    "vocabulary": f"if(is_list, {MAX_VOCAB}, vocab + positions)",
    "position": "places",
    "side_position": "places",
    "top_token": f"if(is_list, greatest(places, {MAX_VALUES}), {TOP_K} * places)",
    "floor_position": f"places * {len(FORMATS)}",
    "ulp_tile": "pairs * (2 * positions + 64)",
    "row_ulp_tile": "pairs * (2 * positions + 64)",
    "ulp_histogram": f"pairs * {DENSE + 64}",
    "evidence": "pairs * 1000",
    "remedy": "pairs * 1000",
    "response": "places",
    "generation": "places",
    "generated_token": f"sides * {MAX_ROWS}",
    "layer": "pairs * prompts << 13",
    "layer_position": "pairs * positions << 13",
    "kv": "pairs * prompts << 16",
    "kv_position": "pairs * positions << 10",
    "choice": "places << 10",
    "kernel": "sides << 16",
    "kernel_side": "sides",
    "op": f"{1 << 16}",
    "mismatch": "1000",
}

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
    unknown = []
    # Names of all columns take 9 ms in a new connection, as long as the rest of opening a run.
    # Builds only ever add, so a table of as many columns has the same ones.
    if counts != {name: len(table.columns) for name, table in TABLES.items()}:
        unknown = _complete(database)
    if pairs.EVIDENCE.name in counts:
        unknown += pairs.unknown_evidence(database)
    note = ""
    if unknown:
        names = ", ".join(clean(each) for each in unknown[:_NAMED])
        more = f" and {len(unknown) - _NAMED:,} more" if len(unknown) > _NAMED else ""
        note = f"Written by a newer ULPscope; not shown here: {names}{more}."
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
    """Return the columns of the file's tables: name, type and NOT NULL by table."""
    sql = (
        "SELECT table_name, column_name, data_type || if(is_nullable, '', ' NOT NULL') FROM"
        " duckdb_columns() WHERE database_name = 'run_file' AND schema_name = 'main' ORDER BY"
        " table_name, column_index"
    )
    columns: dict[str, dict[str, str]] = {}
    for table, column, kind in database.rows(sql):
        columns.setdefault(table, {})[column] = kind
    return columns


def check_rows(database: Database, provenance: Record) -> None:
    """StoreError for a table with more rows than a writer makes of a run of this size: a small file
    can hold millions of equal rows, and readers load whole tables. Or for one whose texts are too
    long. Reads counts and lengths.
    """
    sides, lists = database.rows("SELECT count(*), count(k) FROM side")[0]
    vocab = min(provenance["vocab"], MAX_VOCAB)
    positions = min(provenance["positions"], MAX_LISTED_ROWS if lists else MAX_ROWS)
    counts = []
    for name, most in _MOST_ROWS.items():
        counts.append(f"SELECT '{name}', (SELECT count(*) FROM {name}), {most} FROM size")
    sql = f"""WITH size AS (
        -- more sides than a run has would overflow the products
        SELECT least($1, 131072)::BIGINT AS sides, $2::BIGINT AS vocab, $3::BIGINT AS positions,
            $4 AS is_list, (SELECT count(*) FROM prompt) AS prompts,
            greatest(0, sides - 1) AS pairs, sides * positions AS places)
        {" UNION ALL ".join(counts)}"""
    for name, count, most in database.rows(sql, [sides, vocab, positions, lists > 0]):
        if count > most:
            raise StoreError(
                f"{database.file}: its table '{name}' has {count:,} rows; expected at most {most:,}"
                " in a run of its size.",
            )
    # those that lists of runs and every page read whole
    for name in ("run", "side", "pair", "vocabulary"):
        texts = [column for column, kind in TABLES[name].types.items() if kind == "VARCHAR"]
        sql = f"SELECT coalesce(sum(length(concat({', '.join(texts)}))), 0)::BIGINT FROM {name}"
        ((length,),) = database.rows(sql)
        if length > TOKENS_TOGETHER:
            raise StoreError(
                f"{database.file}: the texts of its table '{name}' have {length:,} characters;"
                f" expected at most {TOKENS_TOGETHER:,}.",
            )
