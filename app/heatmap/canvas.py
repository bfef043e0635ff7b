"""The heatmap on a canvas: wheel and drag move it, a click selects. What is drawn comes from
`app.heatmap.routes`, never through Streamlit.

The window lives in the session under `heatmap_*` and in the address bar. The browser says where it
is when a gesture has ended, with a serial number; what comes back under the same number is its own
message, anything else (a link, Back) it follows.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import accumulate, product
from pathlib import Path
from typing import Any
from urllib.parse import quote

import streamlit as st

from app.heatmap import routes
from app.page import whole
from app.shell import exports, selection, store_cache
from app.shell.selection import View
from core.numerics.arrays import Record, Span
from core.plots import style
from core.runs.queries.elements import place_of
from core.runs.queries.heatmap import (
    GROUP_LEVEL,
    MEASURES,
    MOST_READ,
    ORDERS,
    RANKS,
    TILE_COLUMNS,
    TILE_ROWS,
    Element,
    Measure,
    Order,
    element,
    finest_columns,
    floor_row_ulps,
    is_offered,
    is_skewed,
    largest_level,
)
from core.text import number

_NEIGHBOURS = 12  # columns on either side of a token that was looked for
_CANVAS = Path(__file__).parent
# one script: each knows those before it
_PARTS = ("colours", "tiles", "drawing", "axes", "pointing", "heatmap")
_canvas = st.components.v2.component(
    "ulpscope_heatmap",
    html="<div id='heatmap'></div>",
    css=(_CANVAS / "heatmap.css").read_text(encoding="utf-8"),
    js="\n".join((_CANVAS / f"{part}.js").read_text(encoding="utf-8") for part in _PARTS),
)


@dataclass(frozen=True)
class HeatmapWindow:
    """Window of the heatmap: its rows and columns, half open, what the columns are, and what the
    cells hold.
    """

    rows: Span
    columns: Span
    order: Order = "rank"
    measure: Measure = MEASURES[0]


def current_window(view: View) -> HeatmapWindow:
    """Return the heatmap's window of this session, clipped to the run."""
    run = view.run
    state = st.session_state
    # A link that names a window and no order is of a time when columns were token ids.
    has_window = state["heatmap_rows"] or state["heatmap_tokens"]
    is_by_id = has_window or not run.header.has_tokens
    order: Order = state["heatmap_order"] or ("id" if is_by_id else "rank")
    measure = state["heatmap_cells"]
    if not is_offered(run, order, measure):
        order = "id"
        measure = MEASURES[0]
        if not is_offered(run, order, measure):
            measure = "ulps"
    rows, columns = _first_look(view, order)
    rows = _span(state["heatmap_rows"], run.header.rows) or rows
    columns = _span(state["heatmap_tokens"], run.header.vocab) or columns
    return HeatmapWindow(rows, columns, order, measure)


