"""Mitigations: what would make the sides agree, and the throughput cost."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from app.components import tables
from app.shell import exports, selection, widgets
from core.runs.tables.remedies import advice

_SHOWN = ["name", "neq", "rms", "noise_ratio", "flips", "reference_share", "variant_share", "max_ulps", "what"]


def draw(view: selection.View) -> None:
    """Draw the tab."""
    rows = view.run.remedies[view.pair.index]
    st.markdown(widgets.escape(advice(rows)))
    tables.draw(pd.DataFrame([row for row in rows if not row.refusal])[_SHOWN], "remedies")
    st.caption("The pair with one change at a time. Throughput: relative to the unchanged path.")
    if refused := [f"- **{widgets.escape(row.name)}**: {widgets.escape(row.refusal)}" for row in rows if row.refusal]:
        st.markdown("Not measured:\n\n" + "\n".join(refused))
    every = pd.DataFrame(rows).convert_dtypes()
    exports.download({"mitigations": every}, exports.file_stem(view, "mitigations"), "mitigations")
