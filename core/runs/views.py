"""What a page shows of a run, put together from the file: a window of the heatmap, the logits at a position, the worst elements."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from core.errors import UsageError
from core.numerics import pyramid
from core.numerics.elements import distances, mismatch_mark
from core.numerics.formats import values_of
from core.runs.reader import RunReader

RAW_ELEMENTS = 4 << 20  # a window of at most this many elements is computed from the logits themselves: 60 ms of distances


@dataclass(frozen=True)
class HeatmapWindow:
    """Largest ULP distances of a rectangle. `ulps` [cells of rows, cells of tokens] float64, NaN marks a NaN or infinity mismatch.

    Cell (i, j) covers rows `row_edges[i]` to `row_edges[i + 1]` (half open) and tokens `token_edges[j]` to `token_edges[j + 1]`.
    """

    ulps: NDArray[np.float64]
    is_mismatch: NDArray[np.bool_]
    row_edges: NDArray[np.int64]
    token_edges: NDArray[np.int64]


def heatmap_window(
    run: RunReader, pair: int, rows: tuple[int, int], tokens: tuple[int, int], *, max_rows: int = 300, max_columns: int = 600
) -> HeatmapWindow:
    """Rows and tokens [start, stop) pooled by maximum to at most `max_rows` x `max_columns` cells: nothing that differs is lost.

    Small windows are computed from the logits, large ones from the stored pyramid; there the window grows outwards to whole cells.
    """
    header = run.header
    if not (0 <= rows[0] < rows[1] <= header.rows and 0 <= tokens[0] < tokens[1] <= header.vocab):
        raise UsageError(f"rows {rows} x tokens {tokens} do not lie in {header.rows} rows x {header.vocab} tokens.")
    height, width = rows[1] - rows[0], tokens[1] - tokens[0]
    if height * width <= RAW_ELEMENTS:
        reference = run.read_window(0, rows, tokens)
        variant = run.read_window(pair + 1, rows, tokens)
        cells = distances(reference, variant, header.format)
        level_rows, level_tokens, first_row, first_token = 1, 1, rows[0], tokens[0]
    else:
        level = 0
        while level + 1 < run.levels() and all(
            span <= wanted
            for span, wanted in zip(pyramid.cell_shape(level + 1), (height / max_rows, width / max_columns), strict=True)
        ):
            level += 1
        level_rows, level_tokens = pyramid.cell_shape(level)
        first_row, first_token = rows[0] // level_rows * level_rows, tokens[0] // level_tokens * level_tokens
        cells = run.ulp_cells(pair, level, (first_row, rows[1])).astype(np.uint64)
        cells = cells[:, tokens[0] // level_tokens : -(-tokens[1] // level_tokens)]
    tall, wide = -(-cells.shape[0] // max_rows), -(-cells.shape[1] // max_columns)
    pooled = pyramid.pool(cells, tall, wide)
    is_mismatch = pooled == mismatch_mark(header.format)
    row_edges = first_row + np.minimum(np.arange(pooled.shape[0] + 1) * tall, cells.shape[0]) * level_rows
    token_edges = first_token + np.minimum(np.arange(pooled.shape[1] + 1) * wide, cells.shape[1]) * level_tokens
    return HeatmapWindow(
        ulps=np.where(is_mismatch, np.nan, pooled.astype(np.float64)),
        is_mismatch=is_mismatch,
        row_edges=np.minimum(row_edges, header.rows),
        token_edges=np.minimum(token_edges, header.vocab),
    )


def row_of(run: RunReader, prompt: int, position: int) -> int:
    """The row of a position: prompts lie one after another."""
    return sum(p.positions for p in run.header.prompts[:prompt]) + position


def _texts(run: RunReader, token_ids: Iterable[int]) -> pd.Series:
    """Token texts, None where unknown; of dtype object, because a text column would turn None into NaN."""
    return pd.Series([run.vocabulary.get(int(token)) for token in token_ids], dtype=object)


def top_of_both(run: RunReader, pair: int, prompt: int, position: int, count: int = 8) -> pd.DataFrame:
    """The tokens that are among the `count` best of either side, best of the reference first.

    Columns: token_id, text (null if unknown), reference_logit, variant_logit, reference_rank, variant_rank (0-based), and the
    probabilities of both sides.
    """
    sides = (0, pair + 1)
    tops = [run.top_tokens(side, prompt, position) for side in sides]
    ids = list(dict.fromkeys([*tops[0]["token_id"][:count], *tops[1]["token_id"][:count]]))
    table = {"token_id": ids, "text": _texts(run, ids)}
    row = row_of(run, prompt, position)
    for name, side in zip(("reference", "variant"), sides, strict=True):
        logits = values_of(run.at(side, prompt, position), run.header.format).astype(np.float64)
        chosen = logits[ids]
        table[f"{name}_logit"] = chosen
        table[f"{name}_rank"] = [_rank(logits, token) for token in ids]
        with np.errstate(invalid="ignore"):  # +inf - +inf: the probability is undefined
            table[f"{name}_probability"] = np.exp(chosen - run.logsumexp(side)[row])
    return pd.DataFrame(table)


def _rank(logits: NDArray[np.float64], token: int) -> int:
    """How many tokens stand before this one: larger, or equal with a lower id; NaNs come last, in order of their ids."""
    value = logits[token]
    if np.isnan(value):
        return int((~np.isnan(logits)).sum() + np.isnan(logits[:token]).sum())
    return int((logits > value).sum() + (logits[:token] == value).sum())


def worst_elements(
    run: RunReader, pair: int, prompt: int, position: int, count: int = 12, *, by_ulps: bool = False
) -> pd.DataFrame:
    """The elements of a position that are furthest apart, by absolute difference or by ULPs: token_id, text, both logits, difference, ulps.

    A NaN or infinity that is not met by the same comes first, with null for difference and ulps.
    """
    fmt = run.header.format
    bits = [run.at(side, prompt, position) for side in (0, pair + 1)]
    reference, variant = (values_of(b, fmt).astype(np.float64) for b in bits)
    ulps = distances(bits[0], bits[1], fmt)
    is_mismatch = ulps == mismatch_mark(fmt)
    with np.errstate(invalid="ignore"):
        difference = np.where(ulps == 0, 0.0, variant - reference)
    size = np.where(is_mismatch, np.inf, ulps.astype(np.float64) if by_ulps else np.abs(difference))
    order = np.argsort(-size, kind="stable")[: min(count, int((ulps > 0).sum()))]
    return pd.DataFrame(
        {
            "token_id": order,
            "text": _texts(run, order),
            "reference_logit": reference[order],
            "variant_logit": variant[order],
            "difference": np.where(is_mismatch[order], np.nan, difference[order]),
            "ulps": pd.array(np.where(is_mismatch[order], 0, ulps[order]).astype(np.int64), "Int64"),
        }
    ).assign(ulps=lambda table: table["ulps"].mask(is_mismatch[order]))
