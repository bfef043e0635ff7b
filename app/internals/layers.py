"""Layers: first module whose output differs, growth with depth compared with the noise floor, and
positions.
"""

from functools import partial

import numpy as np
import streamlit as st

from app.components import plots, tables
from app.internals import parts
from app.shell import exports, selection, store_cache, widgets
from core.plots import layers as charts
from core.plots.style import selected_line
from core.runs.queries.layers import (
    cells,
    first_module,
    furthest_module,
    kind_word,
    modules,
    says_little,
    sentence,
)
from core.text import file_name, number, out_of, percent, plural, visible


def draw(view: selection.View) -> None:
    """Draw the tab."""
    run, pair, prompts = view.run, view.pair.index, view.run.header.prompts
    lead = st.container()
    prompt = parts.prompt_in_scope(view, "layers_scope")
    table = store_cache.cached(run, modules, pair, prompt)
    if table.empty:
        st.info(
            f"None of the compared positions is in prompt {view.prompt}; choose all prompts above.",
        )
        return
    text = sentence(run, pair, table, names_prompt=prompt is None)
    first, furthest = first_module(table), furthest_module(table)
    positions = int(table["positions"].max())
    total = sum(each.positions for number, each in enumerate(prompts) if prompt in (None, number))
    if first is None:
        lead.success(f"{text} Positions compared: {positions:,}.")
        return
    lead.markdown(text)
    has_floor = bool(table["floor_rms"].notna().any())
    if not has_floor:
        st.markdown(
            "No noise floor was run for the modules; capture with `--layer-floor 2` to have one.",
        )
    if furthest is not None:
        place = f"`{widgets.code(furthest.module)}`, {number(furthest.ratio, 3)}x"
        st.markdown(
            f"Highest RMS / noise floor of a module ({widgets.escape(furthest.dtype)}):"
            f" {place}.{says_little(furthest)}",
        )
    infinite = table[np.isinf(table["ratio"])]
    if len(infinite):
        name = widgets.code(infinite["module"].iloc[0])
        st.markdown(
            f"In {plural(len(infinite), 'module')} the pair differs and no reordering does, the"
            f" first is `{name}`.",
        )
    nonfinite = table[table["nonfinite_mismatch"] > 0]
    if len(nonfinite):
        count, name = (
            plural(int(nonfinite["nonfinite_mismatch"].iloc[0]), "element"),
            nonfinite["module"].iloc[0],
        )
        st.error(
            f"NaN or infinity on one side only, first in {count} of `{widgets.code(name)}`. Unless"
            " the dtype overflows (float16 beyond 65,504), rounding cannot produce it.",
        )
    last = table.iloc[-1]
    figures = st.columns(4)
    figures[0].metric(
        "First difference",
        charts.short_name(first.module, first.kind, first.block),
        help=visible(first.module),
    )
    figures[1].metric(
        "Logits that differ",
        percent(last["neq_share"]),
        help=out_of(last["neq"], last["elements"]),
    )
    worst = (
        "no floor" if not has_floor else "floor is 0" if len(infinite) and furthest is None else "0"
    )
    worst = worst if furthest is None else f"{number(furthest.ratio, 3)}x"
    figures[2].metric("Max RMS / noise floor", worst, help="Of a module, over all positions.")
    figures[3].metric("Positions compared", f"{positions:,} of {total:,}")

    choices = ["", *table["module"]]
    if st.session_state.get("layers_module") not in choices:
        st.session_state["layers_module"] = ""
    module = table[table["module"] == (st.session_state["layers_module"] or first.module)].iloc[0]

    def open_module(chart: str) -> None:
        """Open the clicked module, and on the map select the position."""
        place, position = plots.clicked_value(chart, 0), plots.clicked_value(chart, 1)
        if place is not None and (table["ordinal"] == place).any():
            st.session_state["layers_module"] = table.loc[table["ordinal"] == place, "module"].iloc[
                0
            ]
        if chart == "layers_map" and position is not None:
            selection.select(position=position)

    st.subheader("Growth over depth")
    picture = exports.picture_of(view, "layers-growth")
    growth = charts.module_growth(table).add_shape(selected_line(int(module.name)))
    plots.draw(growth, "layers_growth", picture, partial(open_module, "layers_growth"))
    st.caption(
        "RMS difference of each module. Line: residual stream. Dotted: its noise floor. Vertical:"
        " selected module.",
    )

    title, choice = st.columns([3, 5], vertical_alignment="bottom")
    title.subheader(f"Where in {f'prompt {view.prompt}' if len(prompts) > 1 else 'the prompt'}")
    with choice:
        options = [
            name
            for name in ("ratio", "neq_share", "max_row_ulps", "max_ulps")
            if has_floor or name != "ratio"
        ]
        measure = parts.measure("Color", options, charts.MEASURES, "layers_measure")
    grid = store_cache.cached(run, cells, pair, view.prompt, measure)
    if len(grid):
        names, ticks = charts.names_of(modules(run, pair, view.prompt))
        figure = charts.position_map(grid, names, ticks, measure, view.position)
        picture = exports.picture_of(view, f"layers-{measure}", of_prompt=True)
        plots.draw(figure, "layers_map", picture, partial(open_module, "layers_map"))
        ratio = (
            "RMS at the position / noise floor of the module"
            if measure == "ratio"
            else charts.MEASURES[measure]
        )
        st.caption(f"Modules x positions: {ratio}. Gray: equal. ▼: selected position.")

    st.subheader("Module")
    begins_at = visible(first.module)
    st.selectbox(
        "Module",
        choices,
        key="layers_module",
        label_visibility="collapsed",
        format_func=lambda name: (
            visible(name) if name else f"first module whose output differs: {begins_at}"
        ),
    )
    share = out_of(module["neq"], module["elements"])
    st.markdown(
        f"`{widgets.code(module['module'])}`, {widgets.escape(kind_word(module['kind']))}: {share}"
        " elements differ.",
    )
    along = run.rows("layer_position", pair=pair, prompt=view.prompt, ordinal=module["ordinal"])

    if along["neq"].any():
        figure, key = charts.module_positions(along, view.position), "layers_module_chart"
        picture = exports.picture_of(view, f"layers-{file_name(module['module'])}", of_prompt=True)
        plots.draw(figure, key, picture, partial(plots.select_position, key))
        st.caption(
            f"RMS difference by position of prompt {view.prompt}. Dotted: noise floor. Log axis:"
            " zeros are not drawn.",
        )
    else:
        st.caption(f"Equal at every compared position of prompt {view.prompt}.")

    st.subheader("Modules")
    hidden = ["ordinal", "block", "positions", *(["first_prompt"] if prompt is not None else [])]
    hidden += [] if len(nonfinite) else ["nonfinite_mismatch"]
    first_columns = ["module", "kind", "neq_share", "rms", "floor_rms", "ratio", "first_position"]
    columns = [
        name for name in dict.fromkeys([*first_columns, *table.columns]) if name not in hidden
    ]
    texts = {"module": table["module"].map(visible), "kind": table["kind"].map(kind_word)}
    tables.draw(
        table.assign(**texts)[columns].rename(columns={"ratio": charts.MEASURES["ratio"]}),
        "layers_table",
    )
    files: dict = {
        "by prompt and module": partial(run.rows, "layer", pair=pair),
        "by module and position": partial(
            run.rows,
            "layer_position",
            pair=pair,
            prompt=view.prompt,
        ),
    }
    exports.download(files, exports.file_stem(view, "layers"), "layers")
