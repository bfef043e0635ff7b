"""Parts of the Flips page: the table of positions, why one could flip, and what each side wrote."""

from collections.abc import Hashable
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from app.components import tables
from app.shell import exports, selection, store_cache, widgets
from core.numerics.metrics import METRICS
from core.runs.file.records import UNITS
from core.runs.queries.flips import SIDES, continuations
from core.runs.reader import RunReader
from core.text import file_name, number, plural, text_of

# of the prompt's end: enough to see what is being continued
GIVEN_TOKENS = 48
_FIRST = (
    "prompt",
    "variant",
    "agreed_tokens",
    "parting_position",
    "position",
    "is_flip",
    "reference_token",
    "variant_token",
    "behind_choice",
    "reference_margin_ulps",
    "variant_margin_ulps",
    "max_abs",
    "near_tie",
    "reference_margin",
    "variant_margin",
    *(f"{side}_token_probability_change" for side in SIDES),
    "kl",
    "reference_token_variant_rank",
    "variant_token_reference_rank",
)
_COLUMNS = tuple(
    dict.fromkeys([*_FIRST, *(metric.name for metric in METRICS if metric.is_reported)]),
)


def draw_positions(
    table: pd.DataFrame,
    run: RunReader,
    key: str,
    most: int,
    of: tuple[Hashable, ...] = (),
    **options: Any,
) -> None:
    """Draw positions with both argmaxes as texts; a click selects one. of: what `table` depends on
    besides the run.
    """

    def with_texts() -> pd.DataFrame:
        single = {"prompt": not run.header.has_several_prompts, "variant": len(run.pairs) == 1}
        # A column that is true in every row of a list of flips says nothing.
        single["is_flip"] = "is_flip" in table and table["is_flip"].all()
        columns = [name for name in _COLUMNS if name in table and not single.get(name)]
        shown = table[columns]
        for name in ("reference_token", "variant_token"):
            shown[name] = widgets.table_texts(table[name], run)
        return shown

    rows = store_cache.remember(key, run, of, with_texts)
    if "on_select" not in options:
        options["on_select"] = partial(selection.select_row, table, key)
        selection.mark_row(table, key)
    tables.draw(
        rows, key, most, run.header.unit, selection_mode=["single-row", "single-cell"], **options
    )


def draw_continuations(view: selection.View) -> None:
    """Draw what both sides wrote after the selected prompt, and the table of all prompts and
    variants.
    """
    run = view.run
    pair = view.pair
    table = continuations(run)
    st.subheader(f"Continuations{view.of_prompt}")
    prompt_rows = table[(table["prompt"] == view.prompt) & (table["pair"] == pair.index)]
    if prompt_rows.empty:
        st.write("This prompt was only scored; the prompts in the table were continued.")
    for row in prompt_rows.itertuples():
        names = f"`{widgets.code(pair.variant)}` and `{widgets.code(pair.reference)}`"
        is_parted = not pd.isna(row.parting_position)
        if is_parted:
            ours, theirs = widgets.table_texts([row.reference_token, row.variant_token], run)
            st.markdown(
                f"{names} diverge after {plural(row.agreed_tokens, 'token')} in common, at position"
                f" {row.parting_position:,}: next token `{widgets.code(ours)}` on the reference,"
                f" `{widgets.code(theirs)}` on the variant.",
            )
            if not pd.isna(row.is_confirmed) and not row.is_confirmed:
                st.warning(
                    f"The stored logits at position {row.parting_position} prefer other tokens than"
                    " the generated ones: a path does not compute the same tokens the same way"
                    " twice.",
                )
        else:
            st.markdown(f"{names} do not diverge within {plural(row.compared_tokens, 'token')}.")
        given = view.texts[: row.given_positions]
        context = text_of(given[-GIVEN_TOKENS:])
        sides = zip(st.columns(2), (pair.reference, pair.variant), (0, pair.index + 1), strict=True)
        for column, side, index in sides:
            tokens = run.generations[view.prompt].tokens[index]
            texts = [run.vocabulary.get(token, f"⟨token {token}⟩") for token in tokens]
            continuation = text_of(texts)
            if is_parted:
                count = row.agreed_tokens
                same = text_of(texts[:count])
                rest = text_of(texts[count + 1 :])
                continuation = f"{same}▸{texts[count]}◂{rest}"
            with column:
                st.caption(f"`{widgets.code(side)}`")
                widgets.code_block(f"{context}⏎ {continuation}", wraps=True)
        st.caption("Before ⏎: the prompt. Marked: the first token that differs.")

    def choose() -> None:
        for place in selection.clicked_rows("continuations"):
            row = table.iloc[place]
            parting = row["parting_position"]
            # sides that never diverge have no such position, so the last given one is selected
            position = row["given_positions"] - 1 if pd.isna(parting) else parting
            selection.select(
                variant=row["variant"],
                prompt=int(row["prompt"]),
                position=int(position),
            )

    draw_positions(table, run, "continuations", 8, on_select=choose)
    exports.download(
        {"continuations": table}, f"{file_name(run.run_id)}-continuations", "continuations_files"
    )


def explain_flip(figures: pd.Series, top: pd.DataFrame, unit: str = "logits") -> str:
    """Say how close the decision was at this position, in markdown. top: of
    core.runs.queries.elements.
    """
    if count := int(figures["nonfinite_mismatch"]):
        return (
            f"{plural(count, 'logit')} here NaN or infinite on one side only, which can change the"
            " argmax by itself."
        )
    # logits are shown exactly; further digits of a log-probability are noise
    digits = 3 if unit == UNITS["logprob"] else 12
    parts = []
    for side in SIDES:
        margin = figures[f"{side}_margin"]
        if pd.isna(margin):
            return "A side has no finite margin here, so the bound does not apply."
        steps = figures[f"{side}_margin_ulps"]
        size = "0 (exact tie)"
        if margin:
            ulps = "" if pd.isna(steps) else f" ({plural(int(steps), 'ULP')})"
            size = f"{margin:.{digits}g} {unit}{ulps}"
        parts.append(f"{size} on the {side}")
    numbers = (
        f"{', '.join(parts)}. Largest difference here: {number(float(figures['max_abs']))} {unit}."
    )
    if not figures["could_flip"]:
        bound = "The smaller margin is more than twice that, so a flip is impossible here"
        if figures["is_flip"]:
            bound += ", and yet the argmax changed: the figures contradict each other"
        return f"{numbers} {bound}."
    argmaxes = top.set_index("token_id").reindex([figures[f"{side}_token"] for side in SIDES])
    ours = argmaxes.iloc[0]
    theirs = argmaxes.iloc[1]
    gaps = [ours[f"{side}_logit"] - theirs[f"{side}_logit"] for side in SIDES]
    # a run without logits may lack one
    if not figures["is_flip"] or pd.isna(gaps).any():
        return numbers
    tie = "" if all(gaps) else " At a tie the lower token id wins."
    start, end = (f"{gap:+.{digits}g}" if gap else "0" for gap in gaps)
    value = "Log-probability" if unit == UNITS["logprob"] else "Logit"
    tokens = f"{value} of the reference's argmax minus that of the variant's argmax"
    return f"{numbers} {tokens}: {start} on the reference, {end} on the variant.{tie}"
