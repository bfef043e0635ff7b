"""Near ties: margins against differences, and the top tokens of both sides at a position."""

from functools import partial

import pandas as pd
import streamlit as st

from app.components import best_tokens, plots
from app.flips import parts
from app.navigation import LOGIT_STEPS, NEAR_TIES, PROMPTS
from app.shell import exports, widgets
from core.plots import near_ties as charts
from core.runs.queries.elements import with_argmax_texts
from core.runs.queries.flips import SIDES, near_ties_sentence
from core.text import out_of, plural

view = widgets.head(NEAR_TIES)
# filled when the table is chosen, and stands above the choice
lead = st.container()
scope = PROMPTS[0]
if view.header.has_several_prompts:
    scope = widgets.choice("Positions of", PROMPTS, "near_ties_of")
table = view.table if scope == PROMPTS[1] else view.prompt_table
lead.markdown(near_ties_sentence(table, view.of_prompt if scope == PROMPTS[0] else ""))


place = (view.prompt, view.position)
of = (view.pair.index, scope, view.prompt)
texts = [prompt.token_texts for prompt in view.header.prompts]
scatter = plots.cached(view.run, of, charts.near_tie_scatter, table, texts, view.header.unit)
# The ring is a shape apart from the cached points: a step then draws the ring alone.
scatter = scatter._replace(shapes=(*scatter.shapes, *charts.selection_ring(table, *place)))
plots.draw(scatter, "near_ties", "near-ties", plots.select_place)
undrawn = int(table[["reference_margin", "variant_margin"]].min(axis=1).isna().sum())
about = (
    f"Positions of {scope}, {view.header.quantity}, log scale; positions can flip only below"
    " the dashed line. Ring: the selected one."
)
if undrawn:
    about += f" {plural(undrawn, 'position')} without a finite margin cannot be drawn."
st.caption(about)

st.subheader("Margins")
left, right = st.columns([1, 3], vertical_alignment="bottom")
unit = "logits"
# lists have no ULPs
if not view.is_list:
    with left:
        unit = widgets.choice("Threshold in", ["ULPs", "logits"], "threshold_unit")
if unit == "logits":
    title = f"Threshold, {view.header.unit}"
    limit = float(right.select_slider(title, LOGIT_STEPS, key="threshold_logits"))
else:
    limit = float(right.slider("Threshold, ULPs at the top logit", 0, 64, key="threshold"))
ending = "margin" if unit == "logits" else "margin_ulps"
mask = pd.DataFrame(
    {side: (table[f"{side}_{ending}"] <= limit).fillna(False).astype(bool) for side in SIDES},
)
listing = table[mask.any(axis=1)].sort_values(
    ["is_flip", "near_tie", "reference_margin_ulps", "position"],
    ascending=[False, False, True, True],
)
most = f"{limit:g} {view.header.unit}"
if unit == "ULPs":
    most = plural(int(limit), "ULP") + (f" of {view.dtype}" if view.dtype else "")
    most += " at the top logit"
counts = ", ".join(f"{out_of(int(mask[side].sum()), len(table))} on the {side}" for side in SIDES)
positions = "position" if len(table) == 1 else "positions"
st.markdown(
    f"**{out_of(len(listing), len(table))}** {positions} with margin ≤ {most}: {counts}."
    f" {int(listing['is_flip'].sum()):,} of {plural(int(table['is_flip'].sum()), 'flip')} below the"
    " threshold.",
)
if unit == "ULPs":
    st.caption(
        "Near ties above are in row ULPs: spacings at the largest magnitude of the row. The top"
        " logit may be smaller, and so may its ULP.",
    )
parts.draw_positions(listing, view.run, "close_margins", 7, (*of, unit, limit))
tables = {"these positions": listing, f"all positions of {scope}": table}
files = {title: partial(with_argmax_texts, view.run, rows) for title, rows in tables.items()}
exports.download(files, exports.file_stem(view, "near-ties"), "near_ties")

st.subheader(f"Top tokens at position {view.position:,}{view.of_prompt}")
best_tokens.section(view)
