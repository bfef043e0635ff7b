"""ULP heatmap: positions x vocabulary, pooled by maximum; a box zooms in, down to single elements."""

import streamlit as st

from app import charts, state, widgets, words
from core.runs.views import worst_elements

view = widgets.head(
    "ULP heatmap",
    state.current_view(),
    "Rows are positions, columns token ids. Each cell shows the largest distance inside it, ULPs of {dtype}, so a single differing logit stays visible "
    "at every zoom; cells in which nothing differs are empty.",
)
header = view.run.header
whole = {"rows": (0, header.rows), "tokens": (0, header.vocab)}
if st.session_state.get("heatmap_run") != view.run.run_id:
    st.session_state["heatmap_run"] = view.run.run_id
    for axis, full in whole.items():
        st.session_state[f"heatmap_{axis}"] = state.linked_range(axis, full) or full
window_rows, window_tokens = (st.session_state.get(f"heatmap_{axis}", full) for axis, full in whole.items())


def zoom() -> None:
    boxes = (st.session_state.get("heatmap") or {}).get("selection", {}).get("box", [])
    if boxes:
        for axis, values, full in (("rows", boxes[0]["y"], whole["rows"]), ("tokens", boxes[0]["x"], whole["tokens"])):
            low, high = sorted(float(v) for v in values)
            start = min(max(round(low), full[0]), full[1] - 1)
            st.session_state[f"heatmap_{axis}"] = (start, min(max(round(high) + 1, start + 1), full[1]))


def reset() -> None:
    for axis, full in whole.items():
        st.session_state[f"heatmap_{axis}"] = full


def around_position() -> None:
    st.session_state["heatmap_rows"] = (max(0, view.row - 8), min(header.rows, view.row + 9))


is_whole = (window_rows, window_tokens) == (whole["rows"], whole["tokens"])
state.write_window(None if is_whole else window_rows, None if is_whole else window_tokens)
says, to_position, back = st.columns([4, 1.3, 1], vertical_alignment="center")
says.markdown(
    f"rows **{window_rows[0]:,} to {window_rows[1] - 1:,}** of {header.rows:,}, tokens **{window_tokens[0]:,} to {window_tokens[1] - 1:,}** of {header.vocab:,}"
)
to_position.button("Rows at the position", on_click=around_position, width="stretch")
back.button("Whole run", on_click=reset, disabled=is_whole, width="stretch")

window = state.window(view, window_rows, window_tokens)
if view.pair.summary.bit_identical:
    st.success("Nothing to see: the two sides are bit-identical.")
figure = charts.heatmap(window, view.pair.summary.max_ulps, view.dtype, view.row)
st.plotly_chart(
    figure,
    key="heatmap",
    on_select=zoom,
    selection_mode="box",
    theme="streamlit",
    config={"scrollZoom": False, "displaylogo": False},
)
cell = f"{(window.row_edges[1] - window.row_edges[0])} x {(window.token_edges[1] - window.token_edges[0])}"
st.caption(
    f"Drag a box to zoom in. A cell is {cell} logits (positions x tokens); colour is the logarithm of the largest distance, ULPs of {view.dtype}, on one "
    "scale for the whole pair. Red squares: NaN or infinity on one side only. The thin line is the selected position."
)

st.subheader(f"Largest differences at position {view.position}")
worst = worst_elements(view.run, view.pair.index, view.prompt, view.position)
if worst.empty:
    st.write("No logit differs at this position.")
else:
    st.dataframe(
        {
            "token": [words.token(i, t) for i, t in zip(worst["token_id"], worst["text"], strict=True)],
            view.pair.reference: worst["reference_logit"],
            view.pair.variant: worst["variant_logit"],
            "difference": worst["difference"],
            "ULPs": worst["ulps"],
        },
        hide_index=True, key="worst",
        column_config={name: st.column_config.NumberColumn(format="%.9g") for name in (view.pair.reference, view.pair.variant, "difference")},
    )  # fmt: skip
    st.caption(f"The {len(worst)} logits of this position that are furthest apart, exact values; ULPs of {view.dtype}.")
