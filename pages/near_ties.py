"""Near ties: margins against differences, and the best tokens of both sides at a position."""

from functools import partial

import streamlit as st

from app.components import best_tokens, plots
from app.near_ties import PAGE, charts, parts
from app.shell import exports, selection, widgets
from app.sparse import pages as sparse
from core.runs.views.near_ties import sentence
from core.text import plural

view = widgets.head(PAGE, selection.current_view(), sparse.near_ties)
found = st.container()
scope = "this prompt"
with st.container(horizontal=True, gap="large"):
    if len(view.run.header.prompts) > 1:
        scope = (
            st.segmented_control("Positions of", ["this prompt", "all prompts"], required=True, key="near_ties_of")
            or scope
        )
    dragging = st.segmented_control(
        "Drag", list(parts.DRAGGING), default=parts.ZOOMS, required=True, key="near_ties_drag"
    )
table = view.table if scope == "all prompts" else view.prompt_table
found.markdown(sentence(table, view.dtype))
brushed = parts.brushed(view, scope)
texts = [prompt.token_texts for prompt in view.run.header.prompts]

plots.draw(
    plots.cached(
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
    f"Positions of {scope}, logits of {view.dtype}, log scale; positions can flip only below the dashed line."
    + (f" {plural(undrawn, 'position')} without a finite margin cannot be drawn." if undrawn else "")
)

unit, limit = parts.set_threshold()
within = parts.close(table, unit, limit)
listed = table.loc[brushed] if brushed else table[within["reference"] | within["variant"]]
listed = listed.sort_values(
    ["is_flip", "near_tie", "reference_margin_ulps", "position"], ascending=[False, False, True, True]
)
with st.container(horizontal=True, vertical_alignment="center"):
    if brushed:
        counts = [
            plural(int(listed[name].sum()), word) for name, word in (("is_flip", "flip"), ("near_tie", "near tie"))
        ]
        st.markdown(f"**{plural(len(brushed), 'position')} selected**: {', '.join(counts)}")
        st.button("Clear selection", on_click=parts.clear, icon=":material/close:")
    else:
        most = f"{limit:g} logits" if unit == "logits" else plural(int(limit), "ULP")
        st.markdown(f"**{plural(len(listed), 'position')}** with margin ≤ {most}")
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
    on_select=partial(selection.select_row, listed, "close_margins"),
    selection_mode=["single-row", "single-cell"],
    placeholder="–",
)

st.subheader(f"Top tokens at position {view.position}")
best_tokens.section(view)

st.subheader("Margins")
unit, limit = parts.threshold()
plots.draw(
    plots.cached(
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
    f"Positions of {scope} by margin, "
    + (f"ULPs of {view.dtype}" if unit == "ULPs" else f"logits of {view.dtype}")
    + "; the dashed line is the threshold."
)
