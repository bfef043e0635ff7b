"""Overview: the verdict, the pair by position, its flips and the prompt as a strip of tokens."""

from functools import partial

import pandas as pd
import streamlit as st

from app import navigation
from app.components import best_tokens
from app.navigation import OVERVIEW
from app.overview import figures, lines, positions, token_strip
from app.rl import section
from app.shell import address, exports, store_cache, widgets
from app.verdict import panel

view = widgets.head(OVERVIEW)
answer = panel.verdict(view)
figures.server_state(view)
figures.nonfinite(view)
is_rollout = section.headline(view)
if is_rollout:
    section.draw(view)
else:
    figures.headline(view)
positions.chart(view, is_rollout=is_rollout)

if view.header.has_tokens:
    left, right = st.columns([5, 3])
    with left:
        if not is_rollout:
            positions.flips(view)
        token_strip.section(view, is_rollout=is_rollout)
    with right:
        what = "Token" if is_rollout else "Top tokens"
        of_prompt = "" if is_rollout else view.of_prompt
        st.subheader(f"{what} at position {view.position:,}{of_prompt}")
        best_tokens.short(view)
else:
    token_strip.section(view, is_rollout=False)
panel.checks(answer)

# what other pages show of the pair
for part, line in store_cache.cached(view.run, lines.lines, view.pair.index).items():
    left, right = st.columns([5, 1], vertical_alignment="center")
    left.markdown(line)
    script = widgets.PAGES / f"{navigation.PAGE_OF[part].name}.py"
    right.page_link(
        script, label=f"{navigation.PARTS[part].title} →", query_params=address.of(view, part)
    )
if len(view.run.sides) > 2:
    classes = [", ".join(f"`{widgets.code(side)}`" for side in each) for each in view.run.classes]
    groups = "  ".join(f"{{ {each} }}" for each in classes)
    st.markdown(f"**Bit-identical classes** of the {len(view.run.sides)} sides: {groups}")
if not view.pair.summary.bit_identical and view.header.has_tokens:
    widgets.causes(view)
panel.report(view)
if not view.is_list:
    figures.more(view)
sides = pd.DataFrame([vars(side) for side in view.run.sides])
figures.provenance(view, sides)


def _distances() -> pd.DataFrame:
    histogram = view.run.histogram(view.pair.index)
    return pd.DataFrame(histogram.items(), columns=["distance_ulps", "elements"])


files = {
    "figures by position": view.table,
    "distances in ULPs": _distances,
    "evidence": partial(panel.evidence_table, view),
    "pair and floor by position": partial(view.run.rows, "floor_position", pair=view.pair.index),
    "sides": sides,
}
exports.download(files, exports.file_stem(view, "overview"), "overview")
