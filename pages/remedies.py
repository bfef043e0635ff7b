"""Remedies: what to change so that the sides agree, and what that costs."""

from functools import partial

import streamlit as st

from app.remedies import PAGE, parts
from app.shell import exports, selection, widgets
from core.runs.tables.remedies import advice

view = widgets.head(PAGE, selection.current_view())
tried = view.run.remedies.get(view.pair.index, [])
if not tried:
    parts.nothing_tried(view)
st.markdown(advice(tried))
table = parts.rows(tried)
height = widgets.table_height(len(table), 12)
widgets.room("remedies", height).dataframe(
    table, hide_index=True, key="remedies_table", column_config=parts.COLUMNS, placeholder="–", height=height
)
st.caption(
    f"{parts.names(view)} under each remedy, over all positions, differences in logits. {parts.how_timed(tried)}"
)
tables: dict = {"remedies": partial(parts.exported, tried)}
if prices := view.run.prices:
    st.subheader("What one order costs, by batch size")
    shown = parts.prices(prices)
    tables["prices"] = partial(parts.exported, prices)
    st.dataframe(
        shown, hide_index=True, key="prices", column_config=parts.COLUMNS, height=widgets.table_height(len(shown), 16)
    )
    st.caption(
        "Tokens of the whole batch a second, as it is and with `+invariant`, over"
        f" {prices[0].tokens // prices[0].batch} tokens of text a row."
    )
if missing := parts.unmeasured(tried):
    st.subheader("Not measured here")
    st.markdown(missing)
about = view.run.header.provenance
st.caption(f"Measured on {widgets.escaped(about.device_name or about.device or 'an unknown device')}.")
exports.download(tables, exports.file_stem(view, "remedies"), "remedies")
