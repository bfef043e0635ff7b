"""Remedies of a pair: what would make its sides agree, and the throughput cost."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from app.shell import selection, widgets
from core.runs.tables.remedies import RemedyRow, advice

_COLUMNS = {
    **dict.fromkeys(("rms", "noise ratio", "max difference"), st.column_config.NumberColumn(format="%.3g")),
    **dict.fromkeys(("reference x", "variant x"), st.column_config.NumberColumn(format="%.2f")),
    **dict.fromkeys(("differing logits", "flips", "max ULPs"), st.column_config.NumberColumn(format="localized")),
}


def section(view: selection.View) -> None:
    """Draw the remedies of a pair, if some were tried."""
    rows = view.run.remedies.get(view.pair.index)
    if not rows:
        return
    st.subheader("Remedies")
    st.markdown(widgets.escaped(advice(rows)))
    st.dataframe(_shown(rows), hide_index=True, key="remedies", column_config=_COLUMNS, placeholder="–")
    st.caption(
        "The pair with one thing changed at a time. Noise ratio: rms over the noise floor; x: throughput over that of"
        " the same path as it is."
    )
    if refused := [f"- **{widgets.escaped(row.name)}**: {widgets.escaped(row.refusal)}" for row in rows if row.refusal]:
        st.markdown("Not measured:\n\n" + "\n".join(refused))


def _shown(rows: Sequence[RemedyRow]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "remedy": row.name,
            "differing logits": row.neq,
            "rms": row.rms,
            "noise ratio": row.noise_ratio,
            "flips": row.flips,
            "reference x": row.reference_share,
            "variant x": row.variant_share,
            "max difference": row.max_abs,
            "max ULPs": row.max_ulps,
            "of": row.compute_dtype,
            "what it changes": row.what,
        }
        for row in rows
        if not row.refusal
    )


def exported(view: selection.View) -> pd.DataFrame:
    """Table of every field, for CSV and Parquet."""
    return pd.DataFrame([vars(row) for row in view.run.remedies.get(view.pair.index, ())]).convert_dtypes()
