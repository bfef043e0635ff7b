"""Figures of the pages: plotly's, drawn in the browser by a component of ours.

Streamlit's own element draws with the whole of plotly, 4.7 MB that a browser compiles anew at each
visit, half a second to a second of every page with a figure. Ours fetches the bundle that plotly
publishes for plots with two axes (1.5 MB), which browsers keep compiled, draws what is in sight
first, and keeps a zoom while other positions of the same prompt are selected.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Hashable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import plotly.io
import streamlit as st
from plotly.io.json import to_json_plotly
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route
from streamlit.runtime import get_instance

from app.components import component
from app.shell import exports, selection, store_cache
from core.numerics.arrays import Record
from core.runs.reader import RunReader

if TYPE_CHECKING:
    import plotly.graph_objects as go

plotly.io.templates.default = "none"  # the browser has the colours of its theme
LIBRARY = Path(__file__).resolve().parents[1] / "vendor" / "plotly-cartesian-4.1.1.min.js"
# next to the pages; the name has the version, so it is cached for good
_ADDRESS = f"assets/{LIBRARY.name}"
LONG = 1 << 16  # characters
# Styles are not isolated: plotly's style sheet is the document's.
_figure = component("ulpscope_figure", Path(__file__).with_suffix(""), isolate_styles=False)


async def _library(_: Request) -> Response:
    return FileResponse(
        LIBRARY,
        media_type="text/javascript",
        headers={"cache-control": "public, immutable, max-age=31536000"},
    )


ROUTES = [Route(f"/{_ADDRESS}", _library)]


class FigureSpec(NamedTuple):
    """A figure as the browser gets it: JSON without its shapes, its height in pixels, and the
    shapes.

    If only shapes change, as the mark of the selected position does, the browser draws these alone.
    """

    spec: str
    height: int
    shapes: tuple[Record, ...] = ()


def figure_spec(figure: go.Figure | Record) -> FigureSpec:
    """Return what the browser gets of a figure, plotly's or a plain dict."""
    # Numbers of arrays travel as base64; float16 would be sent as text.
    plain = figure if isinstance(figure, dict) else figure.to_dict()
    # first, so that the JSON is without them
    shapes = tuple(plain["layout"].pop("shapes", ()))
    return FigureSpec(to_json_plotly(plain), plain["layout"]["height"], shapes)


def by_address(text: str, name: str) -> str:
    """Return a text, or the address of a long one: a browser fetches that once, not at every step.
    name: of the element that it is for.
    """
    if len(text) < LONG:
        return text
    return (
        get_instance()
        .media_file_mgr.add(text.encode(), "application/json", f"for {name}")
        .removeprefix("/")
    )


def cached(
    run: RunReader,
    of: tuple[Hashable, ...],
    make: Callable[..., go.Figure | Record],
    *arguments: Any,
) -> FigureSpec:
    """Figure of `make(*arguments)` (10 to 30 ms), kept for the run; `of` names what else it depends
    on.
    """
    return store_cache.remember(
        f"{make.__module__}.{make.__qualname__}", run, of, lambda: figure_spec(make(*arguments))
    )


def draw(
    figure: go.Figure | FigureSpec,
    key: str,
    picture: str | Record,
    on_pick: Callable[[str], None] | None = None,
    *,
    of: str = "",
    scope: exports.Scope = "pair",
) -> None:
    """Draw a figure.

    picture: how it is saved, as `app.shell.exports.picture` returns it, or its name if it is of the
    open pair or its prompt or position, `scope`. on_pick: called with the key when a point with
    custom data was clicked, `clicked_value` returns it. of: what its axes depend on besides the
    prompt; a zoom is kept until it changes.
    """
    view = selection.current_view()
    one = figure if isinstance(figure, FigureSpec) else figure_spec(figure)
    if isinstance(picture, str) and view is not None:
        picture = exports.picture_of(view, picture, scope)
    data = {
        "spec": by_address(one.spec, key),
        "height": one.height,
        "shapes": json.dumps(one.shapes, default=float),  # numbers of numpy
        "picture": picture,
        "revision": f"{'' if view is None else selection.stamp(view)} {of}",
        "library": _ADDRESS,
        "is_picked": on_pick is not None,
    }
    # A stable key: with a new one the browser would draw the whole plot again, 0.25 s each.
    picked = partial(on_pick, key) if on_pick else (lambda: None)
    _figure(key=key, data=data, height=one.height, on_picked_change=picked)


def clicked_value(key: str, place: int) -> int | None:
    """Return the whole number at `place` of the custom data of the point that was clicked in the
    figure `key`; None if there is none.
    """
    # What a browser sends may be anything.
    point = (st.session_state.get(key) or {}).get("picked")
    value = point[place] if isinstance(point, list) and place < len(point) else None
    return int(value) if isinstance(value, int | float) and math.isfinite(value) else None


def select_position(key: str) -> None:
    """Select the position that was clicked in the figure `key`, the second of its custom data."""
    position = clicked_value(key, 1)
    if position is not None:
        selection.select(position=position)


def select_place(key: str) -> None:
    """Select the prompt and position that were clicked in the figure `key`, at the begin of its
    custom data.
    """
    prompt = clicked_value(key, 0)
    position = clicked_value(key, 1)
    if prompt is not None and position is not None:
        selection.select(prompt=prompt, position=position)
