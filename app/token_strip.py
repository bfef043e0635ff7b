"""The prompt as wrapped text, each token coloured by a figure at its position; a click selects the position.

A component of its own because the page needs the click; token texts are untrusted and only ever set as text.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import streamlit as st

from app.words import number, visible
from core.runs.records import Prompt

_CSS = """
.strip { font-family: var(--st-code-font, monospace); font-size: 0.86rem; line-height: 1.75; max-height: 22rem; overflow-y: auto;
  border: 1px solid var(--st-border-color); border-radius: var(--st-base-radius); padding: 0.6rem 0.8rem; }
.token { cursor: pointer; border-radius: 3px; padding: 1px 0; white-space: pre-wrap; overflow-wrap: anywhere; }
.token:hover { outline: 1.5px solid var(--st-text-color); }
.token.flip { font-weight: 700; text-decoration: underline 2px #D55E00; text-underline-offset: 3px; }
.token.odd { background-color: #E3000F !important; color: #FFFFFF; text-decoration: line-through; }
.token.number { white-space: nowrap; padding: 1px 4px; }
.token.here { outline: 2.5px solid #CC79A7; }
"""

_JS = """
export default function (component) {
  const { data, parentElement, setTriggerValue } = component;
  const root = parentElement.querySelector("#strip");
  if (root.dataset.stamp !== data.stamp) {
    const parts = document.createDocumentFragment();
    data.tokens.forEach((token, position) => {
      const button = document.createElement("span");
      button.setAttribute("role", "button");
      button.className = "token" + (token.flip ? " flip" : "") + (token.odd ? " odd" : "") + (token.number ? " number" : "");
      button.textContent = token.text;
      button.title = token.title;
      button.style.backgroundColor = "rgba(213, 94, 0, " + token.heat + ")";
      button.dataset.position = position;
      parts.appendChild(button);
      if (token.number) parts.appendChild(document.createTextNode(" "));
    });
    root.replaceChildren(parts);
    root.dataset.stamp = data.stamp;
  }
  root.querySelectorAll(".here").forEach((element) => element.classList.remove("here"));
  const here = root.querySelector('[data-position="' + data.selected + '"]');
  if (here) {
    here.classList.add("here");
    const above = here.offsetTop - root.offsetTop;
    if (above < root.scrollTop || above > root.scrollTop + root.clientHeight - 24) root.scrollTop = above - root.clientHeight / 2;
  }
  root.onclick = (event) => {
    const button = event.target.closest(".token");
    if (button) setTriggerValue("clicked", Number(button.dataset.position));
  };
}
"""

_strip = st.components.v2.component("ulpscope_token_strip", html="<div class='strip' id='strip'></div>", css=_CSS, js=_JS)

COLOURS = {
    "largest difference": "max_abs",
    "max ULPs": "max_ulps",
    "mean ULPs": "mean_ulps",
    "differing logits": "neq",
    "KL": "kl",
    "near ties": "margin",
}


def _heat(table: pd.DataFrame, colour: str) -> np.ndarray:
    """0..0.75, how strongly each token is coloured. [positions]. ULPs and KL are spread over decades, so their logarithm counts."""
    if colour == "margin":
        margins = table[["reference_margin", "variant_margin"]].min(axis=1).to_numpy(float)
        reach = 2 * table["max_abs"].to_numpy(float)
        with np.errstate(divide="ignore", invalid="ignore"):
            heat = np.where(margins <= reach, 1.0, reach / margins)
        return 0.75 * np.nan_to_num(heat)
    values = np.nan_to_num(table[colour].to_numpy(float))
    if colour in ("max_ulps", "kl") and (values > 0).any():
        positive = values[values > 0]
        low, high = np.log(positive.min()) - 0.7, np.log(positive.max())
        values = np.where(values > 0, (np.log(np.maximum(values, positive.min())) - low) / (high - low), 0.0)
        return 0.75 * values
    return 0.75 * values / values.max() if values.max() > 0 else values


def token_strip(
    table: pd.DataFrame, prompt: Prompt, colour: str, selected: int, stamp: str, on_click: Callable[[int], None]
) -> None:
    """Draw the strip for one prompt's table; `stamp` names run, pair and prompt, so that a new selection redraws nothing else."""
    column = COLOURS[colour]
    tokens = []
    columns = ("max_abs", "max_ulps", "neq", "kl", "is_flip", "reference_margin_ulps", "nonfinite_mismatch")
    for position, (heat, row) in enumerate(zip(_heat(table, column), table[list(columns)].itertuples(index=False), strict=True)):
        label = prompt.token_texts[position] if prompt.token_texts else str(position)
        if not prompt.token_texts and prompt.token_ids:
            label = f"#{prompt.token_ids[position]}"
        tokens.append(
            {
                "text": visible(label).replace("↵", "↵\n"),
                "number": not prompt.token_texts,
                "odd": bool(row.nonfinite_mismatch),
                "heat": round(float(heat), 3),
                "flip": bool(row.is_flip),
                "title": f"position {position}{', FLIP' if row.is_flip else ''}\n"
                + (f"{row.nonfinite_mismatch:,} NaN or infinite on one side\n" if row.nonfinite_mismatch else "")
                + f"largest difference {number(row.max_abs)} logits\n"
                f"max {row.max_ulps:,} ULPs, {row.neq:,} logits differ\nreference margin "
                f"{'undefined' if pd.isna(row.reference_margin_ulps) else f'{row.reference_margin_ulps:,} ULPs'}\nKL {number(row.kl, 3)} nats",
            }
        )

    def clicked() -> None:
        position = st.session_state["strip"].get("clicked")
        if position is not None:
            on_click(int(position))

    _strip(key="strip", data={"tokens": tokens, "selected": selected, "stamp": f"{stamp} {colour}"}, on_clicked_change=clicked)
