"""Charts as SVG without scripts: places are percentages, so that they fit any width, and every text
keeps its size.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, floor, isnan, log10
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..markup import Markup, element, join
from ..text import on_axis

if TYPE_CHECKING:
    from PIL import Image

# Cividis without its darkest third: one ULP has to be seen on black as well as on white; lightness
# still only rises.
ULPS = ((0.0, "#3D6FB5"), (0.33, "#7C7B78"), (0.66, "#BCAF6F"), (1.0, "#FEE838"))
MISMATCH = "#E3000F"
# of the 256 colors of a picture 0 is transparent and 255 a mismatch
LEVELS = 254


def every_few(places: Any, most: int) -> Any:
    """Return at most so many of the places, evenly spaced, from the first on."""
    return places[:: max(1, -(-len(places) // most))]


@dataclass(frozen=True)
class Axis:
    """An axis from `low` (left, bottom) to `high`. zero: where a log axis has zeros; labels: by
    value, else of round numbers, at least `step` apart.
    """

    title: str
    low: float
    high: float
    is_log: bool = False
    zero: float | None = None
    labels: Mapping[float, str] | None = None
    step: float = 0.0

    def at(self, value: float | np.number) -> float:
        """Place of a value in percent."""
        scale = log10 if self.is_log else float
        low, high = scale(self.low), scale(self.high)
        return 100 * (scale(value) - low) / (high - low)

    def ticks(self) -> dict[float, str]:
        """Labels of the axis by value."""
        if self.labels is not None:
            return dict(self.labels)
        low, high = sorted((self.low, self.high))
        if self.is_log:
            powers = range(floor(log10(low)), ceil(log10(high)) + 1)
            digits = (1,) if len(powers) > 4 else (1, 2, 5)
            powers = every_few(powers, 9)
            values = [digit * 10.0**power for power in powers for digit in digits]
        else:
            power = 10.0 ** floor(log10((high - low) / 5))
            steps = [digit * power for digit in (1, 2, 5, 10)]
            step = max(self.step, next(step for step in steps if (high - low) / step <= 6))
            values = [step * place for place in range(ceil(low / step), floor(high / step) + 1)]
        labels = {}
        if self.zero:
            labels[self.zero] = "0"
            low = self.zero * 1.5
        shown = [float(value) for value in values if low <= value <= high]
        return labels | dict(zip(shown, on_axis(shown), strict=True))


def chart(
    label: str,
    x: Axis,
    y: Axis,
    marks: Iterable[Markup],
    legend: Mapping[str, str],
    height: int = 320,
) -> Markup:
    """Return a chart with its axes and legend. marks: of `dot`, `line`, `bar` or `picture`, the
    last on top; legend: names by the class of their marks.
    """
    svg = drawing(
        x,
        y,
        marks,
        role="img",
        aria_label=label,
        width="100%",
        height=height,
    )
    keys = [
        element("span", element("i", class_=f"key {name}"), text) for name, text in legend.items()
    ]
    return element(
        "figure",
        element("p", y.title, class_="axis"),
        element("div", svg, class_="plot"),
        element("p", x.title, class_="axis across"),
        element("figcaption", *keys) if keys else "",
    )


def drawing(x: Axis, y: Axis, marks: Iterable[Markup], /, **attributes: object) -> Markup:
    """Return marks over the grid and labels of two axes, as an svg element."""
    grid = []
    for value, text in x.ticks().items():
        place = f"{x.at(value):.2f}%"
        grid.append(
            element(
                "line",
                x1=place,
                x2=place,
                y1="0%",
                y2="100%",
                class_="grid",
            )
        )
        grid.append(
            element(
                "text",
                text,
                x=place,
                y="100%",
                dy="1.3em",
                text_anchor="middle",
            )
        )
    for value, text in y.ticks().items():
        place = f"{100 - y.at(value):.2f}%"
        grid.append(
            element(
                "line",
                x1="0%",
                x2="100%",
                y1=place,
                y2=place,
                class_="grid",
            )
        )
        grid.append(
            element(
                "text",
                text,
                x="0%",
                dx="-0.5em",
                y=place,
                dy="0.35em",
                text_anchor="end",
            ),
        )
    return element("svg", *grid, *marks, **attributes)


def dot(x: float, y: float, kind: str, title: str, radius: float = 3.5) -> Markup:
    """Return a mark at a place in percent that shows its title under the pointer."""
    return element(
        "circle",
        element("title", title),
        cx=f"{x:.2f}%",
        cy=f"{100 - y:.2f}%",
        r=radius,
        class_=kind,
    )


def line(xs: Sequence[float], ys: Sequence[float], kind: str) -> Markup:
    """Return a line through places in percent; a gap if one is NaN."""
    parts = []
    for (x1, y1), (x2, y2) in pairwise(zip(xs, ys, strict=True)):
        if isnan(y1) or isnan(y2):
            continue
        parts.append(
            element(
                "line",
                x1=f"{x1:.2f}%",
                y1=f"{100 - y1:.2f}%",
                x2=f"{x2:.2f}%",
                y2=f"{100 - y2:.2f}%",
                class_=kind,
            ),
        )
    return join(*parts)


def bar(x: float, width: float, y: float, kind: str, title: str) -> Markup:
    """Return a bar from the bottom up to `y`; all in percent."""
    return element(
        "rect",
        element("title", title),
        x=f"{x:.2f}%",
        width=f"{width:.2f}%",
        y=f"{100 - y:.2f}%",
        height=f"{y:.2f}%",
        class_=kind,
    )


def band(y0: float, y1: float, title: str) -> Markup:
    """Return a row of a picture that shows its title under the pointer; in percent."""
    return element(
        "rect",
        element("title", title),
        x="0%",
        width="100%",
        y=f"{100 - max(y0, y1):.2f}%",
        height=f"{abs(y1 - y0):.2f}%",
        class_="band",
    )


def picture(levels: NDArray[np.uint8]) -> Markup:
    """Return cells that fill a chart. levels: as of `colored`, [rows, columns]"""
    output = io.BytesIO()
    colored(levels).save(output, "PNG", optimize=True)
    content = base64.b64encode(output.getvalue()).decode()
    return element(
        "image",
        href=Markup(f"data:image/png;base64,{content}"),
        width="100%",
        height="100%",
        preserveAspectRatio="none",
        image_rendering="pixelated",
    )


def colored(levels: NDArray[np.uint8]) -> Image.Image:
    """Return levels in the colors of the heatmap: 0 transparent, 1 to 254 its scale, 255 a
    mismatch. [rows, columns]
    """
    from PIL import Image, ImageColor

    places = [place for place, _ in ULPS]
    at = np.linspace(0, 1, LEVELS)
    channels = zip(*(ImageColor.getrgb(color) for _, color in ULPS), strict=True)
    scale = np.rint([np.interp(at, places, channel) for channel in channels])
    image = Image.fromarray(levels)
    palette = [0, 0, 0, *scale.T.ravel().astype(int).tolist(), *ImageColor.getrgb(MISMATCH)]
    image.putpalette(palette)
    image.info["transparency"] = 0
    return image
