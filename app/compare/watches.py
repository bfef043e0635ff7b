"""Watched endpoints: the distance of each round from the baseline, and since when an endpoint has
moved.
"""

from collections.abc import Sequence
from functools import partial

import msgspec
import numpy as np
import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from app.components import plots
from app.shell import exports, selection, store_cache, widgets
from core.plots import style
from core.probing.rounds import Round


def draw(_: selection.View | None) -> None:
    """Draw the tab: those that have moved first."""
    histories = store_cache.watches()
    histories.sort(key=lambda rounds: (rounds[-1].since is None, rounds[-1].url))
    for place, rounds in enumerate(histories):
        last = rounds[-1]
        st.markdown(f"{widgets.escape(last.text)} {widgets.escape(last.server)}.")
        plots.draw(chart(rounds), f"watch_{place}", exports.picture("watch", [last.url]))
        with st.container(horizontal=True):
            labels = {"Open the run that moved": last.run, "Open the baseline": last.baseline}
            for label, run_id in labels.items():
                if run_id:
                    st.button(
                        label,
                        f"watch_{label[9:12]}_{place}",
                        on_click=selection.open_run,
                        args=(run_id,),
                    )
    st.caption(
        "RMS difference from the baseline's log-probabilities; dotted: the limit, orange: moved.",
    )
    table = [msgspec.to_builtins(one) for rounds in histories for one in rounds]
    exports.download({"rounds": partial(pd.DataFrame, table)}, "watches", "watches")


def chart(rounds: Sequence[Round]) -> go.Figure:
    """Plot the distance of each round by its time, log; what is below a hundredth of the limit is
    drawn there.
    """
    measured = [one for one in rounds if one.distance_nats is not None]
    times = np.array([one.at.replace(tzinfo=None) for one in measured], "datetime64[us]")
    distances = np.array([one.distance_nats for one in measured], float)
    limits = np.array([one.limit_nats for one in measured], float)
    colors = [style.VARIANT if one.since else style.REFERENCE for one in measured]
    figure = go.Figure()
    figure.add_scatter(
        x=times,
        y=np.maximum(distances, limits / 100),
        mode="lines+markers",
        line={"color": style.QUIET, "width": 1},
        marker={"color": colors, "size": 7},
        customdata=distances,
        hovertemplate=f"%{{x}}: {style.hover(distances, 'customdata')} nats<extra></extra>",
    )
    style.add_floor(figure, times, limits, "limit")
    return style.layout(
        figure,
        260,
        "time, UTC",
        "distance, nats",
        np.concatenate([distances, limits]),
        showlegend=False,
    )
