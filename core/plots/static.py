"""A figure as SVG, for where no script runs: GitHub, nbconvert."""

import html
from typing import Any

import numpy as np
import plotly.graph_objects as go

from ..document.charts import LEVELS, Axis, bar, dot, drawing, line, picture
from ..markup import Markup, element
from ..numerics.arrays import Record
from .style import QUIET, REFERENCE, VARIANT, every_few

_PLOT = {"x": 80, "y": 40, "width": 660, "height": 300, "overflow": "visible"}
_STYLE = (
    "text{font:12px sans-serif;fill:#5F6872}.grid{stroke:#D5DAE0}.back{fill:#FFF}"
    f".limit{{stroke:{QUIET};stroke-dasharray:5 4}}"
)
_MOST_LABELS = 8  # of names


class StaticFigure(go.Figure):
    """A figure whose output in a notebook has a picture too."""

    # else plotly displays it without asking for the bundle below, or as HTML that needs a network
    _ipython_display_ = _repr_html_ = None

    def _repr_mimebundle_(self, *args: Any, **options: Any) -> Record:
        bundle = dict(super()._repr_mimebundle_(*args, **options))
        if "application/vnd.plotly.v1+json" in bundle:
            # it would be taken before the picture, and needs its script
            bundle.pop("text/html", None)
        return bundle | {"image/svg+xml": str(svg_of(self)), "text/plain": "Figure"}


def svg_of(figure: go.Figure) -> Markup:
    """Return lines, markers, bars or a heatmap of a figure on its first pair of axes."""
    traces = [each.to_plotly_json() for each in figure.data]
    traces = [each for each in traces if each.get("yaxis", "y") == "y"]
    limits = [
        float(shape.y0)
        for shape in figure.layout.shapes
        if shape.type == "line" and shape.xref == "x domain"
    ]
    x = _axis(figure.layout.xaxis, [each["x"] for each in traces])
    y = _axis(figure.layout.yaxis, [each["y"] for each in traces] + [limits])
    style = _STYLE
    marks = []
    left = 80
    legend = [
        element("text", x.title, x=410, y=388, text_anchor="middle"),
        element("text", y.title, transform="translate(16 190)rotate(-90)", text_anchor="middle"),
    ]
    for number, trace in enumerate(traces):
        color = VARIANT if number % 2 else REFERENCE
        for part in ("line", "marker"):
            own = trace.get(part, {}).get("color")
            # a list has a color for each bar
            if isinstance(own, str):
                color = own
        style += f".k{number}{{fill:{color}}}.l{number}{{stroke:{color};stroke-width:2}}"
        marks += _marks(trace, number, x, y)
        if name := html.unescape(trace.get("name", "")):
            legend.append(element("circle", cx=left, cy=14, r=5, class_=f"k{number}"))
            legend.append(element("text", name, x=left + 10, y=18))
            left += 30 + 7 * len(name)
    for limit in limits:
        height = y.at(limit)
        marks.append(line((0, 100), (height, height), "limit"))
    return element(
        "svg",
        element("style", Markup(style)),
        element("rect", width="100%", height="100%", class_="back"),
        drawing(x, y, marks, **_PLOT),
        *legend,
        xmlns="http://www.w3.org/2000/svg",
        width=760,
        height=400,
    )


def _axis(about: Any, parts: list[Any]) -> Axis:
    is_log = about.type == "log"
    labels = None
    values = np.concatenate(parts)
    if values.dtype.kind == "U":
        places = every_few(list(range(len(values))), _MOST_LABELS)
        labels = {float(place): str(values[place]) for place in places}
        values = np.array([-0.5, len(values) - 0.5])
    values = values[np.isfinite(values)]
    if is_log:
        values = values[values > 0]
    low = float(values.min())
    high = float(values.max())
    if about.range:
        low, high = (10.0**end if is_log else end for end in about.range)
    elif is_log:
        low /= 1.5
        high *= 1.5
    elif about.rangemode == "tozero":
        low = 0.0
    return Axis(about.title.text, low, high + (low == high), is_log, labels=labels)


def _marks(trace: Record, number: int, x: Axis, y: Axis) -> list[Markup]:
    if "z" in trace:
        cells = np.asarray(trace["z"], float)
        lowest = np.nanmin(cells)
        share = (cells - lowest) / (np.nanmax(cells) - lowest or 1)
        levels = np.nan_to_num(1 + share * (LEVELS - 1))
        return [picture(levels[::-1].astype(np.uint8))]
    xs = np.asarray(trace["x"])
    ys = np.asarray(trace["y"], float)
    if xs.dtype.kind == "U":
        xs = np.arange(len(xs))
    mode = trace.get("mode", "bars")
    kind = f"k{number}"
    across = [x.at(each) for each in xs]
    up = [y.at(each) if each > 0 or not y.is_log else np.nan for each in ys]
    marks = [line(across, up, f"l{number}")] if "lines" in mode else []
    span = x.high - x.low
    width = 90 * np.diff(xs).min(initial=span) / span
    for place, top, value in zip(across, up, ys, strict=True):
        if np.isnan(top):
            continue
        title = f"{value:.4g}"
        if mode == "bars":
            marks.append(bar(place - width / 2, width, top, kind, title))
        elif "markers" in mode:
            marks.append(dot(place, top, kind, title))
    return marks
