"""The axes of a probe of a server's state, each with its result."""

import pandas as pd
import streamlit as st

from app.shell import selection
from core.checks.state import axes_of, axis_texts
from core.text import number


def section(view: selection.View) -> None:
    """Draw a table of the axes, nothing for a run without them."""
    rows = (row for pair in view.run.pairs for row in view.run.evidence(pair.index))
    axes = axes_of(rows)
    if not axes:
        return
    st.subheader("Server state")
    block = axes[0].wrong_block_nats
    scale = f"; a wrong block of tokens moves a row by {number(block)} nats" if block else ""
    st.caption(f"Largest difference of a row from the cold one, in noise of cold requests{scale}.")
    table = pd.DataFrame([axis_texts(axis) for axis in axes])
    st.dataframe(table, hide_index=True, height="content")
