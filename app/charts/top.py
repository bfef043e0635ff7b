"""The best tokens of one position, both sides."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from app.charts.style import ARGMAX, REFERENCE, VARIANT, inert, layout
from app.words import visible


def top_bars(top: pd.DataFrame, reference: str, variant: str) -> go.Figure:
    """Logits of the best tokens, both sides beside each other, each side's argmax outlined in green. The axis does not start at 0."""
    names = [inert(visible(text)) if text is not None else "" for text in top["text"]]
    labels = [
        f"{name}<br><span style='font-size:10px'>{token}</span>" for name, token in zip(names, top["token_id"], strict=True)
    ]
    figure = go.Figure()
    for side, name, colour in (("reference", inert(reference), REFERENCE), ("variant", inert(variant), VARIANT)):
        logits = top[f"{side}_logit"].to_numpy(float)
        is_argmax = top[f"{side}_rank"].to_numpy() == 0
        figure.add_bar(
            x=list(range(len(top))), y=logits, name=name, showlegend=False, marker={
                "color": colour,
                "line": {"color": [ARGMAX if best else "rgba(0,0,0,0)" for best in is_argmax], "width": [4 if best else 0 for best in is_argmax]},
            },
            customdata=np.stack([top[f"{side}_rank"] + 1, top[f"{side}_probability"]], axis=1),
            text=[f"{'▲ ' if best else ''}{value:.9g}" for best, value in zip(is_argmax, logits, strict=True)], textposition="outside",
            textangle=-90, cliponaxis=False, textfont={"size": 11}, constraintext="none", hovertemplate=f"{name.replace('%', '&#37;')}: logit %{{y}}, rank %{{customdata[0]}}, probability %{{customdata[1]:.3%}}<extra></extra>",
        )  # fmt: skip
        figure.add_bar(x=[None], y=[None], name=name, marker_color=colour)  # the legend, without the outline
    finite = top[["reference_logit", "variant_logit"]].to_numpy(float)
    finite = finite[np.isfinite(finite)]
    if len(finite):
        low, high = float(finite.min()), float(finite.max())
        pad = max((high - low) * 0.12, 1e-6 * max(abs(high), 1.0))
        figure.update_yaxes(range=[low - pad, high + 4.5 * pad])
    figure.update_xaxes(tickvals=list(range(len(top))), ticktext=labels, title=None)
    figure.update_yaxes(title="logit")
    return layout(figure, 380, barmode="group", bargap=0.25, bargroupgap=0.06)
