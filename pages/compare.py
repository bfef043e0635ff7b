"""Compare: runs side by side, the sides of one run as classes of equal bits, the cells of a sweep
as a matrix.
"""

import streamlit as st

from app.compare import runs, sweeps, watches
from app.navigation import COMPARE
from app.shell import selection, widgets

parts = {
    "side_by_side": runs.draw,
    "classes": runs.draw_classes,
    "sweeps": sweeps.draw,
    "watches": watches.draw,
}
wanted = {
    "classes": "a run of three or more sides",
    "sweeps": "`ulpscope sweep`",
    "watches": "`ulpscope probe --watch`",
}
visible = widgets.tabs(COMPARE, parts)
missing = [f"{tab.title} ({wanted[tab.name]})" for tab in COMPARE.tabs if tab not in visible]
if missing and selection.current_view() is not None:
    st.caption(f"Not shown, without data: {', '.join(missing)}.")
