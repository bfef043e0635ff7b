"""Classes: sides of equal bits as classes, every two classes against each other, and a sweep over its value."""

import streamlit as st

from app.compare import charts
from app.components import plots, tables
from app.shell import exports, selection, store_cache, widgets
from core.runs.queries.classes import bytes_to_compare, classes, every_two, sentence, sweep
from core.text import file_name, plural, size, visible

MEASURES = {name: tables.label(name) for name in ("neq", "max_abs", "max_row_ulps", "max_ulps", "flips")}
WITHOUT_ASKING = 256 << 20  # bytes that are read without a click: about a second
MOST_CLASSES = 64  # that are compared without a click


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

    if len(groups) > 2:
        title, what = st.columns([2, 3], vertical_alignment="bottom")
        title.subheader("Every two classes")
        measure = what.segmented_control(
            "Figure", list(MEASURES), format_func=MEASURES.__getitem__, required=True, key="class_measure"
        )
        total = bytes_to_compare(run, len(groups))
        is_quick = total <= WITHOUT_ASKING and len(groups) <= MOST_CLASSES
        if not is_quick:
            st.markdown(f"Comparing every two of {len(groups)} classes reads {size(total)}.")
            st.button("Compare every two", on_click=st.session_state.__setitem__, args=("classes_asked", run.run_id))
        if is_quick or st.session_state.get("classes_asked") == run.run_id:
            with st.spinner("Comparing every two classes; this continues if you leave the page"):
                pairs = store_cache.cached(run, every_two)
            first_sides = [names[0] for names in groups["sides"]]
            figure = plots.cached(run, (measure,), charts.class_matrix, pairs, first_sides, str(measure))
            picture = exports.picture(f"{stem}-classes-{measure}", exports.of_run(run))
            plots.draw(figure, "class_matrix", picture)
            files["every two classes"] = pairs.assign(compute_dtype=view.dtype)
            st.caption(f"{MEASURES[str(measure)].capitalize()} of every two classes, log scale; gray is equal.")
    exports.download(dict(files), f"{stem}-repeats", "repeats")
