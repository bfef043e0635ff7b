"""Steps along the prompt in the sidebar, as buttons with keys: position, flip, near tie, largest
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


def places(view: selection.View) -> dict[str, Sequence[int]]:
    """Positions of the selected prompt to step to: all, and those of each kind there is."""
    table = view.prompt_table
    of_kind: dict[str, Sequence[int]] = {
        "position": range(view.first_position, view.last_position + 1),
    }
    for kind, (column, *_) in _KINDS.items():
        if column in table:
            # .loc takes all columns first
            of_kind[kind] = table["position"][table[column].astype(bool)].tolist()
    return {kind: positions for kind, positions in of_kind.items() if len(positions)}


def stepper(view: selection.View) -> None:
    """Draw the steps of the selected prompt."""
    table = view.prompt_table
    with st.container(key="stepper", gap="xxsmall"):
        for kind, positions in places(view).items():
            before = bisect_left(positions, view.position)
            after = bisect_right(positions, view.position)
            label = plural(len(positions), kind)
            if kind == "position":
                label = kind
            elif after > before:
                label = f"{kind} {before + 1:,} of {len(positions):,}"
            _, back, forth = _KINDS[kind]
            left, right = st.columns([5, 9], gap="xxsmall")
            left.button(
                "‹",
                f"previous_{kind}",
                on_click=partial(_step, positions, -1),
                shortcut=back,
                disabled=before == 0,
                width="stretch",
            )
            right.button(
                f"{label} ›",
                f"next_{kind}",
                on_click=partial(_step, positions, 1),
                shortcut=forth,
                disabled=after == len(positions),
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


def _step(positions: Sequence[int], way: int) -> None:
    """Select the next of some positions: from where the session is by now, so that no press of a
    key is lost.
    """
    # A held key comes faster than pages are drawn: several callbacks run before one script run.
    current = st.session_state.get("position", 0)
    place = bisect_right(positions, current) if way > 0 else bisect_left(positions, current) - 1
    if 0 <= place < len(positions):
        selection.select(position=positions[place])
