"""Figures of logits as rows of the run file's tables; places are (prompt, position), [rows, 2]."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...numerics.divergence import RowFigures, SideRows


def _nullable(values: NDArray, kind: pa.DataType | None = None) -> pa.Array:
    """NaN (or a negative token id) becomes null: 'undefined' is not a number."""
    is_null = values < 0 if values.dtype.kind == "i" else np.isnan(values)
    if kind is not None and values.dtype.kind == "f":
        values = np.where(is_null, 0, values).astype(np.int64)
    return pa.array(values, mask=is_null)


def tile_table(pair: int, level: int, rows: NDArray[np.int32], cells: pa.Array) -> pa.Table:
    pairs, levels = np.full(len(rows), pair, np.int32), np.full(len(rows), level, np.int32)
    return pa.table({"pair": pairs, "level": levels, "first_row": rows, "cells": cells})


def position_table(pair: int, places: NDArray[np.int32], figures: RowFigures) -> pa.Table:
    finite = np.maximum(figures.finite, 1)
    return pa.table(
        {
            "pair": np.full(len(places), pair, np.int32),
            "prompt": places[:, 0],
            "position": places[:, 1],
            "neq": figures.neq,
            "bit_identical": figures.is_bit_identical,
            "max_abs": figures.max_abs,
            "rms": figures.rms,
            "max_ulps": figures.max_ulps,
            "max_ulps_token": figures.max_ulps_token.astype(np.int32),
            "mean_ulps": figures.sum_ulps / finite,
            "nonfinite_mismatch": figures.nonfinite_mismatch,
            "reference_token": _nullable(figures.reference_token),
            "variant_token": _nullable(figures.variant_token),
            "is_flip": figures.is_flip,
            "reference_margin": _nullable(figures.reference_margin),
            "variant_margin": _nullable(figures.variant_margin),
            "reference_margin_ulps": _nullable(figures.reference_margin_ulps, pa.int64()),
            "variant_margin_ulps": _nullable(figures.variant_margin_ulps, pa.int64()),
            "near_tie": figures.is_near_tie,
            "is_tie": figures.is_tie,
            "kl": _nullable(figures.kl),
        }
    )


def side_position_table(side: int, places: NDArray[np.int32], figures: SideRows) -> pa.Table:
    return pa.table(
        {
            "side": np.full(len(places), side, np.int32),
            "prompt": places[:, 0],
            "position": places[:, 1],
            "logsumexp": _nullable(figures.logsumexp),
        }
    )


def top_token_table(side: int, places: NDArray[np.int32], figures: SideRows) -> pa.Table:
    k = figures.top_ids.shape[1]
    known = (figures.top_ids >= 0).ravel()
    return pa.table(
        {
            "side": np.full(int(known.sum()), side, np.int32),
            "prompt": np.repeat(places[:, 0], k)[known],
            "position": np.repeat(places[:, 1], k)[known],
            "rank": np.tile(np.arange(k, dtype=np.int32), len(places))[known],
            "token_id": figures.top_ids.ravel()[known],
            "logit": figures.top_logits.ravel()[known].astype(np.float64),
        }
    )
