"""Steps through the pair in the sidebar, as buttons with keys: position, flip, near tie, largest
difference.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import partial

import streamlit as st

from app.shell import selection
from core.text import plural

# the column of the positions to step to, the keys of the previous and the next one
_KINDS = {
    "position": ("", "K", "J"),
    "flip": ("is_flip", "P", "N"),
    "near tie": ("near_tie", "G", "T"),
    "NaN or infinity": ("nonfinite_mismatch", "Z", "X"),
}
Place = tuple[int, int]  # prompt and position


def places(view: selection.View) -> dict[str, Sequence[Place]]:
    """Places to step to: positions of the selected prompt, and those of each kind there is, of
    every prompt in the view's table.
    """
    table = view.table
    positions = range(view.first_position, view.last_position + 1)
    of_kind: dict[str, Sequence[Place]] = {
        "position": [(view.prompt, position) for position in positions],
    }
    for kind, (column, *_) in _KINDS.items():
        if column in table:
            is_kind = table[column].astype(bool)
            # .loc takes all columns first
            columns = (table[name][is_kind].tolist() for name in ("prompt", "position"))
            of_kind[kind] = list(zip(*columns, strict=True))
    return {kind: found for kind, found in of_kind.items() if len(found)}


def stepper(view: selection.View) -> None:
    """Draw the steps."""
    table = view.prompt_table
    here = (view.prompt, view.position)
    with st.container(key="stepper", gap="xxsmall"):
        for kind, found in places(view).items():
            step = _move if kind == "position" else partial(_step, found)
            before = bisect_left(found, here)
            after = bisect_right(found, here)
            label = plural(len(found), kind)
            if kind == "position":
                label = kind
            elif after > before:
                label = f"{kind} {before + 1:,} of {len(found):,}"
            _, back, forth = _KINDS[kind]
            left, right = st.columns([5, 9], gap="xxsmall")
            left.button(
                "‹",
                f"previous_{kind}",
                on_click=partial(step, -1),
                shortcut=back,
                disabled=before == 0,
                width="stretch",
            )
            right.button(
                f"{label} ›",
                f"next_{kind}",
                on_click=partial(step, 1),
                shortcut=forth,
                disabled=after == len(found),
                width="stretch",
            )
        largest = table["max_abs"].fillna(0.0).to_numpy(float)
        if largest.any():
            worst = int(table["position"].iloc[largest.argmax()])
            st.button(
                f"largest difference: position {worst:,}",
                key="worst",
                on_click=partial(selection.select, position=worst),
                shortcut="W",
                disabled=view.position == worst,
                width="stretch",
            )


def _move(way: int) -> None:
    """Select the next position from where the session is by now; the sidebar clips it."""
    selection.select(position=max(0, st.session_state.get("position", 0) + way))


def _step(found: Sequence[Place], way: int) -> None:
    """Select the next of some places: from where the session is by now, so that no press of a key
    is lost.
    """
    # A held key comes faster than pages are drawn: several callbacks run before one script run.
    here = (st.session_state.get("prompt", 0), st.session_state.get("position", 0))
    index = bisect_right(found, here) if way > 0 else bisect_left(found, here) - 1
    if 0 <= index < len(found):
        prompt, position = found[index]
        selection.select(prompt=prompt, position=position)
