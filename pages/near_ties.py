"""Near ties: margins against differences, and the best tokens of both sides at a position."""

import streamlit as st

from app import charts, state, widgets, words

view = widgets.head(
    "Near ties",
    state.current_view(),
    "The margin is the top-1 minus the runner-up. A flip needs two logits to cross, so it is impossible where the smaller margin is more than twice the "
    "largest difference; the dashed line is that bound, a theorem about finite numbers.",
)
table = view.prompt_table


def clicked() -> None:
    position = widgets.chosen_position("near_ties", 0)
    if position is not None:
        state.select(position=position)


st.plotly_chart(
    charts.near_tie_scatter(table, view.texts, view.position),
    key="near_ties",
    on_select=clicked,
    selection_mode="points",
    theme="streamlit",
)
undrawn = int(table[["reference_margin", "variant_margin"]].min(axis=1).isna().sum())
st.caption(
    (f"{words.plural(undrawn, 'position')} without a finite margin cannot be drawn. " if undrawn else "")
    + f"One point a position of this prompt, both axes in logits, log scale. Points below the dashed line are near ties, flips among them; counts are of this prompt. Logits were computed in {view.dtype}. A click selects."
)

st.subheader(f"Best tokens at position {view.position}")
widgets.best_tokens(view)

st.subheader("Margins")
threshold = st.slider("Threshold, ULPs", 0, 64, key="threshold")
st.plotly_chart(charts.margin_distribution(table, threshold, view.dtype), key="margins", theme="streamlit")
close = table[(table["reference_margin_ulps"] <= threshold) | (table["variant_margin_ulps"] <= threshold)]
st.caption(
    f"Positions of this prompt by margin, ULPs of {view.dtype}, both sides. {len(close)} of {len(table)} positions have a margin of at most {threshold} ULPs on a side."
)
listed = close.sort_values(["is_flip", "reference_margin_ulps", "position"], ascending=[False, True, True])
st.dataframe(
    {
        "position": listed["position"],
        "reference argmax": widgets.table_texts(listed["reference_token"], view.run),
        "variant argmax": widgets.table_texts(listed["variant_token"], view.run),
        "flip": listed["is_flip"],
        "reference margin, ULPs": listed["reference_margin_ulps"],
        "variant margin, ULPs": listed["variant_margin_ulps"],
        "largest difference": listed["max_abs"],
    },
    hide_index=True, key="close_margins", height=280, column_config=widgets.EXACT,
)  # fmt: skip
