"""Parts of the Remedies page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import pandas as pd
import streamlit as st

from app import state, widgets, words
from core.runs.remedies import PriceRow, RemedyRow

COLUMNS = {
    "largest difference": st.column_config.NumberColumn(format="%.4g"),
    "rms difference": st.column_config.NumberColumn(format="%.3g"),
    "noise ratio": st.column_config.NumberColumn(format="%.3g"),
    "max ULPs": st.column_config.NumberColumn(format="localized"),
    "flips": st.column_config.NumberColumn(format="localized"),
    "reference, tokens/s": st.column_config.NumberColumn(format="%.0f"),
    "variant, tokens/s": st.column_config.NumberColumn(format="%.0f"),
    "reference keeps": st.column_config.NumberColumn(format="percent"),
    "variant keeps": st.column_config.NumberColumn(format="percent"),
    "tokens/s as it is": st.column_config.NumberColumn(format="%.0f"),
    "tokens/s, one order": st.column_config.NumberColumn(format="%.0f"),
    "kept": st.column_config.NumberColumn(format="percent"),
}


def nothing_tried(view: state.View) -> NoReturn:
    """No remedies in this run: say why that is and what to do, and stop."""
    if view.run.header.provenance.kind == "upload":
        st.info("This run was uploaded. Remedies are tried on the model itself: capture the pair from it.")
    else:
        st.info(
            "This run was captured without trying remedies: that runs every pair again under each of them, and times it. `--remedies` asks for it."
        )
    st.code(
        'python -m core capture --model sample_runs/model --prompt "def __init__(self," \\\n    --reference prefill --variant decode --remedies',
        language="bash",
    )
    st.stop()


def rows(tried: Sequence[RemedyRow]) -> pd.DataFrame:
    """As the table shows them."""
    return pd.DataFrame(
        {
            "remedy": [row.name for row in tried],
            "differing logits": ["–" if row.neq is None else words.share(row.neq, row.elements or 1) for row in tried],
            "largest difference": [row.max_abs for row in tried],
            "rms difference": [row.rms for row in tried],
            "noise ratio": [row.noise_ratio for row in tried],
            "max ULPs": [row.max_ulps for row in tried],
            "of": [row.compute_dtype if row.is_measured else "" for row in tried],
            "flips": [row.flips for row in tried],
            "reference keeps": [row.reference_share for row in tried],
            "variant keeps": [row.variant_share for row in tried],
            "reference, tokens/s": [row.reference_tokens_per_second for row in tried],
            "variant, tokens/s": [row.variant_tokens_per_second for row in tried],
            "what it changes": [row.what if row.is_measured else f"Not measured: {row.refusal}" for row in tried],
        }
    )


def prices(found: Sequence[PriceRow]) -> pd.DataFrame:
    """As the table shows them."""
    return pd.DataFrame(
        {
            "path": [row.path for row in found],
            "batch": [row.batch for row in found],
            "tokens/s as it is": [row.plain_tokens_per_second for row in found],
            "tokens/s, one order": [row.tokens_per_second for row in found],
            "kept": [row.share for row in found],
        }
    )


def exported(tried: Sequence[RemedyRow]) -> pd.DataFrame:
    """Every field, for CSV and Parquet."""
    return pd.DataFrame([vars(row) for row in tried]).convert_dtypes()


def names(view: state.View) -> str:
    return f"`{widgets.code(view.pair.reference)}` and `{widgets.code(view.pair.variant)}`"
