"""Parts of the Machine page: what differs between machines, the form that probes this one, the
choice of probes, their table and chart.
"""

from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from app.compare import parts as compare
from app.shell import selection, store_cache, store_changes, widgets
from app.shell.jobs import ANY_DEVICE, DEVICES, queue_of
from core.numerics.formats import LOGIT_FORMATS
from core.plots.style import inert, layout
from core.runs.queries.compare import machine
from core.runs.store.cards import RunCard
from core.runs.tables.ops import OpRow, answers, title
from core.text import legible, plural

_MOST_LINES = 60  # of the chart


def machines(view: selection.View) -> None:
    """Draw what differs between the machines of the selected runs, and what they share."""
    runs = []
    for run_id in (view.run.run_id, *compare.pick_runs(view)):
        with widgets.report_errors():
            runs.append(store_cache.open_run(run_id))
    facts = [machine(run) for run in runs]
    compare.draw_key(runs, [fact["device"] for fact in facts])
    letters = compare.LETTERS[: len(runs)]
    differs = compare.differing(facts, letters).map(legible).map(widgets.escape)
    same = {name: value for name, value in facts[0].items() if name not in differs.index}
    if not any(any(each.values()) for each in facts):
        what = "these runs were" if len(runs) > 1 else "this run was"
        st.markdown(f"**No machine is recorded: {what} uploaded.**")
        return
    if len(runs) > 1:
        total = plural(len(same) + len(differs), "recorded fact")
        count = f"{len(differs):,} of {total} differ"
        st.markdown(f"**{count}.**" if len(differs) else "**The machines record the same facts.**")
    if len(differs):
        st.table(differs, border="horizontal")
    if same:
        with st.expander(f"{plural(len(same), 'fact')} alike", expanded=differs.empty):
            texts = {name: widgets.escape(legible(value or "–")) for name, value in same.items()}
            st.table(texts, border="horizontal")


def form() -> None:
    """Draw what to probe on this machine, and the button that does it in a process of its own."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        device = st.selectbox("Device", DEVICES, key="ops_device")
        dtypes = st.multiselect(
            "dtypes",
            LOGIT_FORMATS,
            default=["float32", "bfloat16"],
            key="ops_dtypes",
            wrap=True,
        )
        scope = st.selectbox(
            "Sizes",
            ["quick", "all"],
            key="ops_scope",
            help="quick: seconds; all: minutes",
        )
        model = st.text_input(
            "Linear maps of a model",
            key="ops_model",
            placeholder="none",
        )
        if widgets.button(
            "Probe this machine",
            "ops_start",
            type="primary",
            disabled=not dtypes,
        ):
            store_changes.submit(
                arguments(device, dtypes, scope, model),
                title=f"Operations in {', '.join(dtypes)}, {scope} sizes",
                device=queue_of(None if device == ANY_DEVICE else device),
            )


def arguments(device: str, dtypes: Sequence[str], scope: str, model: str) -> list[str]:
    """Command line of a job."""
    line = ["ops"] if device == ANY_DEVICE else ["ops", "--device", device]
    for dtype in dtypes:
        line += ["--dtype", dtype]
    if scope == "quick":
        line.append("--quick")
    if model.strip():
        line.append(f"--model={model.strip()}")
    return line


def pick(cards: Sequence[RunCard]) -> str:
    """Draw the choice of a run of probes, newest first, and return its id."""
    names = {
        card.run_id: f"{card.name} · {card.device} · {card.created:%Y-%m-%d %H:%M}"
        for card in cards
    }
    # The session holds what a link names, which may be of another store.
    linked = st.session_state["ops_run"]
    if linked not in names:
        if linked:
            st.warning("The probes of this link are not in this store (any more).")
        st.session_state["ops_run"] = cards[0].run_id
    return str(widgets.select("Probes", names, "ops_run"))


def filter_rows(rows: Sequence[OpRow]) -> list[OpRow]:
    """Draw the filters and return the rows they leave."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        # What a link names stays, although this run may have no such operation.
        names = dict.fromkeys(["", *(row["op"] for row in rows), st.session_state["ops_op"]])
        op = st.selectbox(
            "Operation",
            names,
            format_func=lambda name: name or "any",
            key="ops_op",
            width=190,
        )
        dtype = st.selectbox("dtype", ["any", *LOGIT_FORMATS], key="ops_dtype", width=130)
        scope = widgets.choice("Show", ["all", "differing"], "ops_shown")
    same = ("is_repeatable", "is_batch_invariant", "is_position_invariant")
    return [
        row
        for row in rows
        if op in ("", row["op"])
        and dtype in ("any", row["dtype"])
        and (scope == "all" or any(row[question] is False for question in same))
    ]


def table(rows: Sequence[OpRow]) -> pd.DataFrame:
    """Return one line per row: the probed operation and the three answers."""
    return pd.DataFrame(
        {
            "operation": title(row),
            "size": row["size"],
            "dtype": row["dtype"],
            **answers(row),
            "modules": row["modules"] or None,
            "note": row["note"] or None,
        }
        for row in rows
    )


def batch_chart(rows: Sequence[OpRow]) -> go.Figure | None:
    """Distance of row 0 from batch size 1 by batch size, ULPs of the dtype, a line of cells a row;
    None without any.
    """
    lines: dict[str, dict[int, int]] = {}
    for row in rows:
        if row["batch_classes"] and len(lines) < _MOST_LINES:
            line = lines[inert(legible(f"{title(row)} {row['dtype']} {row['size']}"))] = {}
            for each in row["batch_classes"]:
                line |= dict.fromkeys(each["batches"], each["max_ulps"])
    if not lines:
        return None
    frame = pd.DataFrame.from_dict(lines, orient="index").sort_index(axis=1)
    figure = go.Figure(
        go.Heatmap(
            x=[str(size) for size in frame.columns],
            y=list(frame.index),
            # In log2: ULPs go over decades, and 0 is a color too.
            z=(frame + 1).map(lambda ulps: len(f"{int(ulps):b}") - 1, na_action="ignore"),
            customdata=frame,
            colorscale="Viridis",
            colorbar={"title": "ULPs, log2"},
            hovertemplate="%{y}, batch %{x}: %{customdata:,} ULPs from batch 1<extra></extra>",
        ),
    )
    figure.update_xaxes(type="category")
    figure.update_yaxes(autorange="reversed")
    return layout(figure, 120 + 22 * len(lines), "batch size")
