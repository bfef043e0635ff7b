"""Side by side: two or more runs, as before and after an upgrade.

Classes: the sides of equal bits of one run.
"""

from functools import partial

import streamlit as st

from app.compare import charts, parts
from app.components import plots, tables
from app.shell import exports, selection, store_cache, widgets
from core.plots.pairs import runs_by_position
from core.plots.style import selected_line
from core.runs.queries import classes
from core.runs.queries.compare import (
    differing_inputs,
    distribution,
    flips,
    movements,
    same_tokens,
    shared_flips,
)
from core.text import file_name, plural, visible

BY = {
    "max_abs": "difference",
    "max_row_ulps": "row ULPs",
    "max_ulps": "ULPs",
    "rms": "RMS",
    "kl": "KL",
}


def draw(view: selection.View) -> None:
    """Draw the tab."""
    pairs = parts.pick(view)
    if len(pairs) == 1:
        if not st.session_state["compare_runs"]:
            st.info("No other run has this model and vocabulary. Choose any run above.")
        return
    letters = parts.LETTERS[: len(pairs)]
    key = parts.draw_key([one.run for one in pairs], [one.pair.variant for one in pairs])
    are_flips_known = all(one.pair.summary.flips is not None for one in pairs)

    def read() -> tuple:
        """Read what is the same at every position."""
        is_same = same_tokens(pairs)
        all_flips = flips(pairs)
        if is_same is False or not are_flips_known:
            all_flips = all_flips[:0]
        differs = parts.differing([one.facts for one in pairs], letters)
        differs = differs.drop(index=["run", "name", "verdict"], errors="ignore")
        shares = [(letter, distribution(one)) for letter, one in zip(letters, pairs, strict=True)]
        curves = plots.figure_spec(charts.runs_by_distance(shares))
        without_curve = [letter for letter, share in shares if share.empty]
        figures = parts.figure_texts(pairs, letters)
        inputs = ""
        for letter, other in zip(letters[1:], pairs[1:], strict=True):
            if differing := differing_inputs([pairs[0], other]):
                inputs += f"A and {letter}: {', '.join(differing)}. "
        differs = differs.map(widgets.escape)
        return is_same, all_flips, inputs, differs, figures, curves, without_curve

    # Of several files, so the key has the stamp of each.
    of = tuple((store_cache.stamp_of(one.run.path), one.pair.index) for one in pairs)
    everything = store_cache.remember("compare", view.run, of, read)
    is_same, all_flips, inputs, differs, figures, curves, without_curve = everything
    notes = [shared_flips(pairs, all_flips)]
    if inputs:
        limit = "Compare rates only, not positions or flips." if is_same is False else ""
        # no caption: pale orange is too faint
        st.markdown(f":orange[{inputs}{limit}]")
    elif len(pairs) == 2:
        moved, unchanged = (widgets.escape("; ".join(each)) for each in movements(pairs))
        st.markdown(f"**Moved: {moved}.**" if moved else "**Nothing moved.**")
        if unchanged:
            notes.insert(0, f"Unchanged: {unchanged}.")
    if any(notes):
        st.caption(" ".join(filter(None, notes)))
    # a table of four does not fit next to the chart
    left, right = st.columns((3, 2)) if len(pairs) < 4 else (st.container(), st.container())
    are_lists = all(one.run.header.is_list for one in pairs)
    about = "Over all positions; in brackets the ratio to the first run."
    dtypes = {one.run.header.compute_dtype for one in pairs}
    # lists have no ULPs
    if not are_lists:
        unit = f"{dtypes.pop()}." if len(dtypes) == 1 else "each run's own dtype: the units differ."
        about += f" ULPs of {unit}"
    with left:
        room = widgets.room("figures", 28 * (len(figures) + 1))
        room.table(figures.map(widgets.escape), border="horizontal")
        st.caption(about)

    stem = "-".join(["compare", *(file_name(one.run.run_id)[:40] for one in pairs)])
    if not are_lists:
        with right:
            plots.draw(
                curves,
                "compare_distributions",
                exports.picture(f"{stem}-distances", key),
            )
            about = (
                "Share of the logits that differ by at least so many ULPs, both axes log. The drop"
                " at the right is where signs differ: ULPs count every number in between."
            )
            if without_curve:
                about += f" No line: {', '.join(without_curve)} (identical, or no whole rows)."
            st.caption(about)
    if not differs.empty:
        st.subheader("Config diff")
        room = widgets.room("provenance", 28 * (len(differs) + 1))
        room.table(differs, border="horizontal")
    if is_same is not False:
        has_tokens = view.header.has_tokens
        figures_by = {}
        for name, title in BY.items():
            is_known = any(one.table[name].notna().any() for one in pairs)
            if name == "max_abs" or is_known:
                figures_by[name] = title
        by = widgets.choice("By position", figures_by, "compare_by")
        lines = [(letter, one.table) for letter, one in zip(letters, pairs, strict=True)]
        title = tables.label(by)
        if by in ("max_abs", "rms"):
            title += f", {' or '.join(dict.fromkeys(one.run.header.unit for one in pairs))}"
        chart = plots.cached(
            view.run,
            (*of, by, view.prompt),
            runs_by_position,
            lines,
            view.prompt,
            by,
            title,
        )
        chart = chart._replace(shapes=(selected_line(view.position),))
        prompt = f"{'sequence' if view.run.has_rollouts else 'prompt'} {view.prompt}"
        picture = exports.picture(f"{stem}-{by}-prompt{view.prompt}", [*key, prompt])
        plots.draw(chart, "compare_positions", picture)
        notes = [view.header.worded(f"By position of {prompt}.")]
        for letter, table in lines:
            if view.prompt not in table["prompt"].to_numpy():
                notes.append(f"{letter} has no {prompt}.")
        st.caption(" ".join(notes))
        if has_tokens:
            st.subheader("Shared and unique flips")
        if is_same is None:
            st.caption("Some runs have no token ids; positions are matched by number.")
        if has_tokens and not are_flips_known:
            st.write("A run has no top tokens, so its flips are unknown.")
        elif all_flips.empty:
            st.write("No run has a flip." if has_tokens else "Values have no flips.")
        else:
            table = parts.flip_texts(all_flips, pairs, letters)
            tables.draw(
                table,
                "compare_flips",
                on_select=partial(selection.select_row, table, "compare_flips"),
                selection_mode="single-row",
            )
            st.caption(
                "Reference token → variant token; empty if the run has no flip there. Shared flips"
                " come first.",
            )
    of_flips = [pairs[place].run.run_id for place in all_flips["run"]]
    files = {
        "figures": partial(parts.export_runs, pairs),
        "flips": all_flips.assign(run=of_flips),
    }
    exports.download(files, stem, "compare")


