"""The heatmap on a canvas: wheel and drag move it, a click selects. What is drawn comes from `app.heatmap.routes`,
never through Streamlit.

The window lives in the session under `heatmap_*` and in the address bar. The browser says where it is when a gesture
has ended, with a serial number; what comes back under the same number is its own message, anything else (a link, Back)
it follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from itertools import accumulate
from pathlib import Path
from typing import Any, cast

import streamlit as st

from app.components import chart_style
from app.heatmap import routes
from app.shell import exports, heatmap_window, selection, store_cache
from core.runs.queries import heatmap
from core.runs.queries.elements import place_of
from core.text import number

_CANVAS = Path(__file__).parent
_PARTS = ("colours", "tiles", "drawing", "axes", "pointing", "heatmap")  # one script: each knows those before it
_canvas = st.components.v2.component(
    "ulpscope_heatmap",
    html="<div id='heatmap'></div>",
    css=(_CANVAS / "heatmap.css").read_text(encoding="utf-8"),
    js="\n".join((_CANVAS / f"{part}.js").read_text(encoding="utf-8") for part in _PARTS),
)


def draw(view: selection.View, selected: heatmap.Element | None) -> None:
    """Draw the pair's heatmap; `selected`: the chosen logit, marked beneath the map."""
    routes.prepare(view.dtype)
    run, header, pair = view.run, view.run.header, view.pair
    starts = list(accumulate((prompt.positions for prompt in header.prompts[:-1]), initial=0))
    window = heatmap_window.current(view)
    if window != st.session_state.get("heatmap_followed"):  # a link or Back moved it: the browser follows
        st.session_state["heatmap_serial"] = ""
    floor = heatmap.floor_row_ulps(run, pair.index)
    data = {
        "address": routes.address(run, pair.index),
        "stamp": store_cache.version_of(run.path),
        "rows": header.rows,
        "columns": header.vocab,
        "dtype": header.compute_dtype,
        "names": [pair.reference, pair.variant],
        "floor_row_ulps": floor,
        "prompt_starts": starts,
        "tile_rows": heatmap.TILE_ROWS,
        "tile_columns": heatmap.TILE_COLUMNS,
        "column_levels": heatmap.largest_level(header.vocab, heatmap.TILE_COLUMNS),
        "group_level": heatmap.GROUP_LEVEL,
        "most_read": heatmap.MOST_READ,
        "ranks": min(heatmap.RANKS, header.vocab),
        "finest": {
            order: {measure: heatmap.finest_columns(run, order, measure) for measure in heatmap.MEASURES}
            for order in heatmap.ORDERS
        },
        "is_rank_offered": heatmap.is_offered(run, "rank", "ulps"),
        "offered": [measure for measure in heatmap.MEASURES if heatmap.is_offered(run, "id", measure)],
        "window": {**asdict(window), "scale": st.session_state["heatmap_colours"]},
        "file": exports.file_stem(view, "heatmap"),
        "title": f"{header.name} ({run.run_id}): {pair.variant} vs {pair.reference}",
        "serial": st.session_state.get("heatmap_serial", ""),
        "selected": {
            "row": view.row,
            "token": selected.token if selected else None,
            "rank": selected.reference_rank - 1 if selected else None,  # a column of the view by rank, counted from 0
        },
        "palette": chart_style.ULPS,
        "mismatch_colour": chart_style.MISMATCH,
        "selected_colour": chart_style.FLIP,
        "label": (
            f"Heatmap of {pair.variant} vs {pair.reference}. Arrow keys move it, plus and minus zoom, 0 shows the"
            " whole run, Enter selects the logit at the middle."
            + ("" if floor is None else f" 99.9% of the noise floor's logits are within {number(floor)} row ULPs.")
        ),
    }

    _canvas(key="heatmap", data=data, on_said_change=lambda: _follow(view, st.session_state["heatmap"]["said"]))


def _follow(view: selection.View, event: Mapping[str, Any]) -> None:
    """Take over what the browser says: its window, and the logit that was clicked, if one was."""
    window = event["window"]
    order, measure = window["order"], window["measure"]
    if order in heatmap.ORDERS and measure in heatmap.MEASURES and heatmap.is_offered(view.run, order, measure):
        rows, columns = (cast(tuple[int, int], tuple(map(int, window[axis]))) for axis in ("rows", "columns"))
        area = heatmap_window.HeatmapWindow(rows, columns, cast(heatmap.Order, order), cast(heatmap.Measure, measure))
        heatmap_window.keep(view, area)
        if window.get("scale") in ("auto", "log", "linear"):
            st.session_state["heatmap_colours"] = window["scale"]
        st.session_state["heatmap_serial"] = str(event["serial"])
        st.session_state["heatmap_followed"] = heatmap_window.current(view)
    if "row" in event:
        prompt, position = place_of(view.run, int(event["row"]))
        selection.select(prompt=prompt, position=position, heatmap_token=str(int(event["token"])))
