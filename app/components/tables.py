"""Tables of figures: a column's label, unit and format follow from its name and type in the run
file.
"""

import re
from typing import Any

import pandas as pd
import streamlit as st

from app.shell import widgets
from core.text import decimals, exact_decimals, number

# fit side by side in a window of 1280 pixels
COLUMNS_IN_SIGHT = 7

_LABELS = {
    "neq": "elements that differ",
    "neq_share": "differing share",
    "rms": "RMS difference",
    "max_abs": "largest difference",
    "floor_rms": "noise floor, RMS",
    "kl": "KL, nats",
    "kl_share": "share of the KL",
    "tokens_share": "share of the tokens",
    "mean_abs": "mean |r|, nats",
    "is_flip": "flip",
    "agreed_tokens": "common tokens",
    "parting_position": "diverges at",
    "near_tie": "near tie (either side)",
    "behind_choice": "behind another choice",
    "text": "token",
    "first_position": "from position",
    "ratio": "launches, variant / reference",
    "only": "only in",
    "places": "modules",
    "reference_details": "reference shapes or ops",
    "variant_details": "variant shapes or ops",
    "reference_share": "reference throughput",
    "variant_share": "variant throughput",
    "nonfinite_mismatch": "NaN or infinity on one side",
}
# from 0 to 1, drawn in percent
_SHARES = ("share", "probability", "probability_change")
_MOST_STYLED = 500  # rows
_WIDTHS: dict[str, Any] = {
    "name": 240,
    "reference_details": 210,
    "variant_details": 210,
    "only": 75,
    "kind": 100,
    "figure": 140,
    "usual": 190,
    "definition": "large",
}
_ENDINGS = {"_margin_ulps": " margin, ULPs", "_margin": " margin, logits", "_microseconds": ", µs"}


def label(name: str) -> str:
    """Return the label of a column: `reference margin, ULPs` for `reference_margin_ulps`."""
    for ending, words in _ENDINGS.items():
        name = re.sub(f"{ending}$", words, name)
    name = re.sub(r"(\w+)_token_(\w+)_rank", r"rank of \1's token in \2", name)
    name = re.sub(r"(\w+)_token_probability_change", r"Δ probability of \1's token", name)
    return _LABELS.get(name, name.replace("_", " ").replace("ulps", "ULPs"))


def _column(name: str, values: pd.Series, unit: str) -> Any:
    is_pinned = name in ("prompt", "sequence", "position") or None
    title = label(name)
    if values.dtype == bool or not pd.api.types.is_numeric_dtype(values.dtype):
        return st.column_config.Column(title, pinned=is_pinned, width=_WIDTHS.get(name))
    if name.endswith("probability_change"):
        title += ", percentage points"
    elif name.endswith(_SHARES):
        title += ", %"
    elif unit and name in ("max_abs", "difference", "rms"):
        title += f", {unit}"
    return st.column_config.NumberColumn(title, format=_form(name, values), pinned=is_pinned)


def _form(name: str, values: pd.Series) -> str | None:
    """Return how the browser writes every figure of a column; None: as `number` does."""
    if name.endswith("probability_change"):
        return "%+.1f"
    if name.endswith(_SHARES):
        return "%.1f"
    if name == "difference" or name.endswith(("_logit", "_value")):
        return exact_format(values)
    places = decimals(values.dropna().tolist())
    if places is not None:
        return f"%,.{places}f"
    # number by number in a short table only: a row takes 0.2 ms
    return None if len(values) <= _MOST_STYLED else "%.2e"


def exact_format(values: pd.Series) -> str:
    """Return how the browser writes logits of a column: the same decimals, if nine identify all."""
    places = exact_decimals(values.dropna().tolist())
    # nine digits identify a float32
    return "%.9g" if places is None else f"%.{places}f"


def draw(
    table: pd.DataFrame,
    key: str,
    most: int = 16,
    unit: str = "",
    **options: Any,
) -> Any:
    """Draw a table of figures, `most` rows in sight; a column without a value is left out. A toggle
    shows the columns after the first COLUMNS_IN_SIGHT. unit: of differences; options: of
    st.dataframe.
    """
    # pandas drops every column of a table without rows.
    table = table.dropna(axis="columns", how="all") if len(table) else table
    is_wide = len(table.columns) > COLUMNS_IN_SIGHT
    if is_wide and not st.toggle("Show all columns", key=f"{key}_all_columns"):
        table = table.iloc[:, :COLUMNS_IN_SIGHT]
    table = table.copy(deep=False)
    for name in table:
        if name.endswith(_SHARES):
            table[name] = 100 * table[name]
    styled = [name for name in table.select_dtypes("number") if _form(name, table[name]) is None]
    # what is compared has as many decimals
    logits = table.filter(regex="_(logit|value)$")
    figures = {name: logits.stack() if name in logits else table[name] for name in table}
    # Said before the table arrives, so that nothing below jumps.
    height = widgets.table_height(len(table), most)
    return widgets.room(key, height).dataframe(
        table.style.format(number, subset=styled, na_rep="–") if styled else table,
        key=key,
        hide_index=True,
        height=height,
        placeholder="–",
        column_config={name: _column(name, values, unit) for name, values in figures.items()},
        **options,
    )
