"""Charts of trainer vs. rollout."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ..numerics.arrays import DataFrame
from ..rl.figures import ICEPOP, TIS, bar_of
from ..text import clean
from .style import QUIET, REFERENCE, ULPS, VARIANT, inert, layout


def ratios(table: DataFrame) -> go.Figure:
    """Tokens by r, log counts, the share of the KL in each bin, and the frameworks' bars."""
    figure = go.Figure()
    figure.add_bar(
        x=table["r"],
        y=table["tokens"],
        width=1 / 16,
        name="tokens",
        marker={"color": REFERENCE},
    )
    # also those without a token
    first = 16 * table["r"].min() - 1
    last = 16 * table["r"].max() + 1
    bins = np.arange(first, last + 1) / 16
    share = table.set_index("r")["kl"] / max(float(table["kl"].sum()), 1e-300)
    share = share.reindex(bins, fill_value=0.0)
    figure.add_scatter(
        x=bins,
        y=share,
        mode="lines",
        name="share of the KL",
        yaxis="y2",
        line={"color": VARIANT, "width": 2, "shape": "hvh"},
    )
    span = max(1.0, float(table["r"].abs().max()) + 0.1)
    for name, ratio in (("TIS", TIS), ("IcePop", ICEPOP[0]), ("IcePop", ICEPOP[1])):
        if abs(np.log(ratio)) < span:
            figure.add_vline(
                x=float(np.log(ratio)),
                line={"color": QUIET, "dash": "dash"},
                annotation_text=name,
                annotation_position="top",
            )
    figure.update_xaxes(range=[-span, span])
    right = {
        "title": "share of the KL",
        "overlaying": "y",
        "showgrid": False,
        "nticks": 6,
        "tickmode": "auto",
        "side": "right",
        "rangemode": "tozero",
        "tickformat": ".0%",
    }
    return layout(
        figure,
        360,
        "r = trainer - rollout, nats (8 and beyond: last bins)",
        "tokens",
        table["tokens"].to_numpy(float),
        yaxis2=right,
        bargap=0,
        legend={"y": 1.08},
    )


def by_value(table: DataFrame, quantity: str) -> go.Figure:
    """Mean |r| by a quantity, with the standard error: bars of names, turns and ranks."""
    figure = go.Figure()
    bar = {"array": np.sqrt(table["variance"] / table["tokens"])}
    values = {"x": table["value"], "y": table["mean_abs"], "error_y": bar, "name": "mean |r|"}
    is_number = pd.api.types.is_numeric_dtype(table["value"])
    if is_number and quantity not in ("turn", "rank"):
        figure.add_scatter(**values, mode="lines+markers", marker={"color": REFERENCE})
    else:
        if not is_number:
            values["x"] = [inert(clean(each, 40)) for each in table["value"]]
        figure.add_bar(**values, marker={"color": REFERENCE})
    if quantity in ("turn", "rank") and len(table) <= 20:
        figure.update_xaxes(dtick=1)
    figure.update_yaxes(rangemode="tozero")
    return layout(figure, 300, quantity, "mean |r|, nats")


def steps(table: DataFrame) -> go.Figure:
    """Mean |r| and k3 by training step, log axis, and what is usual of k3."""
    figure = go.Figure()
    bar = bar_of("k3")
    for name, label, color in (("mean_abs", "mean |r|", REFERENCE), ("k3", "k3", VARIANT)):
        figure.add_scatter(
            x=table["step"],
            y=table[name],
            mode="lines+markers",
            name=label,
            line={"color": color},
        )
    values = table[["mean_abs", "k3"]].to_numpy(float)
    if bar is not None:
        figure.add_hline(
            y=bar.high,
            line={"color": QUIET, "dash": "dash"},
            name=f"usual k3: {bar.span} ({bar.framework})",
            showlegend=True,
        )
        values = np.append(values, bar.high)
    figure.update_xaxes(tickformat="d")
    return layout(figure, 300, "step", "nats", values)


def density(table: DataFrame) -> go.Figure:
    """Tokens by the rollout's probability and r, log shades."""
    cells = table.pivot(index="r", columns="probability", values="tokens")
    scale = {"title": {"text": "tokens, log10"}}
    figure = go.Figure()
    figure.add_heatmap(
        x=cells.columns,
        y=cells.index,
        z=np.log10(cells),
        colorscale=ULPS,
        colorbar=scale,
    )
    return layout(figure, 360, "probability by the rollout", "r, nats")
