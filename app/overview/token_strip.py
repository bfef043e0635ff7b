"""The prompt as wrapped text, each token coloured by a figure at its position; a click or Enter selects the position.

A component of its own because text has to wrap and stay text. Figures travel as columns, as JSON that is written once
for a prompt and a colour.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st

from app.components import component, plots
from app.overview import COLOURS
from app.shell import selection, store_cache
from core.runs.file.records import Prompt
from core.text import number

_strip = component("ulpscope_token_strip", Path(__file__).with_suffix(""))

_UNITS = {  # of the columns that are coloured by their size; {} is the dtype
    "max_abs": "largest difference, logits",
    "max_ulps": "max ULPs of {}, log scale",
    "mean_ulps": "mean ULPs of {}",
    "max_row_ulps": "max row ULPs of {}",
    "neq": "differing logits",
    "kl": "KL, nats, log scale",
}
_WHOLE = ("max_ulps", "neq")
_ROUNDED = ("max_abs", "mean_ulps", "max_row_ulps", "kl")


@dataclass(frozen=True)
class Heat:
    """Colour level of each token, and its legend. `levels` [positions] int, 0 to 100.

    `low` and `high` are the values at the ends of the scale, `stops` the levels between them, from left to right.
    """

    levels: np.ndarray
    unit: str
    low: str | None
    high: str | None
    stops: tuple[int, ...]


def heat(table: pd.DataFrame, colour: str, dtype: str) -> Heat:
    """Colour levels of one prompt's positions, by one of COLOURS."""
    column = COLOURS[colour]
    if column == "is_flip":
        levels = np.where(table["is_flip"], 100, np.where(table["near_tie"], 30, 0))
        return Heat(levels, "no near tie, near tie, flip", None, None, (0, 0, 30, 30, 100, 100))
    if column == "margin":
        margins = table[["reference_margin", "variant_margin"]].min(axis=1).to_numpy(float)
        reach = 2 * table["max_abs"].to_numpy(float)
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(margins <= reach, 1.0, reach / margins)
        unit = "twice the largest difference / smaller margin"
        return Heat(_levels(share), unit, "0", "1 or more: could flip", (0, 100))
    unit = _UNITS[column].format(dtype)
    values = np.nan_to_num(table[column].to_numpy(float))
    highest = float(values.max())
    if highest <= 0:
        return Heat(np.zeros(len(values), int), unit, None, "0 everywhere", (0, 0))
    if not unit.endswith("log scale"):
        return Heat(_levels(values / highest), unit, "0", _figure(highest), (0, 100))
    lowest = float(values[values > 0].min())
    low, high = np.log(lowest) - 0.7, np.log(highest)  # the smallest that differs is still seen
    share = np.where(values > 0, (np.log(np.maximum(values, lowest)) - low) / (high - low), 0.0)
    return Heat(_levels(share), unit, _figure(lowest), _figure(highest), (round(100 * 0.7 / (high - low)), 100))


def _levels(share: np.ndarray) -> np.ndarray:
    """Levels 0 to 100 of shares 0 to 1; what is not 0 is at least 1."""
    share = np.clip(np.nan_to_num(share), 0.0, 1.0)
    return np.where(share > 0, np.maximum(np.rint(100 * share), 1), 0).astype(int)


def _figure(value: float) -> str:
    return f"{int(value):,}" if float(value).is_integer() and abs(value) < 1e9 else number(value, 3)


def columns(
    table: pd.DataFrame, prompt: Prompt, vocabulary: dict[int, str], vocab: int, dtype: str, colour: str
) -> dict[str, Any]:
    """Return the component's data: one list per figure, in the order of the positions; null if undefined."""
    shade = heat(table, colour, dtype)
    argmax = {side: _whole(table[f"{side}_token"]) for side in ("reference", "variant")}
    return {
        "texts": list(prompt.token_texts) or None,
        "ids": list(prompt.token_ids) or None,
        "names": {
            token: vocabulary[token] for tokens in argmax.values() for token in set(tokens) if token in vocabulary
        },
        "vocab": vocab,
        "dtype": dtype,
        "heat": shade.levels.tolist(),
        "legend": {"unit": shade.unit, "low": shade.low, "high": shade.high, "stops": list(shade.stops)},
        "flip": table["is_flip"].astype(int).tolist(),
        "near": table["near_tie"].astype(int).tolist(),
        "odd": table["nonfinite_mismatch"].tolist(),
        **argmax,
        **{f"{side}_margin": _whole(table[f"{side}_margin_ulps"]) for side in argmax},
        **{name: _whole(table[name]) for name in _WHOLE},
        **{name: _four_digits(table[name]) for name in _ROUNDED},
    }


def _whole(column: pd.Series) -> list[int | None]:
    return [None if pd.isna(value) else int(value) for value in column.tolist()]


def _four_digits(column: pd.Series) -> list[float | None]:
    """Figures to four digits: more are in the tables, and this is sent for every position."""
    return [float(f"{value:.4g}") if np.isfinite(value) else None for value in column.to_numpy(float).tolist()]


def token_strip(view: selection.View, colour: str) -> None:
    """Draw the strip of the selected prompt."""
    header, prompt = view.run.header, view.run.header.prompts[view.prompt]

    def to_json() -> str:  # Streamlit writes its data at every run, and that of 4096 positions takes 11 ms
        table = view.prompt_table
        if view.is_list:  # one line per token, also if nothing was compared there
            table = table.set_index("position").reindex(range(prompt.positions))
            whole = {name: table[name].eq(True) for name in ("is_flip", "near_tie", "could_flip")}
            table = table.assign(nonfinite_mismatch=0, **whole)
        figures = columns(table, prompt, view.run.vocabulary, header.vocab, header.compute_dtype, colour)
        return json.dumps(figures)

    of = (view.pair.index, view.prompt, colour)
    columns_json = store_cache.remember("strip", store_cache.stamp_of(view.run), of, to_json)
    data = {
        "columns": plots.by_address(columns_json, "strip"),
        "stamp": selection.stamp(view),
        "position": view.position,
    }
    _strip(key="strip", data=data, on_go_change=_go)


def _go() -> None:
    """Select the clicked position if the open prompt has it; what the browser sends is checked."""
    click, view = st.session_state["strip"].get("go"), selection.current_view()
    if isinstance(click, dict) and view is not None and click.get("stamp") == selection.stamp(view):
        position = click.get("position")
        if isinstance(position, int) and view.first_position <= position <= view.last_position:
            selection.select(position=position)
