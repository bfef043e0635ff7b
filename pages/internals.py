"""Internals: where the difference starts inside the model, and what would end it."""

import streamlit as st

from app.internals import EXTRAS, PAGE, kernels, kv_cache, layers, mitigations, parts
from app.shell import selection, tabs

view = selection.current_view()
drawn = {"layers": layers.draw, "kv_cache": kv_cache.draw, "kernels": kernels.draw, "mitigations": mitigations.draw}
shown = tabs.draw(PAGE, view, drawn)
missing = [tab for tab in PAGE.tabs if tab not in shown]
if missing and view is not None:
    with st.expander(f"Not recorded: {', '.join(tab.title for tab in missing)}", expanded=not shown):
        parts.not_recorded(view, [EXTRAS[tab.name] for tab in missing])
