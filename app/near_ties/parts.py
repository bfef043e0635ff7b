"""Parts of the Near ties page: the threshold and the positions within it, those that are brushed, and their table."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from app.components import plots
from app.near_ties import LOGIT_STEPS
from app.shell import selection as state
from app.shell import widgets
from core.text import out_of, plural

SIDES = ("reference", "variant")
ZOOMS = "Zoom"
DRAGGING = {ZOOMS: "zoom", "Box select": "select", "Lasso": "lasso"}  # the chart tells of a click in the first only
BRUSHED = "brushed"  # in the session: (which table it is of, labels of its rows)


def threshold() -> tuple[str, float]:
    """Draw the page's controls of the threshold and return (unit, threshold); with either unit its own slider."""
    left, right = st.columns([1, 3], vertical_alignment="bottom")
    with left:
        unit = st.segmented_control("Threshold in", ["ULPs", "logits"], required=True, key="threshold_unit") or "ULPs"
    with right:
        if unit == "logits":
            return unit, float(st.select_slider("Threshold, logits", LOGIT_STEPS, key="threshold_logits"))
        return unit, float(st.slider("Threshold, ULPs", 0, 64, key="threshold"))


def set_threshold() -> tuple[str, float]:
    """(unit, threshold) that the session holds, before the controls are drawn."""
    unit = st.session_state["threshold_unit"] or "ULPs"
    return unit, float(st.session_state["threshold_logits" if unit == "logits" else "threshold"])


def close(table: pd.DataFrame, unit: str, limit: float) -> dict[str, pd.Series]:
    """Masks of the positions with a margin of at most `limit`, on the reference and on the variant; False where a
    margin is undefined.
    """
    ending = "_margin" if unit == "logits" else "_margin_ulps"
    return {side: (table[f"{side}{ending}"] <= limit).fillna(False).astype(bool) for side in SIDES}


def said(table: pd.DataFrame, unit: str, limit: float, dtype: str) -> str:
    """Sentence on how many positions, and what share of them, are within the threshold."""
    within = close(table, unit, limit)
    either = within["reference"] | within["variant"]
    flips = table["is_flip"].astype(bool)
    most = f"{limit:g} logits" if unit == "logits" else plural(int(limit), "ULP") + f" of {dtype}"
    below = int((flips & either).sum())
    return (
        f"**{out_of(int(either.sum()), len(table))}** positions with margin ≤ {most}:"
        f" {out_of(int(within['reference'].sum()), len(table))} on the reference,"
        f" {out_of(int(within['variant'].sum()), len(table))} on the variant. {below:,} of"
        f" {plural(int(flips.sum()), 'flip')} {'is' if below == 1 else 'are'} below the threshold."
    )


def follow(view: state.View, key: str, scope: str) -> None:
    """Take over what was clicked (select it) or brushed (keep its rows); a selection of nothing ends the brush."""
    picked = plots.picked(key)
    rows, prompts, positions = (picked.numbers(place) for place in range(3))
    if picked.is_brush and rows:
        st.session_state[BRUSHED] = (_stamp(view, scope), sorted(set(rows)))
    elif picked.is_brush:
        clear()
    elif prompts and positions:
        state.select(prompt=prompts[0], position=positions[0])


def brushed(view: state.View, scope: str) -> list[int]:
    """Rows of the pair's table that are brushed; a brush over another pair or prompt is none."""
    stamp, rows = st.session_state.get(BRUSHED, ("", []))
    return [row for row in rows if 0 <= row < len(view.table)] if stamp == _stamp(view, scope) else []


def clear() -> None:
    st.session_state.pop(BRUSHED, None)


def _stamp(view: state.View, scope: str) -> str:
    return f"{view.run.run_id} {view.pair.index} {'all' if scope == 'all prompts' else view.prompt}"


def exported(listed: pd.DataFrame, view: state.View) -> pd.DataFrame:
    """Rows of the pair's table with the texts of both argmaxes, every column under its name in the run file."""
    texts = {f"{side}_text": _texts(listed[f"{side}_token"], view) for side in SIDES}
    return listed.assign(**texts)


def _texts(tokens: pd.Series, view: state.View) -> list[str | None]:
    """Token texts as they are, None where unknown."""
    vocabulary = view.run.vocabulary
    return [None if pd.isna(token) else vocabulary.get(int(token)) for token in tokens]


def columns(listed: pd.DataFrame, view: state.View) -> dict[str, object]:
    """The table under names people read; margins of both sides in columns of their own, so that each sorts."""
    shown: dict[str, object] = {
        "prompt": listed["prompt"],
        "position": listed["position"],
        "flip": listed["is_flip"],
        "near tie": listed["near_tie"],
        "reference argmax": widgets.table_texts(listed["reference_token"], view.run),
        "variant argmax": widgets.table_texts(listed["variant_token"], view.run),
        "reference margin, ULPs": listed["reference_margin_ulps"],
        "variant margin, ULPs": listed["variant_margin_ulps"],
        "largest difference": listed["max_abs"],
        "reference margin, logits": listed["reference_margin"],
        "variant margin, logits": listed["variant_margin"],
        "KL, nats": listed["kl"],
    }
    if len(view.run.header.prompts) == 1:
        del shown["prompt"]
    return shown


PINNED = {
    name: st.column_config.Column(pinned=True) for name in ("prompt", "position")
}  # in sight however far one scrolls
COLUMNS = (
    widgets.EXACT
    | PINNED
    | {f"{side} margin, logits": st.column_config.NumberColumn(format="%.9g") for side in SIDES}
    | {f"{side} margin, ULPs": widgets.GROUPED for side in SIDES}
)
