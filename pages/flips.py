"""Flips: every position whose argmax differs, with what is needed to see why."""

import pandas as pd
import streamlit as st

from app.components import best_tokens, plots
from app.flips import parts
from app.navigation import FLIPS
from app.shell import exports, selection, store_cache, widgets, wording
from core.runs.queries.flips import MOST_READ, STORED_RANKS, candidates, flip_table, flips_sentence
from core.runs.queries.verdicts import answer_of
from core.text import number, opening, out_of, plural, text_of, visible

view = widgets.head(FLIPS)
run = view.run
pair = view.pair
st.markdown(flips_sentence(view.table))
if run.generations:
    parts.draw_continuations(view)
    st.subheader("Flips along the scored tokens")

# filled below, when the table that the download takes has been read
heading = st.container(
    horizontal=True,
    horizontal_alignment="distribute",
    vertical_alignment="center",
)
listing = "flips"
# whether a position of a list is a near tie is unknown
if not view.is_list:
    with heading:
        listings = ["flips", "flips and near ties"]
        listing = widgets.choice("List", listings, "flips_listed", label_visibility="collapsed")
with_near_ties = listing == "flips and near ties"
# Reads whole rows of logits, some ms each; what is drawn above is there meanwhile.
with st.spinner("Reading the logits at the flips"):
    table = store_cache.cached(run, flip_table, pair.index, near_ties=with_near_ties)
count = int(table["is_flip"].sum())
if not count:
    closest = number(view.prompt_table["reference_margin"].min(), 9)
    about = f"Smallest margin of the reference in this prompt: {closest} {run.header.unit}."
    if not view.is_list:
        about += f" Near ties: {out_of(pair.summary.near_ties, len(view.table))} positions."
    st.info(about)
if table.empty:
    st.stop()
with heading:
    stem = exports.file_stem(view, listing.replace(" ", "-"))
    exports.download({listing: table}, stem, "flips", "Download flips")
parts.draw_positions(table, run, "flip_table", 11, (pair.index, with_near_ties))
if with_near_ties:
    near = int(table["near_tie"].eq(True).sum())
    both = plural(near + count - len(table), "position")
    st.caption(f"{plural(near, 'near tie')}, {plural(count, 'flip')}, both at {both}.")
ranks = table[["reference_token_variant_rank", "variant_token_reference_rank"]].isna().any(axis=1)
unread = int((ranks & table["reference_token"].notna() & table["variant_token"].notna()).sum())
if unread and not view.is_list:
    st.caption(
        f"{plural(unread, 'row')} lack ranks and probabilities: a token is not among the other"
        f" side's {STORED_RANKS} stored tokens, and {MOST_READ} rows of logits were read already.",
    )

figures = view.table.iloc[view.row]
if not (figures["is_flip"] or (with_near_ties and figures["near_tie"])):
    first = table[table["is_flip"]].iloc[0] if count else table.iloc[0]
    st.write(f"The selected position is no {'flip and no near tie' if with_near_ties else 'flip'}.")
    place = {"prompt": int(first["prompt"]), "position": int(first["position"])}
    kind = "flip" if count else "near tie"
    at = f"position {first['position']:,}"
    if view.header.has_several_prompts:
        at = f"prompt {first['prompt']}, {at}"
    st.button(f"Go to the first {kind}, {at}", on_click=selection.select, kwargs=place)
    st.stop()

st.subheader(f"Position {view.position:,}{view.of_prompt}")
if view.texts:
    context = text_of(view.texts[max(0, view.position - 60) : view.position + 1])
    for column, side in zip(st.columns(2), ("reference", "variant"), strict=True):
        token = figures[f"{side}_token"]
        text = widgets.escape(widgets.table_texts([token], run)[0])
        column.caption(f"`{widgets.code(getattr(pair, side))}`: next token {text}")
        choice = "" if pd.isna(token) else run.vocabulary.get(int(token), f"⟨token {int(token)}⟩")
        with column:
            widgets.code_block(context + "▸" + visible(choice) + "◂", wraps=True)
top = store_cache.top(view)
st.markdown("**Margin.** " + parts.explain_flip(figures, top, run.header.unit))
answer = answer_of(run, pair)
reason = widgets.escape(opening(answer.sentence.replace("`", "'"))) if answer.is_judged else ""
st.markdown(f"Verdict of this pair: **{widgets.escape(answer.name)}**. {reason}")
decided = None if view.is_list else candidates(top, run.header.format)
if decided is not None:
    texts = tuple(wording.token(token, run.vocabulary.get(token)) for token in decided.tokens)
    grid = plots.cached(
        run,
        (pair.index, view.prompt, view.position),
        best_tokens.grid_chart,
        decided,
        (pair.reference, pair.variant),
        texts,
        view.dtype,
    )
    plots.draw(grid, "candidates", "candidates", of=str(view.position), scope="position")
    if decided.steps is not None and not len(decided.grid):
        st.caption(
            f"The four logits lie within {plural(decided.steps, 'step')} of {view.dtype}: too many"
            " for lines.",
        )
best_tokens.section(view, is_charted=len(run.sides) > 2)  # two sides are in the figure above
