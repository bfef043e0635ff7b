"""Colours, layout and labels that every figure shares."""

import html

import numpy as np
import plotly.graph_objects as go

from ..document.charts import MISMATCH as MISMATCH
from ..document.charts import ULPS as ULPS
from ..document.charts import every_few as every_few
from ..numerics.arrays import Array
from ..text import is_written_out

REFERENCE = "#0072B2"
VARIANT = "#D55E00"
FLIP = "#CC79A7"
QUIET = "#8A93A0"
LAYOUT = {
    "margin": {"l": 8, "r": 8, "t": 28, "b": 8},
    "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
}


def layout(
    figure: go.Figure,
    height: int,
    x: str | None = None,
    y: str | None = None,
    log: Array | None = None,
    **options: object,
) -> go.Figure:
    """Lay a figure out. x, y: titles of its axes; log: values of a logarithmic y axis."""
    scale = {} if log is None else log_axis(log)
    # before a second axis comes by the options, which has its own title and scale
    figure.update_yaxes(title_text=y, **scale)
    figure.update_layout(height=height, **LAYOUT).update_layout(**options)
    # separators up to a million; from there on, powers of ten at every tick
    form = {"separatethousands": True, "exponentformat": "power", "minexponent": 5}
    figure.update_xaxes(title_text=x, automargin=True, **form)
    figure.update_yaxes(automargin=True, **form)
    return figure


def inert(text: str) -> str:
    """Escape a text, as token texts and side names are of others: plotly would take their angle
    brackets for markup.
    """
    return html.escape(text, quote=False)


def span(values: Array, empty: tuple[float, float] = (1.0, 1.0)) -> tuple[float, float]:
    """Return the smallest and the largest finite value above 0; `empty` if there is none."""
    finite = values[np.isfinite(values) & (values > 0)]
    return (finite.min(), finite.max()) if len(finite) else empty


def log_axis(values: Array) -> dict:
    """Return a log axis for values; values of 0 and below are not on it."""
    low, high = span(values)
    labels: dict = {"nticks": 4}
    if high >= 100 * low:
        labels = {"dtick": 1}  # powers of ten
    elif high >= 2.5 * low:
        labels = {"dtick": "D2"}  # 1, 2 and 5 of each
    form = ",.3~r" if is_written_out((low, high)) else ".0e"
    return {"type": "log", "tickformat": form, "minorloglabels": "complete", **labels}


def log_ticks(bottom: float, top: float, most: int) -> list[float]:
    """Return at most so many ticks of a log axis between two exponents: powers of ten if there are
    two, else 1, 2 and 5 of each.
    """
    powers = np.arange(np.ceil(bottom), np.floor(top) + 1)
    ticks = 10.0**powers
    if len(powers) < 2:
        decades = 10.0 ** np.arange(np.floor(bottom), top)
        steps = np.multiply.outer(decades, (1, 2, 5)).ravel()
        ticks = steps[(steps >= 10**bottom) & (steps <= 10**top)]
    return list(every_few(ticks, most))


def hover(values: Array, of: str = "y") -> str:
    """Return the placeholder of a hover for one of `values`, in the form of their axis: three
    digits, written out or as powers of ten.
    """
    form = ",.3~r" if is_written_out(span(np.abs(values))) else ".2~e"
    return f"%{{{of}:{form}}}"


def is_lone(y: Array) -> Array:
    """Return which values have a gap, NaN, on either side."""
    is_gap = np.isnan(np.pad(y, 1, constant_values=np.nan))
    lone: Array = ~is_gap[1:-1] & is_gap[:-2] & is_gap[2:]
    return lone


def add_lone(figure: go.Figure, x: Array, y: Array, colour: str, size: int = 6) -> None:
    """Draw points of a line without a neighbour on either side as markers: a line of one point is
    not drawn. y: NaN in a gap.
    """
    mask = is_lone(y)
    if mask.any():
        figure.add_scatter(
            x=x[mask],
            y=y[mask],
            mode="markers",
            marker={"color": colour, "size": size},
            name="alone",
            showlegend=False,
            hoverinfo="skip",
        )


def add_floor(
    figure: go.Figure,
    x: Array,
    floor: Array,
    name: str = "noise floor",
) -> None:
    """Draw a noise floor as a dotted line; gaps if it is 0, nothing if none was measured."""
    if not np.isnan(floor).all():
        figure.add_scatter(
            x=x,
            y=gaps_at_zero(floor),
            mode="lines",
            line={"color": QUIET, "width": 1.6, "dash": "dot"},
            name=name,
            hoverinfo="skip",
        )
        # behind the pair's, which may be at the same place
        add_lone(figure, x, gaps_at_zero(floor), QUIET, 8)


def selected_line(x: float) -> dict:
    """Line at what is selected, as a shape of a layout."""
    return {
        "type": "line",
        "x0": x,
        "x1": x,
        "xref": "x",
        "y0": 0,
        "y1": 1,
        "yref": "y domain",
        "line": {"color": FLIP, "width": 1.5},
    }


def gaps_at_zero(values: Array) -> Array:
    return np.where(values > 0, values, np.nan)


# points that are there to be hovered and clicked; one that is not drawn costs nothing
UNDRAWN: dict = {"opacity": 0, "maxdisplayed": 1}
# A line takes no click, its markers do; these are not drawn, and the nearest one takes the click.
CLICKABLE: dict = {
    "mode": "lines+markers",
    "marker": {"size": 6, "opacity": 0},
    "selected": {"marker": {"opacity": 0}},
    "unselected": {"marker": {"opacity": 0}},
}
NEAREST_CLICK: dict = {
    "hovermode": "closest",
    "hoverdistance": -1,
    "clickmode": "event+select",
    "dragmode": "zoom",
}
