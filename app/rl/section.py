"""Trainer vs. rollout: the part of the Overview of a run of chosen tokens."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import cycle

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from app.components import plots, tables
from app.overview import PARTS, token_strip
from app.shell import exports, selection, store_cache, widgets
from app.shell.selection import View
from core.plots import rl as charts
from core.rl import queries as rl
from core.rl.figures import FRAMEWORKS
from core.runs.reader import RunReader
from core.text import number, opening, percent, plural

_STRIPS = 3  # heaviest sequences that are drawn token by token
_ALWAYS_DRAWN = ("position", "turn", "rank")


def headline(view: View) -> bool:
    """Draw the headline figures of a run of chosen tokens with what frameworks call normal; False
    for another run.
    """
    if not view.run.has_rollouts:
        return False
    figures = {row["name"]: row for row in store_cache.cached(view.run, rl.figures_of)}
    by_place = store_cache.cached(view.run, rl.at_worst_steps)
    columns = st.columns(len(rl.HEADLINE))
    for column, (name, label) in zip(columns, rl.HEADLINE.items(), strict=True):
        row = figures[name]
        column.metric(
            opening(label),
            number(row["value"]),
            row["usual"] or None,
            "green" if row["is_usual"] else "red",
            delta_arrow="off",
            help=f"{row['definition']}; r = trainer - rollout, nats",
        )
        if by_place:
            values = [f"{place}: {number(of[name])}" for place, of in by_place.items()]
            column.caption(", ".join(values))
    return True


def next_step(view: View) -> None:
    """Draw a button that shows the sequences with the largest share of the KL, where it is: on a
    phone their tab is out of sight.
    """
    label = "See the worst sequences"
    folded = st.popover(label, type="primary", key="worst_sequences", on_change="rerun")
    if folded.open:
        with folded:
            _sequences(view, "heaviest")


def _table(run: RunReader, name: str) -> pd.DataFrame:
    return pd.DataFrame(store_cache.cached(run, rl.summary, name))


def _chart(
    view: View,
    key: str,
    stem: str,
    make: Callable[..., go.Figure],
    table: pd.DataFrame,
    *quantity: str,
) -> None:
    """Draw a chart of a table, or of a quantity in it. stem: last part of the picture's name."""
    plots.draw(
        plots.cached(view.run, quantity, make, table, *quantity),
        key,
        stem,
        of="".join(quantity),
    )


def draw(view: View) -> None:
    """Draw the figures of a framework, and what the difference depends on."""
    run = view.run
    st.subheader("Trainer vs. rollout")
    st.markdown(rl.sentence(store_cache.cached(run, rl.mismatch_json)))
    steps = _table(run, "steps")
    # a file of one step has no chart of steps
    names = PARTS if len(steps) > 1 else PARTS[1:]
    selection.settle("mismatch_part", names)
    kind = st.segmented_control("Show", names, key="mismatch_part", label_visibility="collapsed")
    if kind == "Distribution":
        _distribution(view)
    elif kind == "Depends on":
        _dependence(view)
    elif kind == "Sequences":
        _sequences(view, "mismatch")
    elif kind == "Steps":
        _chart(view, "mismatch_steps", "steps", charts.steps, steps)
        st.caption("Mean |r| and k3 (an estimate of the KL) by training step, log axis.")
    else:
        _figures(view)


def _figures(view: View) -> None:
    selection.settle("framework", FRAMEWORKS)
    framework = st.selectbox(
        "Names and definitions of",
        FRAMEWORKS,
        key="framework",
        width=240,
    )
    words = {None: None, True: "within: ", False: "beyond: "}
    rows = store_cache.cached(view.run, rl.figures_of, framework)
    table = pd.DataFrame(
        {
            "figure": row["name"],
            "value": number(row["value"]),
            "95 % interval": rl.interval_of(row),
            "usual": words[row["is_usual"]] and f"{words[row['is_usual']]}{row['usual']}",
            "definition": f"{row['definition']}, {row['unit']}".removesuffix(", "),
        }
        for row in rows
    )
    tables.draw(table.dropna(axis="columns", how="all"), "mismatch_figures")
    # our own figures have no source
    source = FRAMEWORKS[framework].source
    about = ""
    if source:
        about = f"As {framework} {source} computes them, thresholds at their defaults. "
    st.caption(f"{about}Intervals: bootstrap over sequences.")
    exports.download(
        {"figures": pd.DataFrame(rows)},
        exports.file_stem(view, f"mismatch-{framework}"),
        "mismatch",
        "Download figures",
    )


def _distribution(view: View) -> None:
    run = view.run
    left, right = st.columns(2)
    with left:
        _chart(view, "ratios", "ratios", charts.ratios, _table(run, "histogram"))
        st.caption(
            "Tokens by r, log counts, and their share of the KL (k3). Dashed: bars of TIS and"
            " IcePop.",
        )
    with right:
        _chart(view, "density", "density", charts.density, _table(run, "density"))
        st.caption(
            "Tokens by the rollout's probability and r; beyond the 99.9th percentile of |r| at the"
            " edges.",
        )
    bars = _table(run, "bars").rename(columns={"tokens": "tokens_share", "kl": "kl_share"})
    tables.draw(bars, "mismatch_bars")


def _dependence(view: View) -> None:
    shares = store_cache.cached(view.run, rl.summary, "explained")
    if not shares:
        st.info(
            "The file has no step, environment, entropy, advantage or weight version, and the"
            " tokens are too few.",
        )
        return
    labels = {name: f"{name} ({percent(share)})" for name, share in shares.items()}
    about = "Quantity (share of the variance of |r|)"
    selection.settle("mismatch_by_quantity", labels)
    quantity = widgets.select(about, labels, "mismatch_by_quantity", width=320)
    drawn = [name for name in dict.fromkeys((quantity, *_ALWAYS_DRAWN)) if name in labels]
    columns = cycle(st.columns(len(drawn) if len(drawn) < 4 else 2))
    for name, place in zip(drawn, columns, strict=False):
        with place:
            _chart(
                view,
                f"mismatch_by_{name}",
                f"by-{name}",
                charts.by_value,
                _table(view.run, f"by {name}"),
                name,
            )
    st.caption(
        "Mean |r| with its standard error: by turn, rank and names, else in up to 16 groups of as"
        " many tokens.",
    )


def _sequences(view: View, key: str) -> None:
    table = _table(view.run, "heaviest")
    for rank, row in enumerate(table.head(_STRIPS).itertuples()):
        step = f", step {row.step:.0f}" if pd.notna(row.step) else ""
        share = f"{percent(row.kl_share)} of the KL" if pd.notna(row.kl_share) else "no KL"
        st.markdown(f"**Sequence {row.prompt}**{step}: {share} in {plural(row.tokens, 'token')}")
        # one sequence at a time: a run of rollouts may have a million
        of = replace(
            view,
            prompt=row.prompt,
            position=row.position,
            table=view.run.positions_of(view.pair.index, row.prompt),
        )
        # one scale for all
        highest = view.pair.summary.max_abs
        token_strip.token_strip(of, "largest difference", f"{key}_strip_{rank}", highest)
    pick = partial(selection.select_row, table, f"{key}_sequences")
    columns = table.rename(columns={"prompt": "sequence"})
    columns = columns[["sequence", "position", "kl_share", "tokens", "mean_abs", "step", "name"]]
    tables.draw(columns, f"{key}_sequences", 10, selection_mode="single-row", on_select=pick)
    st.caption("Sequences with the largest share of the KL. Click one, or a token, to select it.")
