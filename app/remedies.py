"""Parts of the Remedies page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import pandas as pd
import streamlit as st

from app import state, widgets, words
from app.code_block import code_block
from core.runs.remedies import PriceRow, RemedyRow

COLUMNS = {
    "remedy": st.column_config.TextColumn(width=170),
    "largest difference": st.column_config.NumberColumn(format="%.3g"),
    "rms": st.column_config.NumberColumn(format="%.3g"),
    "noise ratio": st.column_config.NumberColumn(format="%.3g"),
    "max ULPs": st.column_config.NumberColumn(format="localized"),
    "flips": st.column_config.NumberColumn(format="localized"),
    "reference, tokens/s": st.column_config.NumberColumn(format="%.0f"),
    "variant, tokens/s": st.column_config.NumberColumn(format="%.0f"),
    "reference keeps": st.column_config.NumberColumn(format="%.0f%%"),
    "variant keeps": st.column_config.NumberColumn(format="%.0f%%"),
    "tokens/s as it is": st.column_config.NumberColumn(format="%.0f"),
    "tokens/s, one order": st.column_config.NumberColumn(format="%.0f"),
    "kept": st.column_config.NumberColumn(format="%.0f%%"),
}


def nothing_tried(view: state.View) -> NoReturn:
    """No remedies in this run: say why that is and what to do, and stop."""
    if view.run.header.provenance.kind == "upload":
        st.info("This run was uploaded. Remedies are tried on the model itself: capture the pair from it.")
    else:
        st.info(
            "This run was captured without trying remedies: that runs every pair again under each of them, and times it. `--remedies` asks for it."
        )
    code_block(
        'python -m core capture --model sample_runs/model --prompt "def __init__(self," \\\n    --reference prefill --variant decode --remedies'
    )
    st.stop()


def rows(tried: Sequence[RemedyRow]) -> pd.DataFrame:
    """Those that were measured, as the table shows them."""
    measured = [row for row in tried if row.is_measured]
    return pd.DataFrame(
        {
            "remedy": [row.name for row in measured],
            "differing logits": [words.share(row.neq or 0, row.elements or 1) for row in measured],
            "rms": [row.rms for row in measured],
            "noise ratio": [row.noise_ratio for row in measured],
            "flips": [row.flips for row in measured],
            "reference keeps": [_percent(row.reference_share) for row in measured],
            "variant keeps": [_percent(row.variant_share) for row in measured],
            "largest difference": [row.max_abs for row in measured],
            "max ULPs": [row.max_ulps for row in measured],
            "of": [row.compute_dtype for row in measured],
            "reference, tokens/s": [row.reference_tokens_per_second for row in measured],
            "variant, tokens/s": [row.variant_tokens_per_second for row in measured],
            "what it changes": [row.what for row in measured],
        }
    )


def unmeasured(tried: Sequence[RemedyRow]) -> str:
    """Those that were not, with the reason, as a list in markdown."""
    return "\n".join(f"- **{widgets.escaped(row.name)}**: {widgets.escaped(row.refusal)}" for row in tried if not row.is_measured)


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def prices(found: Sequence[PriceRow]) -> pd.DataFrame:
    """As the table shows them."""
    return pd.DataFrame(
        {
            "path": [row.path for row in found],
            "batch": [row.batch for row in found],
            "tokens/s as it is": [row.plain_tokens_per_second for row in found],
            "tokens/s, one order": [row.tokens_per_second for row in found],
            "kept": [_percent(row.share) for row in found],
        }
    )


def exported(tried: Sequence[RemedyRow]) -> pd.DataFrame:
    """Every field, for CSV and Parquet."""
    return pd.DataFrame([vars(row) for row in tried]).convert_dtypes()


def names(view: state.View) -> str:
    return f"`{widgets.code(view.pair.reference)}` and `{widgets.code(view.pair.variant)}`"
