"""Compare runs: two or more side by side, before and after an upgrade, in two dtypes, on two devices."""

import numpy as np
import streamlit as st

from app import charts, comparing, state, widgets, words
from core.runs.comparison import distribution, flip_sets, same_tokens

view = widgets.head(
    "Compare runs",
    state.current_view(),
    "The pair of the sidebar beside pairs of other runs. A difference between runs is not a divergence of one: each pair has its own reference.",
)
compared = comparing.pick(view)
if len(compared) == 1:
    st.info("Choose a run to compare with: the same prompts before and after an upgrade, in another dtype, on another device.")
    st.stop()
titles = comparing.names(compared)
differs = comparing.provenance(compared, [widgets.escaped(title) for title in titles])
if not differs.empty:
    st.subheader("What is not the same")
    st.table(differs.map(widgets.escaped), border="horizontal")
st.subheader("Figures")
st.dataframe(comparing.figures(compared, titles), key="compare_figures")
dtypes = {one.run.header.compute_dtype for one in compared}
st.caption(
    "Over all positions of each pair; in brackets the ratio to the first run. ULPs are of each run's own dtype"
    + (": those of different dtypes are different lengths." if len(dtypes) > 1 else f", {dtypes.pop()}.")
)

left, right = st.columns(2, vertical_alignment="bottom")
by = (
    right.segmented_control(
        "By position", list(comparing.BY), format_func=comparing.SHORT.__getitem__, required=True, key="compare_by"
    )
    or "max_abs"
)
left, right = st.columns(2)
with left:
    curves = [(title, *distribution(one.run.histogram(one.pair.index))) for title, one in zip(titles, compared, strict=True)]
    st.plotly_chart(charts.runs_by_distance(curves), key="compare_distributions", theme="streamlit")
    st.caption("Share of the logits that are at least so many ULPs apart; the left end is the share that differs.")
is_same = same_tokens(compared)
with right:
    lines = []
    for title, one in zip(titles, compared, strict=True):
        table = one.table[one.table["prompt"] == view.prompt]
        at = table["position"].to_numpy(int)
        lines.append((title, at, table[by].to_numpy(float, na_value=np.nan), at[table["is_flip"].to_numpy(bool)]))
    st.plotly_chart(charts.runs_by_position(lines, comparing.BY[by], view.position), key="compare_positions", theme="streamlit")
    st.caption("At each position of the selected prompt, crosses are flips; where a line has a gap, nothing differs.")

st.subheader("Flips that they share, and that they do not")
if is_same is False:
    st.warning("These runs are of different tokens, so position 5 of one is not position 5 of another; flips cannot be matched.")
    st.stop()
if is_same is None:
    st.caption("Not every run knows its tokens; positions are matched by their number.")
found = flip_sets(compared)
if not found:
    st.write("No run has a flip.")
    st.stop()
shared = sum(one.is_shared for one in found)
st.markdown(f"**{shared} of {words.plural(len(found), 'position')} that flip anywhere flip in all {len(compared)} runs.**")


def choose() -> None:
    rows = st.session_state["compare_flips"]["selection"]["rows"]
    if rows and rows[0] < len(found):
        state.select(prompt=found[rows[0]].prompt, position=found[rows[0]].position)


st.dataframe(
    comparing.flips(found, compared, titles), hide_index=True, key="compare_flips", on_select=choose, selection_mode="single-row"
)
st.caption("Reference's token → variant's token, where the run flips. A click selects the position on every page.")
