"""Both sides' free continuations of a prompt beside each other, with the token that parts them marked; a click selects
a position.

A component of its own because the page needs the click; token texts are untrusted and only ever set as text.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pandas as pd
import streamlit as st

from app.shell import exports, store_cache, widgets
from app.shell import selection as state
from core.runs.reader import RunReader
from core.runs.views.continuations import Continuation, continuations, logits_of_chosen
from core.runs.views.elements import row_of
from core.text import exact, file_name, number, plural, visible

GIVEN_TOKENS = 48  # of the prompt's end: enough to see what is being continued

_CSS = """
#sides { display: grid; grid-template-columns: repeat(auto-fit, minmax(19rem, 1fr)); gap: 0.8rem; }
.name { font-family: var(--st-code-font, monospace); font-size: 0.86rem; font-weight: 600; margin-bottom: 0.25rem;
  overflow-wrap: anywhere; }
.name.reference { color: #0072B2; } .name.variant { color: #D55E00; }
.box { font-family: var(--st-code-font, monospace); font-size: 0.86rem; line-height: 1.75; height: 17rem;
  overflow-y: auto; position: relative;
  border: 1px solid var(--st-border-color); border-radius: var(--st-base-radius); padding: 0.6rem 0.8rem; }
.box.short { height: auto; max-height: 17rem; }
.token { border-radius: 3px; padding: 1px 0; white-space: pre-wrap; overflow-wrap: anywhere; }
.token.number { white-space: nowrap; padding: 1px 4px; }
.token.place { cursor: pointer; }
.token.place:hover { outline: 1.5px solid var(--st-text-color); }
.token.given { opacity: 0.45; }
.token.common { opacity: 0.8; }
.token.parting { color: #FFFFFF; font-weight: 700; padding: 2px 3px; }
.reference .token.parting { background-color: #0072B2; } .variant .token.parting { background-color: #D55E00; }
.token.here { outline: 2.5px solid #CC79A7; outline-offset: 1px; }
"""

_JS = """
export default function (component) {
  const { data, parentElement, setTriggerValue } = component;
  const root = parentElement.querySelector("#sides");
  if (root.dataset.stamp !== data.stamp) {
    root.replaceChildren();
    data.sides.forEach((side) => {
      const column = document.createElement("div");
      column.className = side.role;
      const name = document.createElement("div");
      name.className = "name " + side.role;
      name.textContent = side.name;
      const box = document.createElement("div");
      box.className = "box " + (side.tokens.length < 40 ? "short" : "");
      side.tokens.forEach((token) => {
        const part = document.createElement("span");
        part.className = "token " + token.role + (token.number ? " number" : "")
          + (token.position === null ? "" : " place");
        part.textContent = token.text;
        part.title = token.title;
        if (token.position !== null) {
          part.setAttribute("role", "button");
          part.dataset.position = token.position;
        }
        box.appendChild(part);
        if (token.number) box.appendChild(document.createTextNode(" "));
      });
      column.append(name, box);
      root.appendChild(column);
    });
    root.dataset.stamp = data.stamp;
    root.querySelectorAll(".box").forEach((box) => {
      const parting = box.querySelector(".parting");
      if (parting) box.scrollTop = parting.offsetTop - box.clientHeight / 2;
    });
  }
  root.querySelectorAll(".here").forEach((element) => element.classList.remove("here"));
  root.querySelectorAll('[data-position="' + data.selected + '"]').forEach((element) => element.classList.add("here"));
  root.onclick = (event) => {
    const part = event.target.closest(".place");
    if (part) setTriggerValue("clicked", Number(part.dataset.position));
  };
}
"""

_sides = st.components.v2.component("ulpscope_continuations", html="<div id='sides'></div>", css=_CSS, js=_JS)


def _tokens(run: RunReader, found: Continuation, tokens: tuple[int, ...], is_reference: bool) -> list[dict]:
    """Tokens that the component draws of one side: the prompt's end, what it generated, and which positions can be
    selected.
    """
    prompt = run.header.prompts[found.prompt]
    drawn = []
    for place in range(max(0, found.given_positions - GIVEN_TOKENS), found.given_positions):
        text = prompt.token_texts[place] if prompt.token_texts else None
        token = prompt.token_ids[place] if prompt.token_ids else None
        drawn.append(_token(text, place if token is None else token, "given", None, f"given, position {place}"))
    parting = len(tokens) if found.step is None else found.step
    for step, token in enumerate(tokens):
        role = "common" if step < parting else "parting" if step == parting else "after"
        position: int | None = found.given_positions - 1 + step
        title = f"token {step + 1}, chosen by the logits at position {position}"
        if not is_reference and role == "after":
            position, title = None, f"token {step + 1} of the variant's own text, which the run does not score"
        elif position is not None and position >= prompt.positions:
            position, title = None, f"token {step + 1}, beyond the positions that the run scores"
        drawn.append(_token(run.vocabulary.get(token), token, role, position, title))
    return drawn


def _token(text: str | None, token: int, role: str, position: int | None, title: str) -> dict:
    shown = f"#{token}" if text is None else visible(text).replace("↵", "↵\n")
    return {"text": shown, "number": text is None, "role": role, "position": position, "title": title}


def side_by_side(view: state.View, found: Continuation, on_click: Callable[[int], None]) -> None:
    """Draw both continuations of the selected prompt."""
    sides = [
        {"role": role, "name": name, "tokens": _tokens(view.run, found, tokens, role == "reference")}
        for role, name, tokens in (
            ("reference", view.pair.reference, found.reference_tokens),
            ("variant", view.pair.variant, found.variant_tokens),
        )
    ]

    def clicked() -> None:
        position = st.session_state["continuations"].get("clicked")
        if position is not None:
            on_click(int(position))

    stamp = f"{view.run.run_id} {found.pair} {found.prompt}"
    _sides(
        key="continuations", data={"sides": sides, "selected": view.position, "stamp": stamp}, on_clicked_change=clicked
    )


def sentence(view: state.View, found: Continuation) -> str:
    """Sentence on where the two part, in markdown."""
    names = f"`{widgets.code(found.variant)}` and `{widgets.code(view.pair.reference)}`"
    if found.chosen is None:
        return f"{names} do not diverge within {plural(found.compared, 'token')}."
    ours, theirs = (f"`{widgets.code(text)}`" for text in widgets.table_texts(found.chosen, view.run))
    before = f"after {plural(found.agreed, 'token')} in common" if found.agreed else "with the first token"
    return (
        f"{names} diverge {before}, at position {found.position}: next token {ours} on the reference, {theirs} on the"
        " variant."
    )


def table(run: RunReader) -> tuple[list[Continuation], dict[str, list]]:
    """Every continuation of the run, and the columns of a table with a row for each."""
    found = continuations(run)
    rows = [figures_at(run, one) for one in found]
    columns: dict[str, list] = {
        "prompt": [one.prompt for one in found],
        "variant": [one.variant for one in found],
        "parts after": [plural(one.agreed, "token") if one.chosen else f"never in {one.compared}" for one in found],
        "position": pd.array([one.position for one in found], "Int64"),
        "reference token": [widgets.table_texts(one.chosen[:1], run)[0] if one.chosen else "" for one in found],
        "variant token": [widgets.table_texts(one.chosen[1:], run)[0] if one.chosen else "" for one in found],
        "margins, ULPs": [
            "" if row is None else widgets.both([row["reference_margin_ulps"]], [row["variant_margin_ulps"]])[0]
            for row in rows
        ],
        "largest difference": [None if row is None else float(row["max_abs"]) for row in rows],
    }
    if len(run.header.prompts) == 1:
        del columns["prompt"]
    if len(run.pairs) == 1:
        del columns["variant"]
    return found, columns


def figures_at(run: RunReader, found: Continuation) -> pd.Series | None:
    """The row of the position table where they part; None where they do not, or where the run does not score that
    position.
    """
    if found.position is None or found.position >= run.header.prompts[found.prompt].positions:
        return None
    return store_cache.positions(run, found.pair).iloc[row_of(run, found.prompt, found.position)]


def section(view: state.View) -> None:
    """Draw the continuations of the selected prompt, what decided where they part, and the table of all prompts and
    variants.
    """
    st.subheader(f"Continuations{f' of prompt {view.prompt}' if len(view.run.header.prompts) > 1 else ''}")
    found = next((one for one in continuations(view.run, view.prompt) if one.pair == view.pair.index), None)
    if found is None:
        st.write("This prompt was only scored; the prompts in the table were continued.")
    else:
        st.markdown(sentence(view, found))
        side_by_side(view, found, lambda position: state.select(position=position))
        st.caption("Grey: what was given; on colour: the first token that differs.")
        _why(view, found)
        with st.expander("Both texts"):
            for name, text in ((view.pair.reference, found.reference_text), (view.pair.variant, found.variant_text)):
                st.caption(f"`{widgets.code(name)}`")
                widgets.code_block(text, wraps=True)
    _all(view.run)


def _why(view: state.View, found: Continuation) -> None:
    """Draw both logits of the two tokens where they part, and the margins."""
    here = figures_at(view.run, found)
    if found.chosen is None or found.position is None or here is None:
        return
    if not found.is_confirmed(here):
        stored = " and ".join(widgets.table_texts([here["reference_token"], here["variant_token"]], view.run))
        made = " and ".join(widgets.table_texts(found.chosen, view.run))
        st.warning(
            f"The stored logits at position {found.position} prefer {widgets.escaped(stored)}, not the generated"
            f" {widgets.escaped(made)}: a path here does not compute the same tokens the same way twice."
        )
    values = logits_of_chosen(view.run, found)
    logits = [[exact(v) if view.run.has_all_logits or not pd.isna(v) else "not kept" for v in side] for side in values]
    margins = " and ".join(
        f"{number(here[f'{side}_margin'])} ({_ulps(here[f'{side}_margin_ulps'])})" for side in ("reference", "variant")
    )
    st.dataframe(
        {
            "token": widgets.table_texts(found.chosen, view.run),
            "chosen by": [view.pair.reference, view.pair.variant],
            f"logit, {view.pair.reference}": logits[0],
            f"logit, {view.pair.variant}": logits[1],
        },
        hide_index=True,
        key="parting_logits",
        placeholder="–",
    )
    st.caption(f"Margins: {margins}, ULPs of {view.dtype}; largest difference {number(here['max_abs'])}.")


def _ulps(value: float) -> str:
    return "undefined" if pd.isna(value) else plural(int(value), "ULP")


def _all(run: RunReader) -> None:
    """Draw every prompt that was continued, every variant; a row selects both and the position where they part."""
    found, columns = table(run)

    def choose() -> None:
        selection = st.session_state["continuation_table"]["selection"]
        rows = selection["rows"] or [cell[0] for cell in selection["cells"]]
        if rows:
            one = found[rows[0]]
            position = one.given_positions - 1 if one.position is None else one.position
            state.select(variant=one.variant, prompt=one.prompt, position=position)

    st.dataframe(
        columns,
        hide_index=True,
        key="continuation_table",
        on_select=choose,
        selection_mode=["single-row", "single-cell"],
        column_config=widgets.EXACT,
        placeholder="–",
    )
    with st.container(horizontal=True, horizontal_alignment="right"):
        exports.download(
            {"continuations": partial(exported, found)}, f"{file_name(run.run_id)}-continuations", "continuations_files"
        )


def exported(found: list[Continuation]) -> pd.DataFrame:
    """Table for a download, one row a continued prompt and variant: how far the two agree, the tokens where they part,
    and both texts as they are.
    """
    chosen = [one.chosen or (None, None) for one in found]
    return pd.DataFrame(
        {
            "prompt": [one.prompt for one in found],
            "variant": [one.variant for one in found],
            "given_positions": [one.given_positions for one in found],
            "compared_tokens": [one.compared for one in found],
            "agreed_tokens": [one.agreed for one in found],
            "parting_position": pd.array([one.position for one in found], "Int64"),
            "reference_token": pd.array([tokens[0] for tokens in chosen], "Int64"),
            "variant_token": pd.array([tokens[1] for tokens in chosen], "Int64"),
            "reference_continuation": [one.reference_text for one in found],
            "variant_continuation": [one.variant_text for one in found],
        }
    )
