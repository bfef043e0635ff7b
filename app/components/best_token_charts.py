"""The best tokens of one position, both sides."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from app.components.chart_style import ARGMAX, FLIP, QUIET, REFERENCE, VARIANT, inert, layout
from core.text import clipped, visible

# An outline of a bar that is a few pixels wide would hide its side's colour. The texts stand upright: what points right
# in them points up.
_BEST = f"<span style='color:{ARGMAX}'>▶</span> "


def top_bars(top: pd.DataFrame, reference: str, variant: str) -> go.Figure:
    """Logits of the best tokens, both sides beside each other, a green ▲ over each side's argmax. The axis does not
    start at 0.
    """
    names = [inert(visible(text)) if text is not None else "" for text in top["text"]]
    labels = [
        f"{name}<br><span style='font-size:10px'>{token}</span>"
        for name, token in zip(names, top["token_id"], strict=True)
    ]
    figure = go.Figure()
    for side, name, colour in (("reference", inert(reference), REFERENCE), ("variant", inert(variant), VARIANT)):
        logits = top[f"{side}_logit"].to_numpy(float)
        is_argmax = top[f"{side}_rank"].to_numpy() == 1
        figure.add_bar(
            x=list(range(len(top))),
            y=logits,
            name=name,
            marker={"color": colour, "line": {"width": 0}},
            customdata=np.stack([top[f"{side}_rank"], top[f"{side}_probability"]], axis=1),
            text=[f"{_BEST if best else ''}{value:.9g}" for best, value in zip(is_argmax, logits, strict=True)],
            textposition="outside",
            textangle=-90,
            cliponaxis=False,
            textfont={"size": 11},
            constraintext="none",
            hovertemplate=(
                f"{name.replace('%', '&#37;')}: logit %{{y}}, rank %{{customdata[0]}} (1 = argmax), probability"
                " %{customdata[1]:.3%}<extra></extra>"
            ),
        )
    finite = top[["reference_logit", "variant_logit"]].to_numpy(float)
    finite = finite[np.isfinite(finite)]
    if len(finite):
        low, high = float(finite.min()), float(finite.max())
        pad = max((high - low) * 0.12, 1e-6 * max(abs(high), 1.0))
        figure.update_yaxes(range=[low - pad, high + 4.5 * pad])
    figure.update_xaxes(tickvals=list(range(len(top))), ticktext=labels, title=None)
    figure.update_yaxes(title="logit")
    return layout(figure, 380, barmode="group", bargap=0.25, bargroupgap=0.06)


_LABEL = 16  # characters of a token beside its rank; all of it is in the hover


def crossing(top: pd.DataFrame) -> np.ndarray:
    """Mask of the tokens that stand before another on one side and behind it on the other. [tokens]"""
    reference, variant = (top[f"{side}_rank"].to_numpy(np.int64) for side in ("reference", "variant"))
    swapped = (reference[:, None] - reference) * (variant[:, None] - variant) < 0
    return swapped.any(axis=1)


def rank_slopes(top: pd.DataFrame, reference: str, variant: str, count: int = 8) -> go.Figure:
    """Ranks of the best tokens, the reference's on the left, the variant's on the right, rank 1 on top; a line joins a
    token's two.

    Lines that cross another are coloured; tokens beyond the best `count` of a side stand below the dotted line, in
    their order, and their lines are dashed: they enter the best `count` or leave them.
    """
    ranks = {side: top[f"{side}_rank"].to_numpy(np.int64) for side in ("reference", "variant")}
    heights = {side: _heights(of_side, count) for side, of_side in ranks.items()}
    is_crossing = crossing(top)
    is_best = {side: of_side == 1 for side, of_side in ranks.items()}
    names = [
        inert(visible(text)) if text is not None else f"token {token}"
        for text, token in zip(top["text"], top["token_id"], strict=True)
    ]
    figure = go.Figure()
    kinds = {
        "keeps its place among them": (QUIET, "solid"),
        "changes places with another": (FLIP, "solid"),
        "enters or leaves the best": (FLIP, "dash"),
        "argmax of the reference": (REFERENCE, "solid"),
        "argmax of the variant": (VARIANT, "solid"),
    }
    is_flip = not (is_best["reference"] & is_best["variant"]).any()
    seen: set[str] = set()
    for place in range(len(top)):
        is_moving = max(ranks["reference"][place], ranks["variant"][place]) > count
        kind = (
            "enters or leaves the best"
            if is_moving
            else "changes places with another"
            if is_crossing[place]
            else "keeps its place among them"
        )
        colour, dash = kinds[kind]
        for side in ("reference", "variant"):
            if is_best[side][place] and is_flip:
                kind = f"argmax of the {side}"
                colour = kinds[kind][0]
        row = top.iloc[place]
        figure.add_scatter(
            x=[0, 1],
            y=[heights["reference"][place], heights["variant"][place]],
            mode="lines+markers",
            name=kind,
            legendgroup=kind,
            showlegend=kind not in seen,
            line={"color": colour, "dash": dash, "width": 3 if kind.startswith("argmax") else 1.8},
            marker={"size": 8, "color": colour},
            text=[f"{names[place]} ({row['token_id']})"] * 2,
            customdata=[
                [side, ranks[name][place], f"{row[f'{name}_logit']:.9g}", row[f"{name}_probability"]]
                for side, name in ((inert(reference), "reference"), (inert(variant), "variant"))
            ],
            hovertemplate=(
                "%{text}<br>%{customdata[0]}: rank %{customdata[1]:,} (1 = argmax), logit %{customdata[2]}, probability"
                " %{customdata[3]:.3%}<extra></extra>"
            ),
        )
        seen.add(kind)
        for x, side, anchor in ((0, "reference", "right"), (1, "variant", "left")):
            rank = f"{int(ranks[side][place]):,}"
            text = (
                f"<b>{_clipped(top['text'].iloc[place], row['token_id'])}</b>"
                if is_best[side][place]
                else _clipped(top["text"].iloc[place], row["token_id"])
            )
            figure.add_annotation(
                x=x,
                y=heights[side][place],
                text=f"{text}  {rank}" if side == "reference" else f"{rank}  {text}",
                showarrow=False,
                xanchor=anchor,
                xshift=-9 if side == "reference" else 9,
                font={"size": 12},
            )
    lowest = float(max(heights["reference"].max(initial=1), heights["variant"].max(initial=1)))
    if lowest > count:
        figure.add_hline(y=count + 0.75, line={"color": QUIET, "width": 1, "dash": "dot"})
    for x, name, colour in ((0, reference, REFERENCE), (1, variant, VARIANT)):
        figure.add_annotation(
            x=x, y=0.25, text=f"<b>{inert(clipped(name, 22))}</b>", showarrow=False, font={"color": colour}
        )
    figure.update_xaxes(range=[-0.65, 1.65], showgrid=False, zeroline=False, showticklabels=False, title=None)
    figure.update_yaxes(range=[lowest + 0.6, -0.2], showgrid=False, zeroline=False, showticklabels=False, title=None)
    return layout(figure, 150 + int(26 * lowest), hovermode="closest")


def _heights(ranks: np.ndarray, count: int) -> np.ndarray:
    """Height at which each rank stands, 1 the best; those beyond `count` one after another below a gap. [tokens]"""
    heights = ranks.astype(float)
    beyond = np.flatnonzero(ranks > count)
    heights[beyond[np.argsort(ranks[beyond], kind="stable")]] = count + 1.5 + np.arange(len(beyond))
    return heights


def _clipped(text: str | None, token: int) -> str:
    return inert(clipped(f"token {token}" if text is None else visible(text), _LABEL))