def draw_classes(view: selection.View) -> None:
    """Draw the tab of classes, and a sweep over its value."""
    run = view.run
    stem = file_name(run.run_id)
    groups = classes.classes(run)
    # Equal bits on every side are good news.
    say = st.success if len(groups) == 1 else st.markdown
    say(classes.sentence(groups))

    reference = run.sides[0].name

    def choose() -> None:
        """Select the first variant of the class that was clicked."""
        for row in st.session_state["classes"]["selection"]["rows"]:
            for name in groups["sides"][row]:
                if name != reference:
                    selection.select(variant=name)
                    break

    sides = [", ".join(map(visible, names)) for names in groups["sides"]]
    table = groups.assign(sides=sides).drop(columns="side")
    tables.draw(
        table,
        "classes",
        10,
        on_select=choose,
        selection_mode="single-row",
    )
    st.caption(
        f"Each class vs the reference's, over {plural(run.header.rows, 'position')} x"
        f" {run.header.vocab:,} logits, ULPs of {view.dtype}.",
    )
    files = {"classes": table}
    swept = classes.sweep(run)
    if swept is not None:
        name, files["sweep"] = swept
        st.subheader(f"Over {widgets.escape(name)}")
        figure = plots.cached(run, (), charts.sweep, files["sweep"], name)
        of = [*exports.of_run(run), f"vs {reference}"]
        plots.draw(figure, "sweep", exports.picture(f"{stem}-sweep-{file_name(name)}", of))
        against = f"Each side vs `{widgets.code(reference)}`, by its {widgets.code(name)}"
        st.caption(f"{against}; differences in logits of {view.dtype}, one color per class.")
    exports.download(files, f"{stem}-repeats", "repeats")
