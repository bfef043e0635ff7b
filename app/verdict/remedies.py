"""Remedies of a pair: what would make its sides agree, and the throughput cost."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from app.components import tables
from app.shell import selection, widgets
from core.runs.tables.remedies import advice

_SHOWN = ["name", "neq", "rms", "noise_ratio", "flips", "reference_share", "variant_share", "max_ulps", "what"]


def section(view: selection.View) -> None:
    """Draw the remedies of a pair, if some were tried."""
    if not (rows := view.run.remedies.get(view.pair.index)):
        return
    st.subheader("Remedies")
    st.markdown(widgets.escaped(advice(rows)))
    tables.draw(pd.DataFrame([row for row in rows if not row.refusal])[_SHOWN], "remedies")
    st.caption("The pair with one thing changed at a time. Shares: throughput over that of the same path as it is.")
    if refused := [f"- **{widgets.escaped(row.name)}**: {widgets.escaped(row.refusal)}" for row in rows if row.refusal]:
        st.markdown("Not measured:\n\n" + "\n".join(refused))


def exported(view: selection.View) -> pd.DataFrame:
    """Table of every field, for CSV and Parquet."""
    return pd.DataFrame(view.run.remedies.get(view.pair.index, ())).convert_dtypes()
