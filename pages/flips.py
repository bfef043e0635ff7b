"""Flips: every position whose argmax differs, with what is needed to see why."""

import pandas as pd
import streamlit as st

from app import continuations, state, widgets, words

view = widgets.head(
    "Flips",
    state.current_view(),
    "Positions at which the two sides prefer different next tokens, over all prompts. Margins in ULPs of {dtype}.",
)
if view.run.generations:
    continuations.section(view)
    st.subheader("Flips along the scored tokens")

table = view.table
flips = table[table["is_flip"]].reset_index(drop=True)
if flips.empty:
    closest = view.prompt_table["reference_margin"].min()
    st.info(
        f"No flips: both sides have the same argmax at all {len(table):,} positions. "
        f"The smallest reference margin of this prompt is {words.number(closest)} logits; {view.pair.summary.near_ties} positions of the run are near ties."
    )
    st.stop()


def choose() -> None:
    selection = st.session_state["flip_table"]["selection"]
    rows = selection["rows"] or [cell[0] for cell in selection["cells"]]
    if rows:
        state.select(prompt=int(flips.loc[rows[0], "prompt"]), position=int(flips.loc[rows[0], "position"]))


columns = {
    "prompt": flips["prompt"],
    "position": flips["position"],
    view.pair.reference: widgets.table_texts(flips["reference_token"], view.run),
    view.pair.variant: widgets.table_texts(flips["variant_token"], view.run),
    "margins, ULPs": widgets.both(flips["reference_margin_ulps"], flips["variant_margin_ulps"]),
    "margins, logits": widgets.both(flips["reference_margin"], flips["variant_margin"]),
    "largest difference": flips["max_abs"],
    "KL, nats": flips["kl"],
}
if len(view.run.header.prompts) == 1:
    del columns["prompt"]
st.dataframe(
    columns,
    hide_index=True,
    key="flip_table",
    on_select=choose,
    selection_mode=["single-row", "single-cell"],
    column_config=widgets.EXACT,
    placeholder="–",
)
st.caption(
    f"{words.plural(len(flips), 'flip')} in {words.plural(len(table), 'position')}. Margins as reference / variant; largest differences in logits. Click one to look at it."
)

if not bool(view.here["is_flip"]):
    first = flips.iloc[0]
    st.write("The selected position is no flip.")
    st.button(
        f"Go to the first flip, position {first['position']}",
        on_click=state.select, kwargs={"prompt": int(first["prompt"]), "position": int(first["position"])},
    )  # fmt: skip
    st.stop()

here = view.here
vocabulary = view.run.vocabulary


st.subheader(f"Position {view.position}")
if view.texts:
    before = "".join(view.texts[max(0, view.position - 60) : view.position + 1])
    left, right = st.columns(2)
    for column, name, token in (
        (left, view.pair.reference, here["reference_token"]),
        (right, view.pair.variant, here["variant_token"]),
    ):
        column.caption(f"`{widgets.code(name)}` goes on with {widgets.escaped(widgets.table_texts([token], view.run)[0])}")
        chosen = "" if pd.isna(token) else vocabulary.get(int(token), f"⟨token {int(token)}⟩")
        column.code(before + "▸" + words.visible(chosen) + "◂", language=None, wrap_lines=True)
top = widgets.best_tokens(view)
margins = f"{words.number(here['reference_margin'])} and {words.number(here['variant_margin'])}"
if here["nonfinite_mismatch"]:
    why = f"{int(here['nonfinite_mismatch'])} logits here are NaN or infinite on one side only, which can change the argmax by itself."
elif here["near_tie"]:
    why = (
        f"The two margins are {margins} logits, and logits here differ by up to {words.number(here['max_abs'])}: two differences of that size can carry one "
        "candidate past the other. Whether differences of that size are rounding is another question, which only controls can answer."
    )
else:
    why = f"The margins are {margins} logits, more than twice the largest difference of {words.number(here['max_abs'])}; such a flip should be impossible."
st.markdown("**Why it could flip.** " + why)
ranks = top[top["token_id"].isin([t for t in (here["reference_token"], here["variant_token"]) if not pd.isna(t)])]
st.dataframe(
    {
        "token": [words.token(i, t) for i, t in zip(ranks["token_id"], ranks["text"], strict=True)],
        "reference logit": ranks["reference_logit"], "variant logit": ranks["variant_logit"],
        "reference rank": ranks["reference_rank"] + 1, "variant rank": ranks["variant_rank"] + 1,
        "reference probability": ranks["reference_probability"], "variant probability": ranks["variant_probability"],
    },
    hide_index=True, key="flip_ranks", placeholder="–",
    column_config={f"{side} probability": st.column_config.NumberColumn(format="percent") for side in ("reference", "variant")}
    | {f"{side} logit": st.column_config.NumberColumn(format="%.9g") for side in ("reference", "variant")},
)  # fmt: skip
