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
whole = state.heatmap_extent(view)
window_rows, window_tokens = (st.session_state[f"heatmap_{axis}"] for axis in whole)


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
says, to_position, back = st.columns([4, 1.3, 1], vertical_alignment="center")
says.markdown(
    f"rows **{window_rows[0]:,} to {window_rows[1] - 1:,}** of {header.rows:,}, tokens **{window_tokens[0]:,} to {window_tokens[1] - 1:,}** of {header.vocab:,}"
)
to_position.button("Rows at the position", on_click=around_position, width="stretch")
back.button("Whole run", on_click=reset, disabled=is_whole, width="stretch")

window = state.window(view, window_rows, window_tokens)
if view.pair.summary.bit_identical:
    st.success("Nothing to see: the two sides are bit-identical.")
axis = "position" if len(header.prompts) == 1 else "row: positions of the prompts, one prompt after another"
figure = charts.heatmap(window, view.pair.summary.max_ulps, view.dtype, view.row, axis)
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
    "scale for the whole pair. Red squares: NaN or infinity on one side only. The triangle at the left marks the selected position."
)

title, order = st.columns([3, 1.3], vertical_alignment="bottom")
title.subheader(f"Furthest apart at position {view.position}")
by = order.segmented_control("Order by", ["difference", "ULPs"], default="difference", required=True, key="worst_by")
worst = worst_elements(view.run, view.pair.index, view.prompt, view.position, by_ulps=by == "ULPs")
if worst.empty:
    st.write("No logit differs at this position.")
else:
    st.dataframe(
        {
            "token": [words.token(i, t) for i, t in zip(worst["token_id"], worst["text"], strict=True)],
            view.pair.reference: [words.exact(value) for value in worst["reference_logit"]],
            view.pair.variant: [words.exact(value) for value in worst["variant_logit"]],
            "difference": [words.exact(value) for value in worst["difference"]],
            "ULPs": worst["ulps"],
        },
        hide_index=True, key="worst",
    )  # fmt: skip
    st.caption(
        f"{words.plural(len(worst), 'logit')} of this position, furthest apart first by {'ULPs of ' + view.dtype if by == 'ULPs' else 'absolute difference'}, "
        "exact values. A large number of ULPs with a small difference is a logit near 0."
    )
