"""KV cache: which keys and values differ after the whole prompt, by layer and head, by layer and position."""

from functools import partial
from typing import Any

import streamlit as st

from app.components import plots
from app.kv_cache import PAGE, charts, parts
from app.shell import exports, selection, store_cache, widgets, wording
from core.runs.tables.kv_cache import KINDS
from core.runs.views.kv_cache import MEASURES, by_head, by_layer, sentence, summarize
from core.text import plural

view = widgets.head(PAGE, selection.current_view())
everything = view.run.kv(view.pair.index)
if everything.empty:
    parts.nothing_to_compare(view)
lead = st.container()
scope = "this prompt"
if len(view.run.header.prompts) > 1:
    scope = st.segmented_control("Figures of", ["this prompt", "all prompts"], required=True, key="kv_scope") or scope
table = everything if scope == "all prompts" else everything[everything["prompt"] == view.prompt]
shown_of = (view.pair.index, "" if scope == "all prompts" else view.prompt)
found = store_cache.cached("kv heads", store_cache.stamp_of(view.run), shown_of, lambda: summarize(table))
if found is None:
    st.info(f"Prompt {view.prompt} has no caches to compare, other prompts of this run have: choose all prompts above.")
    st.stop()
if not found.together.neq:
    logits = view.table if scope == "all prompts" else view.prompt_table
    lead.success(
        f"{sentence(found, scope == 'all prompts')} That is {parts.shape(table)} of {scope}."
        + (
            " The logits do differ: the difference starts after these keys and values, or was rounded away before it"
            " reached them. See Layers."
            if logits["neq"].any()
            else ""
        )
    )
    st.stop()
lead.markdown(sentence(found, scope == "all prompts"))
if found.together.nonfinite_mismatch:
    st.error(
        f"NaN or infinity on one side only in {plural(found.together.nonfinite_mismatch, 'element')} of the"
        " caches. Unless the dtype overflows (float16 beyond 65,504), rounding cannot produce it."
    )
parts.figures(found, view.dtype, names_prompt=scope == "all prompts")

offered = parts.measures(MEASURES, everything)
if st.session_state.get("kv_measure") not in offered:
    st.session_state["kv_measure"] = offered[0]
measure = (
    st.segmented_control("Measure", offered, format_func=wording.MEASURES.__getitem__, required=True, key="kv_measure")
    or "neq_share"
)


def cache_heads() -> Any:
    return charts.cache_heads(
        [by_head(table, kind, measure) for kind in KINDS if (table["kind"] == kind).any()], measure, view.dtype
    )


plots.draw(
    plots.cached(view.run, (*shown_of, measure), cache_heads),
    key="kv_heads",
    picture=exports.picture_of(view, f"kv-heads-{measure}"),
)
st.caption(f"{parts.shape(table)} of {scope}; color is {parts.MEANINGS[measure].format(dtype=view.dtype)}.")
layers = store_cache.cached("kv layers", store_cache.stamp_of(view.run), shown_of, lambda: by_layer(table))
plots.draw(
    plots.cached(view.run, (*shown_of, measure), charts.over_layers, layers, measure, view.dtype),
    key="kv_layers",
    picture=exports.picture_of(view, f"kv-layers-{measure}"),
)
st.caption("By layer.")

maps = store_cache.kv_positions(view)
differing = {kind: grid for kind, grid in maps.items() if grid.neq_share[grid.neq_share > 0].size}
if differing:
    title, which, what = st.columns([2, 1.2, 3], vertical_alignment="bottom")
    title.subheader(f"Where in {'prompt ' + str(view.prompt) if len(view.run.header.prompts) > 1 else 'the prompt'}")
    kind = next(iter(maps))
    if len(maps) > 1:
        kind = (
            which.segmented_control("Of", list(KINDS), format_func="{}s".format, required=True, key="kv_kind") or kind
        )
    measures = {
        name: wording.MEASURES[name] for name in parts.measures(("neq_share", "max_row_ulps", "max_ulps"), everything)
    }
    if st.session_state.get("kv_colour") not in measures:
        st.session_state["kv_colour"] = "neq_share"
    shown = (
        what.segmented_control(
            "Color", list(measures), format_func=measures.__getitem__, required=True, key="kv_colour"
        )
        or "neq_share"
    )
    grid = maps[kind]

    def pick() -> None:
        position = plots.chosen("kv_map", 0)
        if position is not None:
            selection.select(position=position)

    plots.draw(
        charts.cache_positions(grid, shown, view.dtype, view.position),
        key="kv_map",
        on_pick=pick,
        picture=exports.picture_of(view, f"kv-{kind}s-{shown}", of_prompt=True),
    )
    wide = int(grid.edges[1] - grid.edges[0])
    st.caption(
        f"Layers x positions of the {kind}s; color is "
        + (
            f"max ULPs of {view.dtype}."
            if shown == "max_ulps"
            else f"max row ULPs of {view.dtype}."
            if shown == "max_row_ulps"
            else "the share that differs."
        )
        + (f" A cell shows the largest of {wide} positions." if wide > 1 else "")
    )

st.subheader("By layer")
st.dataframe(parts.rows(layers), hide_index=True, key="kv_table", column_config=parts.COLUMNS, placeholder="–")
st.caption(f"Differences in cache units, distances in ULPs of {view.dtype}.")
with st.container(horizontal=True, vertical_alignment="center"):
    tables = {
        "by layer": layers,
        "by prompt, layer and head": everything,
        "by position": partial(view.run.kv_positions, view.pair.index, view.prompt),
    }
    exports.download(tables, exports.file_stem(view, "kv"), "kv")
    exports.picture_format()
