"""Layers: first module whose output differs, growth with depth compared with the noise floor, and
positions.
"""

from functools import partial

import numpy as np
import pandas as pd
import streamlit as st

from app.components import plots, tables
from app.internals import parts
from app.shell import exports, selection, store_cache, widgets
from core.numerics.arrays import DataFrame
from core.plots import layers as charts
from core.plots.style import selected_line
from core.runs.queries.layers import (
    BEYOND_FLOOR,
    cells,
    first_beyond,
    first_module,
    furthest_module,
    kind_word,
    modules,
    says_little,
    sentence,
)
from core.text import file_name, multiple, out_of, plural, visible

_MODULE = "layers_module"  # of the session: the name of the open one, '' for the first that differs
_FIRST_COLUMNS = ("module", "ratio", "rms", "floor_rms", "kind", "neq_share", "first_position")


def draw(view: selection.View) -> None:
    """Draw the tab."""
    run = view.run
    pair = view.pair.index
    # The lead is above the choice of prompts that it depends on.
    lead = st.container()
    prompt = parts.prompt_in_scope(view, "layers_scope")
    table = store_cache.cached(run, modules, pair, prompt)
    if table.empty:
        st.info(
            f"None of the compared positions is in prompt {view.prompt}; choose all prompts above.",
        )
        return
    text = sentence(run, pair, table)
    prompts = run.header.prompts if prompt is None else [run.header.prompts[prompt]]
    total = sum(each.positions for each in prompts)
    compared = f"Positions compared: {int(table['positions'].max()):,} of {total:,}."
    first = first_module(table)
    if first is None:
        lead.success(f"{text} {compared}")
        return
    lead.markdown(text)
    nonfinite = table[table["nonfinite_mismatch"] > 0]
    if len(nonfinite):
        begin = nonfinite.iloc[0]
        count = plural(int(begin["nonfinite_mismatch"]), "element")
        st.error(
            f"NaN or infinity on one side only, first in {count} of"
            f" `{widgets.code(begin['module'])}`. Unless the dtype overflows (float16 beyond"
            " 65,504), rounding cannot produce it.",
        )
    # A link may name a module of another run.
    selection.settle(_MODULE, ["", *table["module"]])
    is_open = table["module"] == (st.session_state[_MODULE] or first.module)
    module = table[is_open].iloc[0]

    title = "Growth over depth"
    about = "No noise floor was run for the modules: capture with `--layer-floor 2`."
    has_floor = table["floor_rms"].notna().any()
    if has_floor:
        title, about = _beyond_floor(table, view.dtype)
    st.subheader(title)
    growth = charts.module_growth(table).add_shape(selected_line(int(module.name)))
    plots.draw(growth, "layers_growth", "layers-growth", partial(_open_module, table))
    st.caption(f"Vertical: selected module. {about}")
    options = ["ratio", "neq_share", "max_row_ulps", "max_ulps"]
    _draw_map(view, table, options if has_floor else options[1:])
    st.subheader("Module")
    of_first = f"first module whose output differs: {visible(first.module)}"
    st.selectbox(
        "Module",
        ["", *table["module"]],
        key=_MODULE,
        label_visibility="collapsed",
        format_func=lambda name: visible(name) or of_first,
    )
    _draw_module(view, module)
    st.subheader("Modules")
    hidden = ["ordinal", "block", "positions"]
    if prompt is not None:
        hidden += ["first_prompt"]
    if nonfinite.empty:
        hidden += ["nonfinite_mismatch"]
    columns = [name for name in dict.fromkeys([*_FIRST_COLUMNS, *table]) if name not in hidden]
    shown = table.assign(module=table["module"].map(visible), kind=table["kind"].map(kind_word))
    # 0 of a noise floor of 0 says nothing
    shown["ratio"] = table["ratio"].mask((table["floor_rms"] == 0) & (table["rms"] == 0))
    # Other tables have a column of the name for launches.
    titles = {"ratio": charts.MEASURES["ratio"]}
    tables.draw(shown[columns].rename(columns=titles), "layers_table")
    st.caption(compared)
    rows = partial(run.rows, pair=pair)
    files: dict = {
        "by prompt and module": partial(rows, "layer"),
        "by module and position": partial(rows, "layer_position", prompt=view.prompt),
    }
    exports.download(files, exports.file_stem(view, "layers"), "layers")


