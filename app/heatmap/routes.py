"""Routes of the heatmap: tiles of cells as raw integers, and the one element that a cell stands
for. Read-only and bounded.

The browser keeps a tile as long as the run file is the same: its address carries the file's stamp.
Here some tiles and blocks of rows are cached; two requests that need the same block wait for one
computation.
"""

import re
import threading
from collections.abc import Callable
from functools import cache

import numpy as np
import streamlit as st
from anyio import CapacityLimiter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from app.api.responses import RefusedError, route
from app.shell import store_cache, wording
from core.errors import StoreError, UsageError
from core.numerics import pyramid
from core.numerics.formats import format_named
from core.runs.queries.elements import place_of
from core.runs.queries.heatmap import (
    MEASURES,
    ORDERS,
    Cells,
    Element,
    Measure,
    Order,
    Tile,
    View,
    largest_in,
    tile_cells,
    tokens_in,
)
from core.runs.reader import RunReader
from core.text import clean, exact, number, plural, visible

# tiles computed at a time: reading and computing overlap, and other viewers still get a core
AT_ONCE = 3
_NEVER_CHANGES = "private, max-age=31536000, immutable"
_PAIR = "/tiles/{run_id}/{pair}"
_NUMBER = re.compile(r"\d{1,12}", re.ASCII)
_TWO = re.compile(r"(\d{1,12})[,:](\d{1,12})", re.ASCII)
_limiter = CapacityLimiter(AT_ONCE)


@st.cache_resource(max_entries=192, show_spinner=False)  # of 256 KB at most
def _cells(key: str, _make: Callable[[], Cells]) -> Cells:  # noqa: ARG001  (the key of the cache)
    return _make()


# A block has 64 rows in cells of 32 columns, 1.2 MB of 150,000 tokens: those of 4096 positions.
@st.cache_resource(max_entries=64, show_spinner=False)
def _block(key: str, _make: Callable[[], Cells]) -> Cells:  # noqa: ARG001
    return _make()


@cache
def prepare(dtype: str) -> None:
    """Load the compiled loops while the page is on its way: the first tile would wait 0.2 s for
    them.
    """
    threading.Thread(
        target=pyramid.prepare,
        args=(format_named(dtype),),
        name="ulpscope-heatmap",
        daemon=True,
    ).start()


def _pair(request: Request) -> tuple[RunReader, int]:
    """Return the run and the number of the pair; RefusedError (404) if there is no such run."""
    try:
        run = store_cache.open_run(request.path_params["run_id"])
    except StoreError as failure:
        raise RefusedError(str(failure), 404) from None
    pair = request.path_params["pair"]
    if not _NUMBER.fullmatch(pair):
        raise UsageError(f"pair '{clean(pair, 40)}' is not a number in range.")
    return run, int(pair)


def _tile(request: Request) -> Response:
    """Send the cells of a tile, row by row, little-endian, two bytes each or four; an empty body if
    nothing in it differs.
    """
    run, pair = _pair(request)
    order, measure = _view(request)
    tile = Tile(*_two(request, "level"), *_two(request, "tile"))
    version = store_cache.version_of(run.path)
    about = (run.run_id, version, pair)

    def keep(key: tuple, make: Callable[[], Cells]) -> Cells:
        return _block(repr((about, key)), make)

    def make() -> Cells:
        cells = tile_cells(View(run, pair, order, measure), tile, keep)
        return np.ascontiguousarray(cells) if cells.any() else cells[:0].copy()

    cells = _cells(repr((about, order, measure, tile)), make)
    return Response(
        cells.tobytes(),
        media_type="application/octet-stream",
        headers=_headers(request, version),
    )


def _headers(request: Request, version: str) -> dict[str, str]:
    return {
        "Cache-Control": _NEVER_CHANGES if request.query_params.get("v") == version else "no-store"
    }


def _largest(request: Request) -> Response:
    """Send the largest difference in a rectangle as JSON, with exact digits."""
    run, pair = _pair(request)
    element = largest_in(
        View(run, pair, *_view(request)),
        _two(request, "rows"),
        _two(request, "columns"),
    )
    return JSONResponse(
        element_json(run, element),
        headers=_headers(request, store_cache.version_of(run.path)),
    )


def element_json(run: RunReader, element: Element) -> dict[str, str | int]:
    """Return an element as the heatmap shows it under the pointer. Texts are untrusted; the browser
    sets them as text only.
    """
    prompt, position = place_of(run, element.row)
    texts = run.header.prompts[prompt].token_texts
    where = f"position {position:,}"
    if run.header.has_several_prompts:
        where = f"prompt {prompt}, {where}"
    if texts:
        where += f", after {visible(texts[position])}"
    # Of a token without a text the word is there already.
    text = wording.token(element.token, run.vocabulary.get(element.token))
    apart = "NaN or infinity on one side"
    difference = ""
    if element.ulps is not None:
        row_ulps = number(element.row_ulps or 0.0)
        apart = f"{row_ulps} row ULP{'s' if row_ulps != '1' else ''}"
        apart += f", {plural(element.ulps, 'ULP')} of {run.header.compute_dtype}"
        difference = f"difference {exact(element.difference)}"
    return {
        "row": element.row,
        "token": element.token,
        "where": run.header.worded(where),
        "text": run.header.worded(text if element.token not in run.vocabulary else f"token {text}"),
        "reference": exact(element.reference),
        "variant": exact(element.variant),
        "apart": apart,
        "difference": difference,
        "ranks": f"{element.reference_rank:,} / {element.variant_rank:,}"
        if run.header.has_tokens
        else "",
    }


def _tokens(request: Request) -> Response:
    """Send the tokens of a rectangle, rows of [id, text]; by token id one row stands for all."""
    run, pair = _pair(request)
    rows, columns = _two(request, "rows"), _two(request, "columns")
    texts = []
    for row in tokens_in(View(run, pair, *_view(request)), rows, columns).tolist():
        texts.append([(token, visible(run.vocabulary.get(token, f"#{token}"))) for token in row])
    return JSONResponse(texts, headers=_headers(request, store_cache.version_of(run.path)))


def _view(request: Request) -> tuple[Order, Measure]:
    order = request.query_params.get("order", "")
    measure = request.query_params.get("measure", "")
    if order not in ORDERS or measure not in MEASURES:
        raise UsageError(
            f"order '{clean(order, 20)}', measure '{clean(measure, 20)}': expected order one of"
            f" {', '.join(ORDERS)}, measure one of {', '.join(MEASURES)}."
        )
    return order, measure


def _two(request: Request, name: str) -> tuple[int, int]:
    text = request.query_params.get(name, "")
    match = _TWO.fullmatch(text)
    if match is None:
        raise UsageError(f"{name} '{clean(text, 40)}': expected two numbers, as 0,2 or 0:2.")
    return int(match[1]), int(match[2])


ROUTES = [
    route("GET", _PAIR, _tile, _limiter),
    route("GET", f"{_PAIR}/largest", _largest, _limiter),
    route("GET", f"{_PAIR}/tokens", _tokens, _limiter),
]
