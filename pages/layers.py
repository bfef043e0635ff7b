"""Layers: which module's output differs first, how that grows with depth beside the rounding floor, and at which
positions.
"""

from functools import partial

import numpy as np
import streamlit as st

from app.components import plots
from app.layers import PAGE, charts, parts
from app.shell import exports, selection, store_cache, widgets
from core.runs.views.layers import MEASURES, count_at_first, module_named, modules_of, sentence, summary_of
from core.text import file_name, plural, visible

view = widgets.head(PAGE, selection.current_view())
everything = view.run.layers(view.pair.index)
if everything.empty:
    parts.nothing_to_compare(view)
prompts = view.run.header.prompts
lead = st.container()
scope = "this prompt"
if len(prompts) > 1:
    scope = (
        st.segmented_control("Figures of", ["this prompt", "all prompts"], required=True, key="layers_scope") or scope
    )
table = everything if scope == "all prompts" else everything[everything["prompt"] == view.prompt]
modules = modules_of(table)
found = summary_of(modules)
if found is None:
    st.info(
        f"None of the positions looked at is in prompt {view.prompt}; other prompts have some: choose all prompts"
        " above."
    )
    st.stop()
said = sentence(found, scope == "all prompts", count_at_first(view.run, view.pair.index, found.first))
first = found.first
if first is None:
    lead.success(f"{said} That is at {plural(found.positions, 'position')} of {scope}.")
    st.stop()
lead.markdown(said)
st.markdown(parts.against_floor(found, modules))
broken = next((each for each in modules if each.nonfinite_mismatch), None)
if broken is not None:
    st.error(
        f"NaN or infinity on one side only, first in {plural(broken.nonfinite_mismatch, 'element')} of"
        f" `{widgets.code(broken.module)}`. Unless the dtype overflows (float16 beyond 65,504), rounding cannot produce"
        " it."
    )
parts.figures(
    found, sum(prompt.positions for prompt in prompts) if scope == "all prompts" else prompts[view.prompt].positions
)

names = ["", *(each.module for each in modules)]
if st.session_state.get("layers_module", "") not in names:
    st.session_state["layers_module"] = ""
shown = module_named(modules, st.session_state.get("layers_module", "")) or first


def open_module(chart: str, *, with_position: bool) -> None:
    """Open the clicked module, and on the map select the position."""
    place = plots.chosen(chart, 0)
    if place is not None and 0 <= place < len(modules):
        st.session_state["layers_module"] = modules[place].module
    if with_position and (position := plots.chosen(chart, 1)) is not None:
        selection.select(position=position)


st.subheader("Growth over depth")
plots.draw(
    charts.module_growth(modules, shown.module),
    key="layers_growth",
    on_pick=partial(open_module, "layers_growth", with_position=False),
    picture=exports.picture_of(view, "layers-growth"),
)
st.caption(f"RMS diff per module, {scope} (native units). Dotted: noise floor.")

is_known = {"ratio": found.has_floor, "max_row_ulps": any(each.max_row_ulps is not None for each in modules)}
options = [name for name in MEASURES if is_known.get(name, True)]
if st.session_state.get("layers_measure") not in options:
    st.session_state["layers_measure"] = options[0]
title, which = st.columns([3, 5], vertical_alignment="bottom")
title.subheader(f"Where in {f'prompt {view.prompt}' if len(prompts) > 1 else 'the prompt'}")
measure = (
    which.segmented_control(
        "Color", options, format_func=parts.MEASURES.__getitem__, required=True, key="layers_measure"
    )
    or options[0]
)
grid = store_cache.layer_grid(view, measure)
if grid.modules:
    plots.draw(
        charts.module_map(grid, shown.module, view.position),
        key="layers_map",
        on_pick=partial(open_module, "layers_map", with_position=True),
        picture=exports.picture_of(view, f"layers-{measure}", of_prompt=True),
    )
    wide = int(np.diff(grid.edges).max())
    st.caption(
        f"Modules x positions; color is {parts.MEANINGS[measure]}."
        + (f" A cell shows the largest of up to {wide} positions." if wide > 1 else "")
        + (
            f" {len(grid.positions):,} of {prompts[view.prompt].positions:,} positions were looked at."
            if len(grid.positions) < prompts[view.prompt].positions
            else ""
        )
    )

begins_at = visible(first.module)
st.subheader("Module")
st.selectbox(
    "Module",
    names,
    key="layers_module",
    label_visibility="collapsed",
    format_func=lambda name: visible(name) if name else f"the first that differs: {begins_at}",
)
st.markdown(parts.module_figures(shown))
along = view.run.layer_positions(view.pair.index, view.prompt, shown.ordinal)


def pick_position() -> None:
    position = plots.chosen("layers_module_chart", 0)
    if position is not None:
        selection.select(position=position)


if along["neq"].any():
    plots.draw(
        charts.module_positions(
            along["position"].to_numpy(int),
            along["rms"].to_numpy(float),
            along["floor_rms"].to_numpy(float, na_value=np.nan),
            view.position,
        ),
        key="layers_module_chart",
        on_pick=pick_position,
        picture=exports.picture_of(view, f"layers-{file_name(shown.module)}", of_prompt=True),
    )
    st.caption(f"RMS diff by position of prompt {view.prompt} (native units). Grey: noise floor.")
else:
    st.caption(f"Equal at every position looked at in prompt {view.prompt}.")

st.subheader("Modules")
st.dataframe(
    parts.rows(modules, scope == "all prompts"),
    hide_index=True,
    key="layers_table",
    column_config=parts.COLUMNS,
    placeholder="–",
)
with st.container(horizontal=True, vertical_alignment="center"):
    tables = {
        "by prompt and module": everything,
        "by module and position": partial(view.run.layer_positions, view.pair.index, view.prompt),
    }
    exports.download(tables, exports.file_stem(view, "layers"), "layers")
    exports.picture_format()
