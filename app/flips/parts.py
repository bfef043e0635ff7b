"""Parts of the Flips page: the table of flips, and the reason why the selected one could happen."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from app.components import plots
from app.flips import charts
from app.near_ties import parts
from app.shell import exports, selection, store_cache, widgets, wording
from core.runs.views.flips import MOST_READ, STORED_RANKS, candidates, flip_table
from core.runs.views.verdicts import Finding
from core.text import plural

SIDES = ("reference", "variant")
_CHANGE = "{}'s token, change of probability"
_RANK = "{}'s token, rank on the other side (1 = argmax)"
COLUMNS = (
    widgets.EXACT
    | parts.PINNED
    | {f"{side} margin, logits": st.column_config.NumberColumn(format="%.9g") for side in SIDES}
    | {f"{side} margin, ULPs": widgets.GROUPED for side in SIDES}
    | {
        _CHANGE.format(side): st.column_config.NumberColumn(
            format="percent",
            help=f"probability of the {side}'s argmax on the variant less that on the reference, in percentage points",
        )
        for side in SIDES
    }
    | {_RANK.format(side): widgets.GROUPED for side in SIDES}
)


def table(view: selection.View, near_ties: bool) -> pd.DataFrame:
    """Table of every flip of the pair, in all prompts; see core.runs.views.flips.flip_table."""

    def read() -> pd.DataFrame:
        with st.spinner("Reading the logits at the flips"):
            return flip_table(view.run, view.pair.index, view.table, near_ties=near_ties)

    return store_cache.cached("flips", store_cache.stamp_of(view.run), (view.pair.index, near_ties), read)


def draw_candidates(view: selection.View, top: pd.DataFrame) -> None:
    """Draw the two tokens between which the argmax is decided on the grid of the dtype."""
    found = candidates(top, view.run.header.format)
    if found is None:
        return
    texts = [wording.token(token, view.run.vocabulary.get(token)) for token in found.tokens]
    figure = plots.cached(
        view.run,
        (view.pair.index, view.prompt, view.position),
        charts.on_grid,
        found,
        (view.pair.reference, view.pair.variant),
        (texts[0], texts[1]),
        view.dtype,
    )
    picture = exports.picture_of(view, "candidates", at_position=True)
    plots.draw(figure, key="candidates", picture=picture, of=str(view.position))
    if found.steps is not None and not len(found.grid):
        st.caption(f"The four logits lie within {plural(found.steps, 'step')} of {view.dtype}: too many for lines.")


def columns(found: pd.DataFrame, view: selection.View, near_ties: bool) -> dict[str, object]:
    """The table under names people read; every figure in a column of its own, so that each sorts."""
    shown: dict[str, object] = {
        "prompt": found["prompt"],
        "position": found["position"],
        "flip": found["is_flip"],
        **{f"{side} token": widgets.table_texts(found[f"{side}_token"], view.run) for side in SIDES},
        **{f"{side} margin, ULPs": found[f"{side}_margin_ulps"] for side in SIDES},
        "largest difference": found["max_abs"],
        **{f"{side} margin, logits": found[f"{side}_margin"] for side in SIDES},
        **{_CHANGE.format(side): found[f"{side}_token_probability_change"] for side in SIDES},
        "KL, nats": found["kl"],
        _RANK.format("reference"): found["reference_token_variant_rank"],
        _RANK.format("variant"): found["variant_token_reference_rank"],
    }
    if len(view.run.header.prompts) == 1:
        del shown["prompt"]
    if not near_ties:
        del shown["flip"]
    return shown


def unread(found: pd.DataFrame) -> str:
    """Sentence on ranks and probabilities that were left out, empty where none were."""
    known = found["reference_token"].notna() & found["variant_token"].notna()
    missing = int(
        (known & (found["reference_token_variant_rank"].isna() | found["variant_token_reference_rank"].isna())).sum()
    )
    if not missing:
        return ""
    return (
        f" {plural(missing, 'row')} lack ranks and probabilities: a token there is not among the other side's"
        f" {STORED_RANKS} stored best, and {MOST_READ} rows of logits were read already."
    )


def is_it_rounding(judged: Finding) -> str:
    """Sentence, in markdown, on whether the pair's differences are rounding: its verdict, or that it has none yet."""
    if not judged.is_judged:
        return "Pair verdict: none. Only controls can tell whether differences of that size are rounding."
    said = widgets.escaped(wording.opening(judged.sentence.replace("`", "'")))
    return f"Pair verdict: **{widgets.escaped(judged.name)}**. {said}".rstrip()


def why(here: pd.Series, top: pd.DataFrame) -> str:
    """Reason why the argmax could change at this position, with its numbers, in markdown. top: see
    core.runs.views.elements.top_of_both.
    """
    if here["nonfinite_mismatch"]:
        return (
            f"{plural(int(here['nonfinite_mismatch']), 'logit')} here NaN or infinite on one side only, which"
            " can change the argmax by itself."
        )
    margins = {side: here[f"{side}_margin"] for side in SIDES}
    if any(pd.isna(margin) for margin in margins.values()):
        return "A side has no finite margin here, so the bound says nothing."
    smaller = min(SIDES, key=lambda side: margins[side])
    bound = 2 * float(here["max_abs"])
    ulps = plural(int(here[f"{smaller}_margin_ulps"]), "ULP")
    numbers = (
        f"The smaller margin is the {smaller}'s, {margins[smaller]:.12g} logits ({ulps}). The largest difference here"
        f" is {here['max_abs']:.12g} logits, twice that {bound:.12g}."
    )
    if not here["could_flip"]:
        return f"{numbers} The margin is larger, so a flip is impossible here" + (
            ", and yet the argmax changed: the figures contradict each other." if here["is_flip"] else "."
        )
    possible = (
        "The margin is no larger than that, so one token can pass the other."
        if margins[smaller]
        else "It is a tie, which any difference can decide."
    )
    return f"{numbers} {possible} {_moved(here, top)}".rstrip()


def _moved(here: pd.Series, top: pd.DataFrame) -> str:
    """Sentence on how far the two argmaxes moved, and what that made of the gap between them; empty where there is no
    flip.
    """
    if not here["is_flip"] or pd.isna(here["reference_token"]) or pd.isna(here["variant_token"]):
        return ""
    chosen = {side: top[top["token_id"] == int(here[f"{side}_token"])] for side in SIDES}
    if any(row.empty for row in chosen.values()):  # of a run without these logits, not among the best of both sides
        return ""
    rows = {side: row.iloc[0] for side, row in chosen.items()}
    gaps = {on: rows["reference"][f"{on}_logit"] - rows["variant"][f"{on}_logit"] for on in SIDES}
    moves = {side: row["variant_logit"] - row["reference_logit"] for side, row in rows.items()}
    return (
        f"The reference's token moved by {_signed(moves['reference'])}, the variant's by {_signed(moves['variant'])}."
        f" First minus second: {_signed(gaps['reference'])} → {_signed(gaps['variant'])}{_tie(gaps)}."
    )


def _signed(value: float) -> str:
    return f"{value:+.12g}" if value else "0"


def _tie(gaps: dict[str, float]) -> str:
    tied = [side for side in SIDES if gaps[side] == 0]
    return f" (equal on the {' and the '.join(tied)}: the lower token id counts as the argmax)" if tied else ""
