"""Figures of logits by position: of a pair, and of each side alone.

Places are (prompt, position), [rows, 2].
"""

import numpy as np
import pyarrow as pa

from ...errors import StoreError
from ...numerics.arrays import DataFrame, Places, Record
from ...numerics.divergence import RowFigures, SideRows
from ...numerics.metrics import METRICS, OF_TOKENS, OPEN_IN_LISTS
from ..file.database import Database
from ..file.records import MAX_ROWS, RunHeader
from ..file.table import Table, column, null_if_nan, nullable

POSITION = Table(
    "position",
    """
    -- figures of a pair at each position; of lists at those at which both sides sent a row of equal
    -- context, over the values that both sent
    pair INTEGER -- index of the pair
    prompt INTEGER -- index of the prompt
    position INTEGER -- 0-based token index in its prompt; its logits score the next token
    """,
    [
        column(
            metric.name,
            metric.dtype,
            metric.unit,
            metric.help,
            metric.is_nullable or metric.name in OPEN_IN_LISTS,
        )
        for metric in METRICS
    ],
)

SIDE_POSITION = Table(
    "side_position",
    """
    -- figures of one side at one position
    side INTEGER -- index of the side
    prompt INTEGER -- index of the prompt
    position INTEGER -- 0-based token index in its prompt
    logsumexp DOUBLE NULL -- log of the sum of exp(logit), nats; probability = exp(logit -
    -- logsumexp); null if NaN
    best INTEGER NULL -- of a list: how many of its values are the largest of the whole row
    chosen INTEGER NULL -- of a list: token that was emitted or is given next; null if unknown
    missing INTEGER NULL -- of a list: placeholders in place of values
    is_full BOOLEAN NULL -- unused, null
    """,
)

TOP_TOKEN = Table(
    "top_token",
    """
    -- the 20 largest logits of each side and position, equal ones by token id; of lists every value
    -- that was sent; of other values none
    side INTEGER -- index of the side
    prompt INTEGER -- index of the prompt
    position INTEGER -- 0-based token index in its prompt
    rank INTEGER -- place by logit, counted from 0: 0 is the argmax, which pages and downloads call
    -- rank 1
    token_id INTEGER -- token id
    logit DOUBLE -- its logit, or what side.holds says, exact
    """,
)


def position_rows(pair: int, places: Places, figures: RowFigures) -> pa.Table:
    """Rows of a pair by position."""
    columns: Record = {}
    for metric in METRICS:
        column = values = metric.of(figures)
        is_open = metric.name in OF_TOKENS and not figures.has_tokens
        if metric.is_nullable or is_open:
            # NaN (or a negative token id) becomes null: 'undefined' is not a number
            is_null = values < 0 if values.dtype.kind == "i" else np.isnan(values)
            column = pa.array(np.where(is_null, 0, values).astype(metric.dtype), mask=is_null)
        columns[metric.name] = column
    return POSITION.arrow(pair=pair, prompt=places[:, 0], position=places[:, 1], **columns)


def side_position_rows(side: int, places: Places, figures: SideRows) -> pa.Table:
    """Rows of a side by position."""
    return SIDE_POSITION.arrow(
        side=side,
        prompt=places[:, 0],
        position=places[:, 1],
        logsumexp=null_if_nan(figures.logsumexp),
    )


def top_token_rows(side: int, places: Places, figures: SideRows) -> pa.Table:
    """Rows of a side's top tokens: those that are numbers."""
    rows, ranks = known = np.nonzero(figures.top_ids >= 0)
    prompts, positions = places[rows].T
    return TOP_TOKEN.arrow(
        side=side,
        prompt=prompts,
        position=positions,
        rank=ranks,
        token_id=figures.top_ids[known],
        logit=figures.top_logits[known].astype(np.float64),
    )


def read(database: Database, condition: str, values: list[int]) -> pa.Table:
    """Rows of pair `values[0]` for which `condition` holds."""
    columns = ", ".join(POSITION.names[1:])
    sql = (
        f"SELECT {columns} FROM position WHERE pair = ? AND {condition} ORDER BY prompt, position"
        f" LIMIT {MAX_ROWS}"
    )
    table = database.table(sql, values)
    if table.schema.types != POSITION.arrow().schema.types[1:]:
        raise StoreError(
            f"{database.file}: its table of positions has columns of other types; the file is"
            " damaged.",
        )
    return table


def read_positions(
    database: Database,
    header: RunHeader,
    pair: int,
    prompt: int | None = None,
) -> DataFrame:
    """Figures of a pair, one row per position of every prompt or of one (null if undefined)."""
    of = [pair] if prompt is None else [pair, prompt]
    rows = read(database, "true" if prompt is None else "prompt = ?", of)
    with database.decoding("table of positions"):
        table = rows.to_pandas(types_mapper=nullable)
        if prompt is None and not header.is_list and len(table) != header.rows:
            raise ValueError(f"{len(table)} rows for {header.rows} positions of pair {pair}")
        is_open = header.is_list or not header.has_tokens
        for metric in METRICS:
            if is_open and metric.name in OPEN_IN_LISTS:
                # of lists and values: False, or no number, which numpy's integers do not have
                values = table[metric.name]
                dtype = "Int64" if "int" in metric.dtype else metric.dtype
                table[metric.name] = values.eq(True) if dtype == "bool" else values.astype(dtype)
    return table
