"""Internals: where the difference starts inside the model, and what would end it."""

import streamlit as st

from app.internals import choices, kernels, kv_cache, layers, parts
from app.internals.recorded import RECORDED
from app.navigation import CHOICES, INTERNALS
from app.shell import selection, widgets

view = selection.current_view()
drawers = {
    "layers": layers.draw,
    "choices": choices.draw,
    "kv_cache": kv_cache.draw,
    "kernels": kernels.draw,
    "mitigations": parts.mitigations,
}
visible = widgets.tabs(INTERNALS, drawers)
# without an option: a model that chooses has them
missing = [tab for tab in INTERNALS.tabs if tab not in (*visible, CHOICES)]
if missing and view is not None:
    with st.expander(
        f"Not recorded: {', '.join(tab.title for tab in missing)}",
        expanded=not visible,
    ):
        parts.not_recorded(view, [RECORDED[tab.name] for tab in missing])
