"""Compare runs: two or more side by side, before and after an upgrade, in two dtypes, on two devices."""

from functools import partial
from typing import NoReturn

import numpy as np
import streamlit as st

from app.compare import PAGE, charts, parts
from app.components import plots
from app.shell import exports, selection, widgets, wording
from core.runs.views.compare import distribution, flip_sets, same_tokens, sentence
from core.text import file_name, plural

view = widgets.head(PAGE, selection.current_view())
compared = parts.pick(view)
if len(compared) == 1:
    st.info(
        "Choose a run to compare with: the same prompts before and after an upgrade, in another dtype, on another"
        " device."
    )
    st.stop()
is_same = same_tokens(compared)
if is_same is False:
    st.warning("These runs have different tokens: compare rates only. Positions and flips cannot be matched.")
st.markdown(sentence(compared))
titles = parts.names(compared)
differs = parts.provenance(compared, [widgets.escaped(title) for title in titles])
if not differs.empty:
    st.subheader("Config diff")
    widgets.room("provenance", 28 * (len(differs) + 1)).table(differs.map(widgets.escaped), border="horizontal")
st.subheader("Figures")
figures = parts.figures(compared, titles)
height = widgets.table_height(len(figures), len(figures))
widgets.room("figures", height).dataframe(figures, key="compare_figures", height=height)
dtypes = {one.run.header.compute_dtype for one in compared}
st.caption(
    "Over all positions; in brackets the ratio to the first run. ULPs of "
    + ("each run's own dtype: the units differ." if len(dtypes) > 1 else f"{dtypes.pop()}.")
)

stem = "-".join(["compare", *(file_name(one.run.run_id)[:40] for one in compared[:2])]) + (
    f"-and-{len(compared) - 2}" if len(compared) > 2 else ""
)
tables = {
    "figures": partial(parts.exported, compared),
    f"by position of prompt {view.prompt}": partial(parts.by_position, compared, view.prompt),
    "distances in ULPs": partial(parts.distributions, compared),
}
left, right = st.columns(2, vertical_alignment="bottom")
by = (
    right.segmented_control(
        "By position", list(parts.BY), format_func=parts.SHORT.__getitem__, required=True, key="compare_by"
    )
    or "max_abs"
)
left, right = st.columns(2)
with left:
    with st.spinner("Reading the distances of every run"):
        curves = [(title, *distribution(parts.histogram(one))) for title, one in zip(titles, compared, strict=True)]
    plots.draw(
        charts.runs_by_distance(curves),
        key="compare_distributions",
        picture=exports.picture(f"{stem}-distances", titles),
    )
    st.caption("Share of the logits at least so many ULPs apart, both axes log.")
with right:
    lines = []
    for title, one in zip(titles, compared, strict=True):
        table = one.table[one.table["prompt"] == view.prompt]
        at = table["position"].to_numpy(int)
        lines.append((title, at, table[by].to_numpy(float, na_value=np.nan), at[table["is_flip"].to_numpy(bool)]))
    plots.draw(
        charts.runs_by_position(lines, parts.BY[by], view.position),
        key="compare_positions",
        picture=exports.picture(f"{stem}-{by}-prompt{view.prompt}", [*titles, f"prompt {view.prompt}"]),
    )
    st.caption(
        f"{wording.opening(parts.BY[by].split(',')[0])}{' of each run’s own dtype' if by.endswith('ulps') else ''} by"
        f" position of prompt {view.prompt}; orange crosses are flips."
    )


def saving(tables: dict) -> NoReturn:
    """Draw the downloads, and end the page there."""
    with st.container(horizontal=True, vertical_alignment="center"):
        exports.download(tables, stem, "compare")
    st.stop()


if is_same is False:
    saving(tables)
st.subheader("Shared and unique flips")
if is_same is None:
    st.caption("Some runs have no token ids; positions are matched by number.")
found = flip_sets(compared)
tables["flips"] = partial(parts.flips_exported, found, compared)
if not found:
    st.write("No run has a flip.")
    saving(tables)
shared = sum(one.is_shared for one in found)
st.markdown(f"**{shared:,} of {plural(len(found), 'position')} flip in all {len(compared)} runs.**")


def choose() -> None:
    rows = st.session_state["compare_flips"]["selection"]["rows"]
    if rows and rows[0] < len(found):
        selection.select(prompt=found[rows[0]].prompt, position=found[rows[0]].position)


st.dataframe(
    parts.flips(found, compared, titles),
    hide_index=True,
    key="compare_flips",
    on_select=choose,
    selection_mode="single-row",
)
st.caption("Reference token → variant token; empty if the run does not flip there.")
saving(tables)
