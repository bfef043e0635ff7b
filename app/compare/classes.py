"""Classes: sides of equal bits as classes, and a sweep over its value."""

import streamlit as st

from app.compare import charts
from app.components import plots, tables
from app.shell import exports, selection, widgets
from core.runs.queries.classes import classes, sentence, sweep
from core.text import file_name, plural, visible


def draw(view: selection.View) -> None:
    """Draw the tab."""
    run, stem = view.run, file_name(view.run.run_id)
    groups = classes(run)
    (st.success if len(groups) == 1 else st.markdown)(sentence(groups))

    def choose() -> None:
        """Select the first variant of the class that was clicked."""
        rows = st.session_state["classes"]["selection"]["rows"]
        if rows and rows[0] < len(groups):
            names = list(groups["sides"][rows[0]])[0 if groups["side"][rows[0]] else 1 :]
            if names:
                selection.select(variant=names[0])

    table = groups.assign(sides=[", ".join(map(visible, names)) for names in groups["sides"]]).drop(columns="side")
    tables.draw(table, "classes", 10, on_select=choose, selection_mode="single-row")
    st.caption(
        f"Each class vs the reference's, over {plural(run.header.rows, 'position')} x {run.header.vocab:,} logits,"
        f" ULPs of {view.dtype}."
    )
    files = {"classes": table}
    swept = sweep(run)
    if swept is not None:
        name, files["sweep"] = swept
        st.subheader(f"Over {widgets.escape(name)}")
        figure = plots.cached(run, (), charts.sweep, files["sweep"], name)
        of = [*exports.of_run(run), f"vs {run.sides[0].name}"]
        plots.draw(figure, "sweep", exports.picture(f"{stem}-sweep-{file_name(name)}", of))
        against = f"Each side vs `{widgets.code(run.sides[0].name)}`, by its {widgets.code(name)}"
        st.caption(f"{against}; differences in logits of {view.dtype}, one color per class.")
    exports.download(files, f"{stem}-repeats", "repeats")
