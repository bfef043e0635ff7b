"""Steps along the prompt in the sidebar: from flip to flip, near tie to near tie, to the largest difference; buttons
and keys.

A component of its own for the keys. In the browser it is the one place that says which position is selected, before the
server has answered; the server's answer is what counts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import streamlit as st

from app.shell import selection
from core.text import number

KEYS = (
    ("← →", "previous, next position"),
    ("Shift + ← →, or P N", "previous, next flip"),
    ("Shift + T, T", "previous, next near tie"),
    ("Shift + X, X", "previous, next position with NaN or infinity on one side only"),
    ("W", "the largest difference of the prompt"),
)
_CSS = """
.steps { color: var(--st-text-color); font-family: var(--st-font); font-size: 0.87rem; }
.rows { display: grid; gap: 0.3rem; }
.row { display: grid; grid-template-columns: 2rem 1fr 2rem; align-items: stretch; text-align: center; }
.label { border: 1px solid var(--st-border-color); border-width: 1px 0; padding: 0.22rem 0.2rem;
  font-variant-numeric: tabular-nums; }
.label.at { font-weight: 600; }
button { font: inherit; color: inherit; background-color: var(--st-background-color);
  border: 1px solid var(--st-border-color); cursor: pointer; padding: 0.15rem 0; }
.row button { font-size: 1.1rem; line-height: 1.1; }
.row button:first-child { border-radius: var(--st-button-radius) 0 0 var(--st-button-radius); }
.row button:last-child { border-radius: 0 var(--st-button-radius) var(--st-button-radius) 0; }
button.worst { border-radius: var(--st-button-radius); padding: 0.22rem 0.5rem; font-variant-numeric: tabular-nums; }
button:hover:enabled { border-color: var(--st-primary-color); color: var(--st-primary-color); }
button:focus-visible { outline: 2px solid var(--st-primary-color); outline-offset: 1px; z-index: 1; }
button:disabled { cursor: default; }
.row button:disabled { color: color-mix(in srgb, currentColor 35%, transparent); }
"""
_stepper = st.components.v2.component(
    "ulpscope_stepper",
    html="<div class='steps'>\n<div class='rows'></div></div>",
    css=_CSS,
    js=Path(__file__).with_suffix(".js").read_text(encoding="utf-8"),
)


def steps(view: selection.View | selection.SparseView) -> dict[str, Any]:
    """Places to step to along the selected prompt: positions of each kind there is, and of its largest difference."""
    table = view.prompt_table.reset_index(drop=True)
    kinds = (("flip", "is_flip"), ("near tie", "near_tie"), ("NaN or infinity", "nonfinite_mismatch"))
    found = [
        (name, table.loc[table[column].astype(bool), "position"].tolist()) for name, column in kinds if column in table
    ]
    worst = int(table["max_abs"].fillna(0.0).to_numpy(float).argmax())
    return {
        "first": view.first_position,
        "last": view.last_position,
        "kinds": [{"name": name, "places": places} for name, places in found if places],
        "worst": int(table.loc[worst, "position"]),
        "worst_logits": number(float(table.loc[worst, "max_abs"])),
    }


def stepper(view: selection.View | selection.SparseView) -> None:
    """Draw the steps of the selected prompt and listen to the keys."""
    handled = st.session_state.get("stepper_handled", 0)
    data = {**steps(view), "stamp": selection.stamp(view), "position": view.position, "handled": handled}
    _stepper(key="stepper", data=data, on_go_change=_go)


def _go() -> None:
    """Select what the browser asks for, if it speaks of what is open here; whatever it sends is checked."""
    asked = st.session_state["stepper"].get("go")
    view = selection.current_view()
    if not isinstance(asked, dict) or view is None:
        return
    position, sent = asked.get("position"), asked.get("number")
    if not (isinstance(position, int) and isinstance(sent, int)) or asked.get("stamp") != selection.stamp(view):
        return
    st.session_state["stepper_handled"] = sent
    selection.select(position=min(max(position, view.first_position), view.last_position))


def keys() -> None:
    """Draw the table of the keys, in a popover."""
    with st.popover("Keys", icon=":material/keyboard:", width="stretch"):
        # In markdown: the code of Streamlit's tables is 0.7 MB, and every page would fetch it for this one.
        st.markdown("\n".join(("| Keys | step to |", "|---|---|", *(f"| `{key}` | {what} |" for key, what in KEYS))))
        st.caption(
            "They work wherever no field, table or picture has the focus. In the strip of tokens the arrows move, Enter"
            " selects."
        )
