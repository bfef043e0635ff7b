"""Charts of the Compare page: pairs of several runs over each other, classes of equal bits, a sweep
over its value.
"""

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from core.plots.pairs import RUNS
from core.plots.style import QUIET, hover, inert, layout, log_axis

# Okabe-Ito without the two colors of the sides; classes beyond these share one.
_CLASSES = ("#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#9A6FD6", "#8A93A0")


def runs_by_distance(curves: list[tuple[str, pd.DataFrame]]) -> go.Figure:
    """Share of logits that differ by at least so many ULPs, one step line per run, log axes.
    curves: name, table of core.runs.queries.compare.distribution.
    """
    figure = go.Figure()
    for (name, table), color in zip(curves, RUNS, strict=False):
        figure.add_scatter(
            x=table["distance"],
            y=table["share"],
            mode="lines",
            line={"color": color, "width": 2, "shape": "vh"},
            name=inert(name),
            hovertemplate=(
                f"{hover(table['share'].to_numpy(float))} of the logits differ by at least %{{x:,}}"
                " ULPs<extra></extra>"
            ),
        )
    whole = pd.concat([table for _, table in curves]).astype(float)
    # float32 has nine powers of ten
    figure.update_xaxes(**log_axis(whole["distance"]) | {"dtick": None, "nticks": 5})
    return layout(
        figure,
        320,
        "ULPs of each run's own dtype",
        "share that differs by at least as much",
        whole["share"],
        legend_tracegroupgap=0,
        # an identical pair has no line: a line alone is named too
        showlegend=True,
    )


def sweep(table: pd.DataFrame, name: str) -> go.Figure:
    """Small multiples over the value that was swept: share of differing logits, largest difference,
    flips. One color a class. table: of core.runs.queries.classes.sweep.
    """
    titles = {"neq_share": "logits that differ", "max_abs": "largest difference", "flips": "flips"}
    figure = make_subplots(
        rows=1,
        cols=3,
        horizontal_spacing=0.09,
        subplot_titles=list(titles.values()),
    )
    # as categories: 1, 2, 4, 33 stand side by side
    table = table.astype({"value": str})
    line = {
        "mode": "lines",
        "line": {"color": QUIET, "width": 1},
        "showlegend": False,
        "hoverinfo": "skip",
    }
    for column, measure in enumerate(titles, start=1):
        figure.add_scatter(
            x=table["value"],
            y=table[measure],
            **line,
            row=1,
            col=column,
        )
        for group, rows in table.groupby("class", sort=False):
            figure.add_scatter(
                x=rows["value"],
                y=rows[measure],
                mode="markers",
                name=f"class {group}",
                legendgroup=str(group),
                showlegend=column == 1,
                marker={"size": 10, "color": _CLASSES[int(group) % len(_CLASSES)]},
                text=[inert(side) for side in rows["side"]],
                hovertemplate=f"%{{text}}: %{{y}}<extra>class {group}</extra>",
                row=1,
                col=column,
            )
    # so small that the titles fit side by side on a telephone
    figure.update_annotations(font_size=11)
    figure.update_xaxes(type="category", categoryorder="array", categoryarray=table["value"])
    figure.update_yaxes(rangemode="tozero").update_yaxes(tickformat=".0%", row=1, col=1)
    # else an axis of few flips repeats whole numbers
    step = {"dtick": 1} if table["flips"].max() < 6 else {}
    figure.update_yaxes(tickformat=",d", row=1, col=3, **step)
    legend = {"y": -0.28, "yanchor": "top"}
    return layout(figure, 300, inert(name), legend=legend, margin={"t": 36})
