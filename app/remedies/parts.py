"""Parts of the Remedies page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import pandas as pd
import streamlit as st

from app.shell import selection, widgets
from core.runs.tables.remedies import Kept, PriceRow, RemedyRow
from core.text import out_of

COLUMNS = {
    "remedy": st.column_config.TextColumn(width=170),
    "largest difference": st.column_config.NumberColumn(format="%.3g"),
    "rms": st.column_config.NumberColumn(format="%.3g"),
    "noise ratio": st.column_config.NumberColumn(format="%.3g"),
    "max ULPs": st.column_config.NumberColumn(format="localized"),
    "flips": st.column_config.NumberColumn(format="localized"),
    "reference, tokens/s": st.column_config.NumberColumn(format="%.0f"),
    "variant, tokens/s": st.column_config.NumberColumn(format="%.0f"),
    "reference keeps": st.column_config.TextColumn(help="of the tokens a second of the same path as it is"),
    "variant keeps": st.column_config.TextColumn(help="of the tokens a second of the same path as it is"),
    "tokens/s as it is": st.column_config.NumberColumn(format="%.0f"),
    "tokens/s, one order": st.column_config.NumberColumn(format="%.0f"),
    "kept": st.column_config.TextColumn(help="of the tokens a second as it is"),
}


def nothing_tried(view: selection.View) -> NoReturn:
    """Say why there are no remedies in this run and what to do, and stop."""
    about = view.run.header.provenance
    if about.kind == "upload":
        st.info("This run was uploaded. Remedies are tried on the model itself: capture the pair from it.")
    else:
        st.info(
            "This run was captured without trying remedies: that runs every pair again under each of them, and times"
            " it. `--remedies` asks for it."
        )
        widgets.same_capture_with("remedies", about)
    st.stop()


def rows(tried: Sequence[RemedyRow]) -> pd.DataFrame:
    """Table of the remedies that were measured, under names people read. Tokens a second without turns are not those
    that the shares are of.
    """
    measured = [row for row in tried if row.is_measured]
    return pd.DataFrame(
        {
            "remedy": [row.name for row in measured],
            "differing logits": [out_of(row.neq or 0, row.elements or 1) for row in measured],
            "rms": [row.rms for row in measured],
            "noise ratio": [row.noise_ratio for row in measured],
            "flips": [row.flips for row in measured],
            "reference keeps": [in_words(row.reference_kept) for row in measured],
            "variant keeps": [in_words(row.variant_kept) for row in measured],
            "largest difference": [row.max_abs for row in measured],
            "max ULPs": [row.max_ulps for row in measured],
            "of": [row.compute_dtype for row in measured],
            "reference, tokens/s": [row.reference_tokens_per_second if row.turns else None for row in measured],
            "variant, tokens/s": [row.variant_tokens_per_second if row.turns else None for row in measured],
            "what it changes": [row.what for row in measured],
        }
    )


def unmeasured(tried: Sequence[RemedyRow]) -> str:
    """List, in markdown, of the remedies that were not measured, with the reason."""
    return "\n".join(
        f"- **{widgets.escaped(row.name)}**: {widgets.escaped(row.refusal)}" for row in tried if not row.is_measured
    )


def how_timed(timed: Sequence[RemedyRow] | Sequence[PriceRow]) -> str:
    """Sentence on what the shares in a table are, and how they were measured."""
    turns = sorted({row.turns for row in timed if row.turns})
    if not turns or any(row.kept is not None and row.kept.low is None for row in timed):
        return "Shares were measured without their spread, so they are given to one digit."
    count = f"{turns[0]}" if len(turns) == 1 else f"{turns[0]} to {turns[-1]}"
    return f"A share is the ratio of the medians of {count} turns; ± is its 95 % interval."


def in_words(kept: Kept | None) -> str | None:
    return None if kept is None else kept.in_words()


def prices(found: Sequence[PriceRow]) -> pd.DataFrame:
    """Table of the prices under names people read."""
    return pd.DataFrame(
        {
            "path": [row.path for row in found],
            "batch": [row.batch for row in found],
            "tokens/s as it is": [row.plain_tokens_per_second for row in found],
            "tokens/s, one order": [row.tokens_per_second for row in found],
            "kept": [row.kept.in_words() for row in found],
        }
    )


def exported(tried: Sequence[RemedyRow] | Sequence[PriceRow]) -> pd.DataFrame:
    """Table of every field, for CSV and Parquet."""
    return pd.DataFrame([vars(row) for row in tried]).convert_dtypes()


def names(view: selection.View) -> str:
    return f"`{widgets.code(view.pair.reference)}` and `{widgets.code(view.pair.variant)}`"
