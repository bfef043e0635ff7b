"""Parts of the KV cache page, and the line on caches of the overview."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

import pandas as pd
import streamlit as st

from app.shell import selection, widgets, wording
from core.runs.views.kv_cache import CacheSummary
from core.text import number, percent, plural, visible

COLUMNS = {name: st.column_config.NumberColumn(format="localized") for name in ("elements", "differ", "max ULPs")} | {
    "share": st.column_config.NumberColumn(format="percent"),
    "largest difference": st.column_config.NumberColumn(format="%.6g"),
    "rms difference": st.column_config.NumberColumn(format="%.6g"),
    **{name: st.column_config.NumberColumn(format="%.4g") for name in ("mean ULPs", "max row ULPs", "rms row ULPs")},
}

MEANINGS = {
    "neq_share": "the share of a head's elements that differ",
    "max_row_ulps": "the largest difference in a head, row ULPs of {dtype}, linear",
    "max_ulps": "the largest distance in a head, ULPs of {dtype}, log scale",
    "rms": "the rms difference in a head, in the unit of the cache, log scale",
}


def nothing_to_compare(view: selection.View) -> NoReturn:
    """Say why there are no caches of this pair and what to do, and stop."""
    others = [view.run.pairs[pair].variant for pair in sorted(view.run.pairs_with_kv)]
    if others:
        names = ", ".join(f"`{widgets.code(name)}`" for name in others)
        st.info(f"This variant has no caches to compare with the reference's. These variants of the run have: {names}.")
        st.button(
            f"Show {widgets.escaped(visible(others[0]))}", on_click=selection.select, kwargs={"variant": others[0]}
        )
    elif view.run.header.provenance.kind == "upload":
        st.info(
            "This run was uploaded, and a dump of logits holds no caches. Capture the pair from its model to compare"
            " them."
        )
    else:
        st.info(
            "This run holds no caches. They are compared where a path of the pair keeps one, as `decode` does; "
            "where none does (`prefill : prefill+batch:8`), only when `--kv` asks for it."
        )
        widgets.same_capture_with("kv", view.run.header.provenance)
    st.stop()


def shape(table: pd.DataFrame) -> str:
    """Size of the caches in words: `6 layers, 8 key/value heads`."""
    return f"{plural(table['layer'].nunique(), 'layer')}, {plural(table['head'].nunique(), 'key/value head')}"


def figures(found: CacheSummary, dtype: str, *, names_prompt: bool) -> None:
    """Draw the headline figures; the last three name one place."""
    columns = st.columns(7)
    for column, name, part in ((columns[0], "Keys", found.keys), (columns[1], "Values", found.values)):
        share = percent(part.neq_share) if part.elements else "none kept"
        column.metric(f"{name} differ", share, help=f"{part.neq:,} of {part.elements:,} elements")
    for column, name, of in (
        (columns[2], "RMS row ULPs", "rms_row_ulps"),
        (columns[3], "Max row ULPs", "max_row_ulps"),
    ):
        value = getattr(found.together, of)
        column.metric(
            name,
            "unknown" if value is None else number(value, 3),
            help=f"in spacings of {dtype} at the largest element of the key or value; {_each(of, found)}",
        )
    first = found.together
    prompt = f"prompt {first.first_prompt}, " if names_prompt else ""
    place = f"first difference: {prompt}layer {first.first_layer}, head {first.first_head}, position"
    for column, name, value in (
        (columns[4], "First layer", first.first_layer),
        (columns[5], "Its first head", first.first_head),
        (columns[6], "Its first position", first.first_position),
    ):
        column.metric(name, f"{value}", help=f"{place} {first.first_position}; {wording.kinds(first.first_kinds)}")


def _each(name: str, found: CacheSummary) -> str:
    """Words on a figure of keys and of values: `keys 17, values 30`."""
    parts = [("keys", getattr(found.keys, name)), ("values", getattr(found.values, name))]
    return ", ".join(f"{kind} {f'{value:,}' if isinstance(value, int) else number(value)}" for kind, value in parts)


def measures(names: Iterable[str], table: pd.DataFrame) -> list[str]:
    """Measures that a page can show: row ULPs are not in files that are older than them."""
    return [name for name in names if name != "max_row_ulps" or table["max_row_ulps"].notna().any()]


def rows(layers: pd.DataFrame) -> dict[str, pd.Series]:
    """The table by layer under names people read."""
    shown = {
        "layer": layers["layer"],
        "kind": layers["kind"],
        "elements": layers["elements"],
        "differ": layers["neq"],
        "share": layers["neq_share"],
        "largest difference": layers["max_abs"],
        "rms difference": layers["rms"],
        "max ULPs": layers["max_ulps"],
        "mean ULPs": layers["mean_ulps"],
        "max row ULPs": layers["max_row_ulps"],
        "rms row ULPs": layers["rms_row_ulps"],
        "first position": layers["first_position"],
    }
    if layers["nonfinite_mismatch"].any():
        shown["NaN or infinity on one side"] = layers["nonfinite_mismatch"]
    return shown
