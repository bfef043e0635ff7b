"""Kernels: what each side launched, side by side: what only one side did, what it did more often, and in which
module.
"""

import pandas as pd
import streamlit as st

from app.kernels import PAGE, parts
from app.shell import exports, selection, widgets
from core.runs.views.kernels import in_words, place_in_words, records_of, side_by_side
from core.runs.views.layers import kernels_where_it_starts
from core.text import plural

view = widgets.head(PAGE, selection.current_view())
reference, variant = (view.run.kernels.get(side) for side in (0, view.pair.index + 1))
if reference is None or variant is None:
    parts.nothing_to_compare(view)
names = view.pair.reference, view.pair.variant
pairs = side_by_side(reference, variant)
tables: dict = {}
start = kernels_where_it_starts(view.run, view.pair.index)
if start is None:
    parts.no_place(view)
else:
    st.subheader("Where it starts")
    st.markdown(place_in_words(start, names, is_one_prompt=len(view.run.header.prompts) == 1))
    there = parts.at_place(start)
    if start.pairs:
        st.dataframe(
            there,
            hide_index=True,
            key="kernels_there",
            column_config=parts.COLUMNS,
            height=widgets.table_height(len(there), 8),
        )
        st.caption("Kernels since the last matching module.")
        tables["where it starts"] = there
st.subheader("All kernels")
st.markdown(in_words(pairs, names))
st.caption(
    f"Profiled {parts.looked_at(reference, names[0])} and {parts.looked_at(variant, names[1])}, prompt 0; launches are"
    " per forward, profiler overhead included."
)
which, what, place = st.columns([3, 2, 1.4], vertical_alignment="bottom")
shown = (
    which.segmented_control(
        "Listed", list(parts.SHOWN), format_func=parts.SHOWN.__getitem__, required=True, key="kernels_shown"
    )
    or "all"
)
libraries = ["any", *dict.fromkeys(pair.library for pair in pairs)]
if st.session_state.get("kernels_library", "any") not in libraries:
    st.session_state["kernels_library"] = "any"
library = what.segmented_control("Source", libraries, required=True, key="kernels_library") or "any"
if place.toggle("Split by module", key="kernels_apart"):
    pairs = side_by_side(reference, variant, by_module=True)
listed = parts.chosen(pairs, shown, library)
if not listed:
    st.success(
        "No kernel is launched by one side only, or more often by one."
        if shown == "differ"
        else "No kernel of that kind ran."
    )
    st.stop()
height = widgets.table_height(len(listed), 16)
picked = widgets.room("kernels", height).dataframe(
    parts.rows(listed),
    hide_index=True,
    key="kernels_table",
    column_config=parts.COLUMNS,
    height=height,
    placeholder="–",
    on_select="rerun",
    selection_mode="single-row",
)
st.caption(
    f"{plural(len(listed), 'kernel')} of {len(pairs):,}; what differs first, then by time. A click shows where it ran."
)
tables |= {"side by side": pd.DataFrame(records_of(pairs)), "reference": reference.table(), "variant": variant.table()}
rows = picked["selection"]["rows"]
if rows and rows[0] < len(listed):
    pair = listed[rows[0]]
    st.subheader(widgets.escaped(pair.name))
    where = pd.concat(
        [parts.of_kernel(each, name, pair) for each, name in zip((reference, variant), names, strict=True)]
    )
    st.dataframe(
        where,
        hide_index=True,
        key="kernel_places",
        column_config=parts.COLUMNS,
        height=widgets.table_height(len(where), 12),
    )
    tables["places"] = where
exports.download(tables, exports.file_stem(view, "kernels"), "kernels")
