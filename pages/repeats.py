"""Repeats: sides of equal bits as classes, every two classes against each other, and a sweep over its value."""

import streamlit as st

from app.components import plots
from app.repeats import PAGE, charts, parts
from app.shell import exports, selection, widgets, wording
from core.runs.views.repeats import classes_of, sweep_of
from core.text import file_name, plural

view = widgets.head(PAGE, selection.current_view())
run = view.run
groups = classes_of(run)
parts.draw_sentence(run, groups)
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
    f"Each class against the reference's, over {plural(run.header.rows, 'position')} x {run.header.vocab:,} logits,"
    f" ULPs of {view.dtype}."
)

sweep = sweep_of(run)
if sweep is not None:
    st.subheader(f"Over {widgets.escaped(sweep.name)}")
    tables["sweep"] = parts.swept(run, sweep)
    plots.draw(
        plots.cached(run, (), charts.sweep, tables["sweep"], sweep.name),
        key="sweep",
        picture=exports.picture(
            f"{file_name(run.run_id)}-sweep-{file_name(sweep.name)}",
            [*exports.of_run(run), f"against {run.sides[0].name}"],
        ),
    )
    st.caption(
        f"Each side against `{widgets.code(run.sides[0].name)}`, by its {widgets.code(sweep.name)};"
        f" differences in logits of {view.dtype}, one color per class."
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
        figure = plots.cached(
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
            " classes, log scale; grey is equal."
        )
with st.container(horizontal=True, vertical_alignment="center"):
    exports.download(tables, f"{file_name(run.run_id)}-repeats", "repeats")