def _beyond_floor(table: DataFrame, dtype: str) -> tuple[str, str]:
    """Return the title of the growth over depth, the first module beyond its noise floor or the
    one that comes closest, and what the noise floors are worth.
    """
    beyond = first_beyond(table)
    furthest = furthest_module(table)
    title = "No module is beyond noise"
    if beyond is not None:
        size = "its noise floor is 0"
        if np.isfinite(beyond.ratio):
            size = f"{multiple(beyond.ratio)} its noise floor in {dtype}"
        title = f"First module beyond noise: `{widgets.code(beyond.module)}`, {size}"
    elif furthest is not None:
        title += f" in {dtype}: at most {multiple(furthest.ratio)},"
        title += f" `{widgets.code(furthest.module)}`"
    about = "Dashed: the noise floor of reduction orders alone, and the limit of noise at"
    about += (
        f" {BEYOND_FLOOR:.0f}x. The checks of a verdict in 16 bits allow more: they add rounding."
    )
    unmeasured = int((table["ratio"].isna() & (table["rms"] > 0)).sum())
    if unmeasured and table["floor_rms"].notna().any():
        about += f" {plural(unmeasured, 'module')} without a noise floor: see the table."
    infinite = table.loc[np.isinf(table["ratio"]), "module"]
    if len(infinite):
        about += (
            f" {plural(len(infinite), 'module')} with a noise floor of 0, the first is"
            f" `{widgets.code(infinite.iloc[0])}`: no reordering moves it."
        )
    return title, about + says_little(furthest)


def _open_module(table: DataFrame, chart: str) -> None:
    """Open the clicked module, and on the map select the position."""
    clicked = table.loc[table["ordinal"] == plots.clicked_value(chart, 0), "module"]
    if len(clicked):
        st.session_state[_MODULE] = clicked.iloc[0]
    if chart == "layers_map":
        plots.select_position(chart)


def _draw_map(view: selection.View, table: DataFrame, options: list[str]) -> None:
    run = view.run
    pair = view.pair.index
    prompt = view.prompt
    names = {name: charts.MEASURES[name] for name in options}
    title, choice = st.columns([3, 5], vertical_alignment="bottom")
    title.subheader(parts.where(view))
    with choice:
        measure = widgets.choice("Color", names, "layers_measure")
    grid = store_cache.cached(run, cells, pair, prompt, measure)
    if grid.empty:
        return
    rows, ticks = charts.names_of(modules(run, pair, prompt))
    plots.draw(
        charts.position_map(grid, rows, ticks, measure, view.position),
        "layers_map",
        f"layers-{measure}",
        partial(_open_module, table),
        scope="prompt",
    )
    about = charts.MEASURES[measure]
    if measure == "ratio":
        about = "RMS at the position / noise floor of the module"
    st.caption(f"Modules x positions: {about}. Gray: equal. ▼: selected position.")


def _draw_module(view: selection.View, module: pd.Series) -> None:
    """Draw the difference of a module by position."""
    name = module["module"]
    share = out_of(module["neq"], module["elements"])
    kind = widgets.escape(kind_word(module["kind"]))
    st.markdown(f"`{widgets.code(name)}`, {kind}: {share} elements differ.")
    along = view.run.rows(
        "layer_position", pair=view.pair.index, prompt=view.prompt, ordinal=module["ordinal"]
    )
    if not along["neq"].any():
        st.caption(f"Equal at every compared position of prompt {view.prompt}.")
        return
    plots.draw(
        charts.module_positions(along, view.position),
        "layers_module_chart",
        f"layers-{file_name(name)}",
        plots.select_position,
        scope="prompt",
    )
    st.caption(
        f"RMS difference by position of prompt {view.prompt}. Dotted: noise floor. Log axis:"
        " zeros are not drawn.",
    )
