"""Repeats: sides of equal bits as classes, every two classes against each other, and a sweep over its value."""

import streamlit as st

from app.components import figure_cache, plots
from app.repeats import charts, parts
from app.shell import exports, selection, widgets, wording
from core.runs.views.repeats import classes_of, sweep_of
from core.text import file_name, plural

view = widgets.head(
    "Repeats",
    selection.current_view(),
    "All sides of the run at once: those that are equal bit for bit form a class. Distances in ULPs of {dtype}, logits"
    " over a vocabulary of {vocab}.",
)
run = view.run
groups = classes_of(run)
parts.sentence(run, groups)
tables = {"classes": parts.members(run, groups)}
widgets.room("classes", widgets.table_height(len(groups), 10)).dataframe(
    tables["classes"],
    hide_index=True,
    key="classes",
    column_config=parts.COLUMNS,
    on_select=parts.choose(groups),
    selection_mode="single-row",
    placeholder="–",
    height=widgets.table_height(len(groups), 10),
)
st.caption(
    "One row a class, in order of first appearance; figures are of its first side against the reference's class, over"
    f" all positions: largest differences in logits, distances in ULPs of {view.dtype}, shares of"
    f" {plural(run.header.rows, 'position')} x {run.header.vocab:,} logits. A click selects that side on every"
    " page."
)

sweep = sweep_of(run)
if sweep is not None:
    st.subheader(f"Over {widgets.escaped(sweep.name)}")
    tables["sweep"] = parts.swept(run, sweep)
    plots.draw(
        figure_cache.figure(run, (), charts.sweep, tables["sweep"], sweep.name, view.dtype),
        key="sweep",
        picture=exports.picture(
            f"{file_name(run.run_id)}-sweep-{file_name(sweep.name)}",
            [*exports.of_run(run), f"against {run.sides[0].name}"],
        ),
    )
    st.caption(
        f"Each side against the reference `{widgets.code(run.sides[0].name)}`, by its {widgets.code(sweep.name)}; sides"
        f" of one class have one colour. Share of logits that differ, largest difference in logits of {view.dtype},"
        " positions whose argmax differs; over all positions."
    )

if len(groups) > 2:
    title, what = st.columns([2, 3], vertical_alignment="bottom")
    title.subheader("Every two classes")
    measure = (
        what.segmented_control(
            "Figure", list(parts.MEASURES), format_func=parts.MEASURES.__getitem__, required=True, key="class_measure"
        )
        or "neq"
    )
    pairs = parts.every_two(run, groups)
    if pairs is not None:
        names = [group.members[0] for group in groups]
        figure = figure_cache.figure(
            run, (measure,), charts.class_matrix, parts.grid(pairs, len(groups), measure), names, measure
        )
        plots.draw(
            figure,
            key="class_matrix",
            picture=exports.picture(f"{file_name(run.run_id)}-classes-{measure}", exports.of_run(run)),
        )
        tables["every two classes"] = parts.pair_table(pairs, groups, run)
        st.caption(
            f"{wording.opening(parts.MEASURES[measure])}{parts.UNITS[measure].format(dtype=view.dtype)} of every two"
            f" classes, over {plural(run.header.rows, 'position')} x {run.header.vocab:,} logits; a class is"
            " named by its first side, and is empty against itself. Colour is on a log scale, grey is equal."
        )
with st.container(horizontal=True, vertical_alignment="center"):
    exports.download(tables, f"{file_name(run.run_id)}-repeats", "repeats")
    if len(tables) > 1:
        exports.picture_format()