def _first_look(view: View, order: Order) -> tuple[Span, Span]:
    """Return rows and columns of the first view: everything by token id, the first ranks of as many
    rows as are read at once.
    """
    header = view.header
    if order == "id":
        return (0, header.rows), (0, header.vocab)
    height = min(header.rows, MOST_READ // header.vocab)
    first = min(max(view.row - height // 2, 0), header.rows - height)
    ranks = min(RANKS, header.vocab)
    return (first, first + height), (0, ranks)


def _span(text: str, stop: int) -> Span | None:
    """`12:40` as (12, 40); None if it is no span of what there is."""
    start, _, end = text.partition(":")
    first = whole(start)
    last = whole(end)
    if first is None or last is None or not 0 <= first < last <= stop:
        return None
    return first, last


def keep_window(view: View, window: HeatmapWindow) -> None:
    """Store a window; of the first view nothing, or rows by number if another position would move
    them.
    """
    rows, columns = _first_look(view, window.order)
    is_still = window.rows == rows == (0, view.header.rows)
    st.session_state.update(
        heatmap_rows="" if is_still else "{}:{}".format(*window.rows),
        heatmap_tokens="" if window.columns == columns else "{}:{}".format(*window.columns),
        heatmap_order=window.order,
        heatmap_cells=window.measure,
    )


def selected_token(view: View) -> int | None:
    """Return the token selected on the heatmap or typed: by id, text, or text without its leading
    blank.
    """
    typed = st.session_state["heatmap_token"]
    token = whole(typed)
    if token is not None or not typed:
        return token if token in range(view.header.vocab) else None
    forms = (typed, typed.replace("·", " ").replace("↵", "\n"), f" {typed}")
    # of several tokens of a text the first one
    ids = {text: token for token, text in reversed(view.run.vocabulary.items()) if text in forms}
    for form in forms:
        if form in ids:
            return ids[form]
    return None


def show_token(view: View) -> None:
    """Move the window to the column of the selected token; by rank, to its rank at the selected
    position.
    """
    token = selected_token(view)
    window = current_window(view)
    if token is None:
        return
    column = token
    if window.order == "rank":
        column = element(view.run, view.pair.index, view.row, token).reference_rank - 1
    first, last = window.columns
    if not first <= column < last or last - first > RANKS:
        vocab = view.header.vocab
        first = max(0, min(column - _NEIGHBOURS, vocab - 2 * _NEIGHBOURS))
        last = min(first + 2 * _NEIGHBOURS, vocab)
    keep_window(view, replace(window, columns=(first, last)))


def draw(view: View, selected: Element | None) -> None:
    """Draw the pair's heatmap; `selected`: the chosen logit, marked beneath the map."""
    # The page is on its way to the browser for longer than the loops take to load.
    routes.prepare(view.dtype)
    run = view.run
    header = view.header
    pair = view.pair
    starts = list(accumulate(header.lengths[:-1], initial=0))
    window = current_window(view)
    # a link or Back moved it: the browser follows
    if window != st.session_state.get("heatmap_followed"):
        st.session_state["heatmap_serial"] = ""
    floor = floor_row_ulps(run, pair.index)
    words = {"row": "row", "column": "value", "columns": "values"}
    if header.has_tokens:
        words = {
            "row": "position",
            "column": "token id",
            "columns": "tokens",
        }
    # for a screen reader
    label = (
        f"Heatmap of {pair.variant} vs {pair.reference}. Arrow keys move it, plus and minus zoom, 0"
        " shows the whole run, Enter selects the logit at the middle."
    )
    if floor is not None:
        label += (
            f" The noise floor: 99.9% of {header.elements} move by at most {number(floor)} row"
            " ULPs."
        )
    finest: Record = {order: {} for order in ORDERS}
    for order, measure in product(ORDERS, MEASURES):
        finest[order][measure] = finest_columns(run, order, measure)
    data = {
        "address": f"/tiles/{quote(run.run_id, safe='')}/{pair.index}",
        "stamp": store_cache.version_of(run.path),
        "rows": header.rows,
        "columns": header.vocab,
        "dtype": header.compute_dtype,
        "words": words | {"elements": header.elements, "unit": header.unit},
        "names": [pair.reference, pair.variant],
        "floor_row_ulps": floor,
        "is_skewed": is_skewed(view.table),
        "prompt_starts": starts,
        "tile_rows": TILE_ROWS,
        "tile_columns": TILE_COLUMNS,
        "column_levels": largest_level(header.vocab, TILE_COLUMNS),
        "group_level": GROUP_LEVEL,
        "most_read": MOST_READ,
        "ranks": min(RANKS, header.vocab),
        "finest": finest,
        "is_rank_offered": header.has_tokens and is_offered(run, "rank", "ulps"),
        "offered": [each for each in MEASURES if is_offered(run, "id", each)],
        "window": {**asdict(window), "scale": st.session_state["heatmap_colours"]},
        "file": exports.file_stem(view, "heatmap"),
        "title": f"{header.name} ({run.run_id}): {pair.variant} vs {pair.reference}",
        "serial": st.session_state.get("heatmap_serial", ""),
        "selected": {
            "row": view.row,
            "token": selected.token if selected else None,
            # a column of the view by rank, counted from 0
            "rank": selected.reference_rank - 1 if selected else None,
        },
        "palette": style.ULPS,
        "mismatch_colour": style.MISMATCH,
        "selected_colour": style.FLIP,
        "label": label,
    }
    _canvas(
        key="heatmap",
        data=data,
        on_said_change=lambda: _follow(view, st.session_state["heatmap"]["said"]),
    )


def _follow(view: View, event: Mapping[str, Any]) -> None:
    """Take over what the browser says: its window, and the logit that was clicked, if one was."""
    window = event["window"]
    order = window["order"]
    measure = window["measure"]
    is_known = order in ORDERS and measure in MEASURES
    if is_known and is_offered(view.run, order, measure):
        (top, bottom), (left, right) = window["rows"], window["columns"]
        rows, columns = (int(top), int(bottom)), (int(left), int(right))
        keep_window(view, HeatmapWindow(rows, columns, order, measure))
        if window.get("scale") in ("auto", "log", "linear"):
            st.session_state["heatmap_colours"] = window["scale"]
        st.session_state["heatmap_serial"] = str(event["serial"])
        st.session_state["heatmap_followed"] = current_window(view)
    if "row" in event:
        prompt, position = place_of(view.run, int(event["row"]))
        selection.select(
            prompt=prompt,
            position=position,
            heatmap_token=str(int(event["token"])),
        )
