"""Flips: every position whose argmax differs, with what is needed to see why."""

from functools import partial

import pandas as pd
import streamlit as st

from app.components import best_tokens
from app.flips import PAGE, continuations, parts
from app.shell import exports, selection, store_cache, widgets, wording
from app.sparse import pages as sparse
from core.runs.views.flips import sentence
from core.runs.views.verdicts import finding
from core.text import out_of, plural, visible

view = widgets.head(PAGE, selection.current_view(), sparse.flips)
st.markdown(sentence(view.table))
if view.run.generations:
    continuations.section(view)
    st.subheader("Flips along the scored tokens")

table = view.table
heading = st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center")
with heading:
    listing = (
        st.segmented_control(
            "List", ["flips", "flips and near ties"], required=True, key="flips_listed", label_visibility="collapsed"
        )
        or "flips"
    )
has_near_ties = listing != "flips"
found = parts.table(view, has_near_ties)
count = int(found["is_flip"].sum())
if not count:
    closest = view.prompt_table["reference_margin"].min()
    st.info(
        f"The smallest reference margin of this prompt is {wording.logit(closest)} logits; "
        f"{out_of(view.pair.summary.near_ties, len(table))} positions of the run are near ties."
    )
if found.empty:
    st.stop()
with heading:
    exports.download({listing: found}, exports.file_stem(view, listing.replace(" ", "-")), "flips")
st.dataframe(
    parts.columns(found, view, has_near_ties),
    hide_index=True,
    key="flip_table",
    on_select=partial(selection.select_row, found, "flip_table"),
    selection_mode=["single-row", "single-cell"],
    column_config=parts.COLUMNS,
    placeholder="–",
    height=widgets.table_height(len(found), 11),
)
counted = f"{plural(count, 'flip')} and {plural(len(found) - count, 'near tie')} in {plural(len(table), 'position')}."
if said := (counted if has_near_ties else "") + parts.unread(found):
    st.caption(said)

here = view.here
if not (here["is_flip"] or (has_near_ties and here["near_tie"])):
    st.write(f"The selected position is no {'flip and no near tie' if has_near_ties else 'flip'}.")
    first = found[found["is_flip"]].iloc[0] if count else found.iloc[0]
    st.button(
        f"Go to the first {'flip' if count else 'near tie'}, position {first['position']:,}",
        on_click=selection.select,
        kwargs={"prompt": int(first["prompt"]), "position": int(first["position"])},
    )
    st.stop()

st.subheader(f"Position {view.position}")
if view.texts:
    before = "".join(view.texts[max(0, view.position - 60) : view.position + 1])
    for column, side in zip(st.columns(2), parts.SIDES, strict=True):
        token = here[f"{side}_token"]
        name = getattr(view.pair, side)
        column.caption(
            f"`{widgets.code(name)}`: next token {widgets.escaped(widgets.table_texts([token], view.run)[0])}"
        )
        chosen = "" if pd.isna(token) else view.run.vocabulary.get(int(token), f"⟨token {int(token)}⟩")
        with column:
            widgets.code_block(before + "▸" + visible(chosen) + "◂", wraps=True)
top = store_cache.top(view)
st.markdown("**Why it could flip.** " + parts.why(here, top))
st.markdown(parts.is_it_rounding(finding(view.run, view.pair, view.table)))
parts.draw_candidates(view, top)
best_tokens.section(view)
