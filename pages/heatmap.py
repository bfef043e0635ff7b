"""Heatmap: positions x vocabulary, down to single logits; a click selects a position and a
token.
"""

from functools import partial

import streamlit as st

from app.components import tables
from app.heatmap import canvas
from app.navigation import HEATMAP
from app.shell import exports, widgets, wording
from core.runs.queries.elements import every_element, with_texts, worst_elements
from core.runs.queries.flips import SIDES
from core.runs.queries.heatmap import WHOLE_RUN, element, sentence
from core.text import clean, exact, number, plural

view = widgets.head(HEATMAP, needs_rows=True)
run = view.run
pair = view.pair
header = run.header
token = canvas.selected_token(view)
selected = None
if token is not None and run.has_all_logits:
    selected = element(run, pair.index, view.row, token)

with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"):
    st.markdown(sentence(run, view.table), width="content")
    about = "Find a token: text or id" if header.has_tokens else "Find a value: index"
    st.text_input(
        about,
        key="heatmap_token",
        on_change=partial(canvas.show_token, view),
        placeholder=about,
        label_visibility="collapsed",
        width=220,
    )
if token is None and st.session_state["heatmap_token"]:
    st.warning(
        f"{header.worded('No token')} of this run is"
        f" '{widgets.escape(clean(st.session_state['heatmap_token'], 40))}'.",
    )
# Zoom events of a chart of Streamlit's do not reach Python, so the map is a canvas of ours.
canvas.draw(view, selected)
about = "Scroll or pinch to zoom, drag to pan, click to inspect a cell's largest difference."
if header.rows * header.vocab > WHOLE_RUN:
    about += " Runs this large show stored levels only."
st.caption(about)

if selected is not None:
    text = wording.token(token, run.vocabulary.get(selected.token))
    name = widgets.escape(text.removeprefix("token "))
    st.subheader(header.worded(f"Token {name} at position {view.position:,}{view.of_prompt}"))
    st.dataframe(
        {
            "side": [pair.reference, pair.variant],
            header.holds: [exact(selected.reference), exact(selected.variant)],
            "rank (1 = argmax)": [selected.reference_rank, selected.variant_rank],
            "difference": ["", exact(selected.difference)],
            "row ULPs": ["", "" if selected.row_ulps is None else number(selected.row_ulps)],
            "ULPs": [
                "",
                "NaN or infinity on one side" if selected.ulps is None else f"{selected.ulps:,}",
            ],
        },
        hide_index=True,
        key="selected_token",
        column_config={"rank (1 = argmax)": widgets.GROUPED},
    )

if not run.has_all_logits:
    st.info(f"Single logits cannot be shown: {header.without_logits}")
    st.stop()
title, order = st.columns([3, 1.3], vertical_alignment="bottom")
title.subheader(
    header.worded(f"Largest differences at position {view.position:,}{view.of_prompt}"),
)
with order:
    by = widgets.choice("Order by", ["difference", "ULPs"], "worst_by")
place = (pair.index, view.prompt, view.position)
worst = worst_elements(run, *place, by_ulps=by == "ULPs")
if worst.empty:
    st.write(header.worded("No logit differs at this position."))
else:
    names = {"token_id": "index"} | {f"{side}_logit": f"{side}_value" for side in SIDES}
    listing = worst.rename(columns=names)
    if header.has_tokens:
        texts = widgets.table_texts(worst["token_id"], run)
        listing = worst.assign(text=texts).drop(columns="token_id")
    tables.draw(listing, "worst", 12, header.unit)
    says = (
        f"{plural(len(worst), 'logit')} of this position with the largest {by} of {view.dtype},"
        " to the nine digits that tell float32 values apart."
    )
    st.caption(header.worded(says))
files = {
    "largest differences": worst,
    # read when it is downloaded only
    "every logit of the position": lambda: with_texts(run, every_element(run, *place)),
}
exports.download(files, exports.file_stem(view, "heatmap", at_position=True), "heatmap_tables")
