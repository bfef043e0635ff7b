"""Parts that the pages share for a run of sparse sides: tables of positions and lists, sentences, what is unknown."""

from __future__ import annotations

import json
from functools import partial

import pandas as pd
import streamlit as st

from app.components import plots
from app.shell import exports, selection, widgets, wording
from core.runs.reports.sparse_wording import UNITS
from core.runs.views.sparse import lists_of
from core.text import file_name

VALUE = st.column_config.NumberColumn(format="%.7g")
WHOLE = widgets.GROUPED


def unit(view: selection.SparseView) -> str:
    """The unit of the values: logits, nats or probability."""
    return UNITS[view.pair.values]


def stem(view: selection.SparseView, what: str) -> str:
    """Name of a file to download, without its ending."""
    return f"{file_name(view.run.run_id)}-{file_name(view.pair.variant)}-{what}"


def picture(view: selection.SparseView, what: str) -> dict[str, object]:
    """Settings for the camera of a figure of the pair."""
    run = f"{view.run.header.name} ({view.run.run_id})"
    pair = f"{view.pair.variant} against {view.pair.reference}"
    return exports.picture(stem(view, what), [run, pair, f"{view.pair.values}s as they were sent"])


def choose(prompt: int, position: int) -> None:
    selection.select(prompt=prompt, position=position)


def follow(key: str) -> None:
    """Select the position that was clicked in the figure `key`, whose points begin with prompt and position."""
    prompt, position = plots.chosen(key, 0), plots.chosen(key, 1)
    if prompt is not None and position is not None:
        choose(prompt, position)


def positions_table(view: selection.SparseView, found: pd.DataFrame, key: str) -> None:
    """Draw positions with their best tokens, margins and largest change; a click selects one."""
    has_ulps = found[["reference_margin_ulps", "variant_margin_ulps"]].notna().any().any()
    columns: dict[str, object] = {"prompt": found["prompt"]} if view.prompts > 1 else {}
    columns |= {"position": found["position"], "kind": [_kind(row) for row in found.itertuples()]}
    for side in ("reference", "variant"):
        columns[f"{side}: best"] = [
            _token(token, text) for token, text in zip(found[f"{side}_token"], found[f"{side}_text"], strict=True)
        ]
        columns[f"{side}: margin"] = found[f"{side}_margin"]
        if has_ulps:
            columns[f"{side}: margin, ULPs"] = found[f"{side}_margin_ulps"]
    columns["largest change sent"] = found["max_abs"]
    columns["values sent by both"] = found["listed"]
    st.dataframe(
        columns,
        hide_index=True,
        key=key,
        on_select=partial(selection.select_row, found, key),
        selection_mode=["single-row", "single-cell"],
        height=widgets.table_height(max(len(found), 1), 9),
        placeholder="–",
        column_config={name: VALUE for name in columns if "margin" in name or "change" in name},
    )


def _kind(row: object) -> str:
    if getattr(row, "is_flip", False):
        return "flip"
    if getattr(row, "is_flip_open", False):
        return "not known"
    return "could flip" if getattr(row, "could_flip", False) else ""


def _token(token: object, text: object) -> str:
    if token is None or pd.isna(token):
        return "not sent"
    return wording.token(int(token), text if isinstance(text, str) else None)  # type: ignore[call-overload]


def lists(view: selection.SparseView) -> None:
    """Draw the lists of both sides at the selected position."""
    place = view.here
    found = lists_of(place, view.pair)
    by_id = view.pair.keys == "token_id"
    st.subheader(f"What was sent at position {place.position:,}")
    st.dataframe(
        {
            "token": [
                wording.token(int(i), t if isinstance(t, str) else None) if by_id else json.dumps(t, ensure_ascii=False)
                for i, t in zip(found["token_id"], found["text"], strict=True)
            ],
            f"reference {view.pair.values}": found["reference"],
            f"variant {view.pair.values}": found["variant"],
            f"change, {unit(view)}": found["change"],
            "reference rank": found["reference_rank"],
            "variant rank": found["variant_rank"],
        },
        hide_index=True,
        key="sparse_lists",
        height=widgets.table_height(max(len(found), 1), 12),
        placeholder="not sent",
        column_config={
            f"{side} {view.pair.values}": st.column_config.NumberColumn(format="%.9g")
            for side in ("reference", "variant")
        }
        | {f"change, {unit(view)}": VALUE},
    )
    chosen = [
        f"{side} `{widgets.code(name)}`: next token {widgets.escaped(wording.token(token, view.pair.texts.get(token)))}"
        for side, name, token in (
            ("reference", view.pair.reference, place.reference_chosen),
            ("variant", view.pair.variant, place.variant_chosen),
        )
        if token >= 0
    ]
    if chosen:
        st.caption("; ".join(chosen) + ".")
    exports.download({"lists": found}, stem(view, f"lists-position{place.position}"), "sparse_lists")
