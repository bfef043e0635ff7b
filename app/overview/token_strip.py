"""The prompt as wrapped text, each token coloured by a figure at its position; a click or Enter
selects the position.

A component of its own because text has to wrap and stay text. Figures travel as columns, as JSON
that is written once for a prompt and a colour.
"""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import streamlit as st

from app.components import component, plots
from app.overview import OF_ROLLOUTS
from app.shell import selection, store_cache
from app.shell.selection import View
from core.numerics.arrays import DataFrame, Record
from core.rl import queries as rl
from core.runs.queries.flips import SIDES
from core.runs.queries.heat import COLOURS, Heat, heat
from core.text import join_bytes, plural

_strip = component("ulpscope_token_strip", Path(__file__).with_suffix(""))

_OF_LOGITS = ("KL", "near ties", "flips")  # colors that other values do not have
_WHOLE = ("max_ulps", "neq")
_OF_TOKEN = {  # of trainer vs. rollout
    "rollout": "rollout, nats",
    "trainer": "trainer, nats",
    "r": "r = trainer - rollout, nats",
    "ratio": "ratio = exp(r)",
    "kl": "KL (k3), nats",
}
_ROUNDED = ("max_abs", "mean_ulps", "max_row_ulps", "kl")


def columns(view: View, colour: str) -> Record:
    """Return the component's data: one list per figure, in the order of the positions; null if
    undefined.
    """
    prompt = view.header.prompts[view.prompt]
    vocabulary = view.run.vocabulary
    table = view.prompt_table
    # one line per token, also if nothing was compared there
    if view.is_list:
        table = table.set_index("position").reindex(range(prompt.positions))
        is_known = table[["is_flip", "near_tie", "could_flip"]].eq(True)
        table = table.assign(nonfinite_mismatch=0, **is_known)
    shade = heat(table, colour, view.dtype, view.header.unit)
    whole = {name: table[name] for name in _WHOLE}
    for side in SIDES:
        whole |= {side: table[f"{side}_token"], f"{side}_margin": table[f"{side}_margin_ulps"]}
    columns = {name: _whole(column) for name, column in whole.items()}
    tokens = {*columns["reference"], *columns["variant"]}
    return {
        "texts": join_bytes(prompt.token_texts) or None,
        "ids": list(prompt.token_ids) or None,
        "names": {token: vocabulary[token] for token in vocabulary.keys() & tokens},
        "vocab": view.header.vocab,
        "dtype": view.dtype,
        **_shades(shade, shade.unit),
        "flip": table["is_flip"].astype(int).tolist(),
        "near": table["near_tie"].astype(int).tolist(),
        "odd": table["nonfinite_mismatch"].tolist(),
        **columns,
        **{name: _three_digits(table[name]) for name in _ROUNDED},
    }


def _shades(shade: Heat, unit: str) -> Record:
    legend = {"unit": unit, "low": shade.low, "high": shade.high, "stops": shade.stops}
    return {"heat": shade.levels.tolist(), "legend": legend}


def _whole(column: pd.Series) -> list[int | None]:
    return [None if pd.isna(value) else int(value) for value in column.tolist()]


def _three_digits(column: pd.Series) -> list[float | None]:
    """Figures to three digits: more are in the tables, and this is sent for every position."""
    return [
        float(f"{value:.3g}") if np.isfinite(value) else None
        for value in column.to_numpy(float).tolist()
    ]


def rollout_columns(tokens: DataFrame, colour: str, highest: float | None = None) -> Record:
    """Return the component's data for a sequence of trainer vs. rollout. tokens: of
    core.rl.queries; highest: as of `heat`.
    """
    none = [0] * len(tokens)
    # KL linear too: a few tokens carry it
    colored = tokens.assign(max_abs=tokens[COLOURS[colour]])
    shade = heat(colored, "largest difference", "", highest=highest)
    texts = None
    if tokens["text"].notna().any():
        texts = join_bytes(tokens["text"].fillna("").tolist())
    return {
        "texts": texts,
        "ids": tokens["token_id"].tolist(),
        "dtype": "",
        **_shades(shade, OF_ROLLOUTS[colour]),
        "near": none,
        "odd": none,
        "flip": (tokens["clipped"] != "").astype(int).tolist(),
        "mark": "clipped",
        "clipped": tokens["clipped"].tolist(),
        "figures": {label: _three_digits(tokens[name]) for name, label in _OF_TOKEN.items()},
    }


def colours(view: View) -> list[str]:
    """Return what the tokens of a run can be colored by; the selected color is one of them."""
    options = list(OF_ROLLOUTS if view.run.has_rollouts else COLOURS)
    if not view.header.has_tokens:
        options = [name for name in options if name not in _OF_LOGITS]
    selection.settle("strip_colour", options)
    return options


def section(view: View, *, is_rollout: bool) -> None:
    """Draw the strip of the selected prompt with its heading and the choice of its color."""
    left, right = st.columns([3, 2], vertical_alignment="bottom")
    prompts = view.header.prompts
    title = "Sequence" if is_rollout else "Prompt"
    if len(prompts) > 1:
        title += f" {view.prompt}"
    count = plural(len(view.prompt_table), "position")
    heading = f"{title}, {count}" if view.header.has_tokens or len(prompts) > 1 else count
    left.subheader(view.header.worded(heading))
    colour = right.selectbox(
        "Color by",
        colours(view),
        key="strip_colour",
        label_visibility="collapsed",
    )
    token_strip(view, colour)
    if is_rollout and not view.run.vocabulary:
        st.caption("Token ids are shown; import the files with a tokenizer to have texts.")
    elif not is_rollout and not view.texts and view.header.has_tokens:
        substitute = "token ids" if prompts[view.prompt].token_ids else "positions"
        st.caption(f"This dump brought no token texts: {substitute} are shown.")


def token_strip(
    view: View,
    colour: str,
    key: str = "strip",
    highest: float | None = None,
) -> None:
    """Draw the strip of the selected prompt. highest: as of `heat`, of a rollout."""

    # Streamlit writes its data at every run, and that of 4096 positions takes 11 ms.
    def to_json() -> str:
        if not view.run.has_rollouts:
            return json.dumps(columns(view, colour))
        tokens = rl.tokens_of(view.run, view.prompt)
        return json.dumps(rollout_columns(tokens, colour, highest))

    of = (view.pair.index, view.prompt, colour, highest)
    columns_json = store_cache.remember("strip", view.run, of, to_json)
    data = {
        "columns": plots.by_address(columns_json, "strip"),
        "stamp": selection.stamp(view),
        "position": view.position,
    }
    _strip(key=key, data=data, on_go_change=partial(_go, key, view))


def _go(key: str, view: View) -> None:
    """Select the clicked position if the drawn prompt has it; what the browser sends is checked."""
    click = st.session_state[key].get("go")
    current = selection.current_view()
    if not isinstance(click, dict) or current is None:
        return
    # Another run or variant may have been selected since the browser drew this strip.
    stamps = [click.get("stamp"), selection.stamp(replace(current, prompt=view.prompt))]
    position = click.get("position")
    if stamps != [selection.stamp(view)] * 2 or not isinstance(position, int):
        return
    if view.first_position <= position <= view.last_position:
        selection.select(prompt=view.prompt, position=position)
