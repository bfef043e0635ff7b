"""Choices: experts and keys that the sides take, by layer and position, and how close they were."""

from functools import partial

import streamlit as st

from app.components import plots, tables
from app.internals import parts
from app.shell import exports, selection, store_cache
from core.plots import layers as charts
from core.runs.queries.choices import by_module, cells, rule, sentence, short_names
from core.text import visible

_HIDDEN = ["ordinal", "first_margin_row_ulps", "first_state"]


def draw(view: selection.View) -> None:
    """Draw the tab."""
    run = view.run
    pair = view.pair.index
    lead = st.container()
    table = store_cache.cached(run, by_module, pair, parts.prompt_in_scope(view, "choices_scope"))
    if table.empty:
        st.info(f"No choice in prompt {view.prompt} is known of both sides.")
        return
    say = lead.markdown if table["differing"].any() else lead.success
    say(sentence(run, pair, table))
    st.caption(rule(run, pair, table))

    grid = store_cache.cached(run, cells, pair, view.prompt)
    if not grid.empty:
        st.subheader(parts.where(view))
        names = short_names(table)
        figure = plots.cached(
            run,
            (pair, view.prompt, view.position),
            charts.position_map,
            grid,
            names,
            names,
            "state",
            view.position,
        )
        plots.draw(figure, "choices_map", "choices", plots.select_position, scope="prompt")
        st.caption(
            "Layers x positions: the worst choice of each cell. Gray: the same. Empty: all keys are"
            " taken. ▼: selected.",
        )
    st.subheader("By layer")
    # what the map shows already
    shown = table.drop(columns=_HIDDEN).assign(module=table["module"].map(visible))
    tables.draw(shown, "choices_table")
    sides = "SELECT * FROM choice WHERE side IN (0, ?) ORDER BY ALL"
    files = {"by layer": table, "every choice": partial(run.query, sides, pair + 1)}
    exports.download(files, exports.file_stem(view, "choices"), "choices")
