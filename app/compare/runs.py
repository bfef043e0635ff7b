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
from core.runs.queries.compare import distribution, flips, movements, same_tokens, shared_flips
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
    titles = parts.names([one.run for one in pairs])
    are_flips_known = all(one.pair.summary.flips is not None for one in pairs)

    def read() -> tuple:
        """Read what is the same at every position."""
        is_same = same_tokens(pairs)
        all_flips = flips(pairs)
        if is_same is False or not are_flips_known:
            all_flips = all_flips[:0]
        differs = parts.differing([one.facts for one in pairs], map(widgets.escape, titles))
        differs = differs.drop(index=["run", "name", "verdict"], errors="ignore")
        shares = [(title, distribution(one)) for title, one in zip(titles, pairs, strict=True)]
        curves = plots.figure_spec(charts.runs_by_distance(shares))
        figures = parts.figure_texts(pairs, titles)
        return is_same, all_flips, differs.map(widgets.escape), figures, curves

    # Of several files, so the key has the stamp of each, and its name, which is no part of it.
    places = [(store_cache.stamp_of(one.run.path), one.pair.index) for one in pairs]
    of = (*places, *titles)
    everything = store_cache.remember("compare", view.run, of, read)
    is_same, all_flips, differs, figures, curves = everything
    if len(pairs) == 1:
        st.info("There is no other run of this model; choose one to compare with.")
    else:
        moved, unchanged = (widgets.escape("; ".join(each)) for each in movements(pairs))
        st.markdown(f"**Moved: {moved}.**" if moved else "**Nothing moved.**")
        # no caption: pale orange is too faint
        if is_same is False:
            st.markdown(":orange[Different tokens: compare rates only, not positions or flips.]")
        notes = [shared_flips(pairs, all_flips)]
        if unchanged:
            notes.insert(0, f"Unchanged: {unchanged}.")
        st.caption(" ".join(filter(None, notes)))
    left, right = st.columns((3, 2))
    height = widgets.table_height(len(figures), len(figures))
    are_lists = all(one.run.header.is_list for one in pairs)
    about = "Over all positions; in brackets the ratio to the oldest run."
    dtypes = {one.run.header.compute_dtype for one in pairs}
    # lists have no ULPs
    if not are_lists:
        unit = f"{dtypes.pop()}." if len(dtypes) == 1 else "each run's own dtype: the units differ."
        about += f" ULPs of {unit}"
    columns = {
        title: st.column_config.TextColumn(alignment="right", width=160, help=title)
        for title in titles
    }
    with left:
        widgets.room("figures", height).dataframe(
            figures,
            key="compare_figures",
            height=height,
            column_config=columns,
        )
        st.caption(about)

    stem = "-".join(["compare", *(file_name(one.run.run_id)[:40] for one in pairs)])
    if not are_lists:
        with right:
            plots.draw(
                curves,
                "compare_distributions",
                exports.picture(f"{stem}-distances", titles),
            )
            st.caption("Share of the logits that differ by at least so many ULPs, both axes log.")
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
        lines = [(title, one.table) for title, one in zip(titles, pairs, strict=True)]
        chart = plots.cached(
            view.run,
            (*of, by, view.prompt),
            runs_by_position,
            lines,
            view.prompt,
            by,
            tables.label(by),
        )
        chart = chart._replace(shapes=(selected_line(view.position),))
        picture = exports.picture(
            f"{stem}-{by}-prompt{view.prompt}", [*titles, f"prompt {view.prompt}"]
        )
        plots.draw(chart, "compare_positions", picture)
        st.caption(f"By position of prompt {view.prompt}; orange crosses are flips.")
        if has_tokens:
            st.subheader("Shared and unique flips")
        if is_same is None:
            st.caption("Some runs have no token ids; positions are matched by number.")
        if has_tokens and not are_flips_known:
            st.write("A run has no top tokens, so its flips are unknown.")
        elif all_flips.empty:
            st.write("No run has a flip." if has_tokens else "Values have no flips.")
        else:
            table = parts.flip_texts(all_flips, pairs, titles)
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
