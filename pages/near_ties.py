"""Near ties: margins against differences, and the best tokens of both sides at a position."""

from functools import partial

import streamlit as st

from app.components import best_tokens, figure_cache, plots
from app.near_ties import charts, parts
from app.shell import exports, selection, widgets
from core.text import plural

view = widgets.head(
    "Near ties",
    selection.current_view(),
    "The margin is the top-1 minus the runner-up. A flip needs two logits to cross, so it is impossible where the"
    " smaller margin is more than twice the largest difference; the dashed line is that bound, a theorem about finite"
    " numbers.",
)
scope = "this prompt"
with st.container(horizontal=True, gap="large"):
    if len(view.run.header.prompts) > 1:
        scope = (
            st.segmented_control("Positions of", ["this prompt", "all prompts"], required=True, key="near_ties_of")
            or scope
        )
    dragging = st.segmented_control(
        "Dragging", list(parts.DRAGGING), default=parts.ZOOMS, required=True, key="near_ties_drag"
    )
table = view.table if scope == "all prompts" else view.prompt_table
brushed = parts.brushed(view, scope)
texts = [prompt.token_texts for prompt in view.run.header.prompts]

plots.draw(
    figure_cache.figure(
        view.run,
        (view.pair.index, scope, view.prompt, view.position, tuple(brushed), dragging),
        charts.near_tie_scatter,
        table,
        texts,
        (view.prompt, view.position),
        brushed,
        parts.DRAGGING[dragging or parts.ZOOMS],
    ),
    key="near_ties",
    on_pick=partial(parts.follow, view, "near_ties", scope),
    is_brushed=True,
    holds_brush=bool(brushed),
    picture=exports.picture_of(view, "near-ties"),
)
undrawn = int(table[["reference_margin", "variant_margin"]].min(axis=1).isna().sum())
st.caption(
    (f"{plural(undrawn, 'position')} without a finite margin cannot be drawn. " if undrawn else "")
    + f"One point a position of {scope}, both axes in logits, log scale; zeros stand in the shaded gutters. Below the"
    f" dashed line are near ties, flips among them. Logits were computed in {view.dtype}. "
    + (
        "Where positions are many the common kinds are shaded by density, log counts, darkest where they are densest. "
        if len(table) > charts.CROWDED
        else ""
    )
    + (
        "A click selects a position; choose above to drag a box or a lasso for the table below."
        if dragging == parts.ZOOMS
        else "What is dragged around fills the table below; clicks select while dragging zooms."
    )
)

unit, limit = parts.set_threshold()
within = parts.close(table, unit, limit)
listed = table.loc[brushed] if brushed else table[within["reference"] | within["variant"]]
listed = listed.sort_values(
    ["is_flip", "near_tie", "reference_margin_ulps", "position"], ascending=[False, False, True, True]
)
with st.container(horizontal=True, vertical_alignment="center"):
    if brushed:
        flips = plural(int(listed["is_flip"].sum()), "flip")
        st.markdown(
            f"**{plural(len(brushed), 'position')} brushed**, {flips} and"
            f" {plural(int(listed['near_tie'].sum()), 'near tie')} among them"
        )
        st.button("Clear the brush", on_click=parts.clear, icon=":material/close:")
    else:
        st.markdown(f"**{plural(len(listed), 'position')}** within the threshold below")
    exports.download(
        {
            "these positions": partial(parts.exported, listed, view),
            f"all positions of {scope}": partial(parts.exported, table, view),
        },
        exports.file_stem(view, "near-ties"),
        "near_ties",
    )
st.dataframe(
    parts.columns(listed, view),
    hide_index=True,
    key="close_margins",
    height=widgets.table_height(max(len(listed), 1), 7),
    column_config=parts.COLUMNS,
    on_select=partial(parts.choose_row, listed, "close_margins"),
    selection_mode=["single-row", "single-cell"],
    placeholder="–",
)
st.caption(
    f"Margins in ULPs of {view.dtype} and in logits, largest differences in logits. A heading sorts; a click on a row"
    " selects its position on every page."
)

st.subheader(f"Best tokens at position {view.position}")
best_tokens.section(view)

st.subheader("Margins")
unit, limit = parts.threshold()
plots.draw(
    figure_cache.figure(
        view.run,
        (view.pair.index, scope, view.prompt, limit, unit),
        charts.margin_distribution,
        table,
        limit,
        view.dtype,
        unit,
    ),
    key="margins",
    picture=exports.picture_of(view, f"margins-{unit.lower()}"),
)
st.markdown(parts.said(table, unit, limit, view.dtype))
st.caption(
    f"Positions of {scope} by margin, both sides, in bins that double; the dashed line is the threshold. "
    + (f"ULPs of {view.dtype}." if unit == "ULPs" else f"Logits, computed in {view.dtype}.")
)
exports.picture_format()
