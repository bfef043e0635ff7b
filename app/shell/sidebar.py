"""The selection in the sidebar: run, variant, prompt and position, of the link or as chosen."""

from collections import Counter
from functools import partial

import streamlit as st

from app import navigation
from app.components import stepper
from app.page import Page, whole
from app.shell import address, selection, store_cache, widgets
from core.errors import StoreError, UlpscopeError
from core.runs.queries.flips import telling_place
from core.runs.reader import RunReader
from core.runs.reports.issue_markdown import gravest_first
from core.text import clean, code, visible


def draw(page: Page) -> selection.View | None:
    """Draw the selection and return what it selects, None if there is no run, or on a page of the
    store, which has the run only, after it was deleted.
    """
    state = st.session_state
    target = selection.take("run")
    new = state.get("open_next")
    everything = {card.run_id: card for card in store_cache.cards()[0]}
    # A cell of a sweep may be open although cells are not listed.
    run_ids = {run_id for run_id in (target, new, state.get("run")) if run_id}
    unlisted = store_cache.cards_of(run_ids - everything.keys())
    everything |= {card.run_id: card for card in unlisted}
    # The Machine page has the runs without sides, probes of operations.
    by_id = {run_id: card for run_id, card in everything.items() if card.sides}
    if target in by_id:
        if target != state.get("run"):
            selection.new_run(target)
        elif not selection.is_linked("position"):
            state.pop("position", None)
    elif target is not None:
        what = "is not here (any more)"
        if target in everything:
            what = "holds probes of operations; the Machine page shows it"
        selection.report_bad_link(f"The run '{clean(target, 60)}' {what}.")
        # What else the link says is of that run.
        for key in selection.LINKED:
            selection.take(key)
    if new in by_id:
        selection.new_run(new)
    for gone in {new, state.get("run")} - {None} - by_id.keys():
        selection.report_bad_link(
            f"The run '{clean(str(gone), 60)}' was deleted; here are the others.",
        )
        if gone == new:
            # else the gallery would open another run
            state.pop("opened", None)
    # Else the page is about to be left, and a rerun meanwhile must not undo it.
    if not state.get("opened"):
        state.pop("open_next", None)
    with st.sidebar:
        widgets.keep_room()
        if not by_id:
            return None
        is_missing = state.get("run") not in by_id
        # After a deletion, by whomever, a page of the store selects no other run.
        is_cleared = is_missing and "run" in state and page.shows == "store"
        if is_cleared:
            state["run"] = None
        elif is_missing:
            cards = list(by_id.values())  # newest first
            own = [card for card in cards if not card.is_read_only]
            first = own[0] if own else max(cards, key=lambda card: card.flips or 0)
            selection.new_run(first.run_id)
        selection.preset_widget("run")
        # Options of a select box need distinct labels.
        count = Counter(card.name for card in by_id.values())
        labels = {
            run_id: card.name if count[card.name] == 1 else f"{card.name} · {run_id}"
            for run_id, card in by_id.items()
        }
        run_id = st.selectbox(
            "Run",
            by_id,
            None if is_cleared else 0,
            labels.__getitem__,
            key="run",
            on_change=selection.new_run,
        )
        if run_id is None:
            return None
        judged_id = store_cache.judged_run(run_id)
        if judged_id and widgets.button(
            "Open the judged run",
            "open_judged_run",
            icon=":material/gavel:",
        ):
            state["open_next"] = judged_id
            st.rerun()
        try:
            return _pick_within(store_cache.open_run(run_id), is_shown=page.shows == "run")
        except UlpscopeError as error:
            st.error(widgets.escape(str(error)))
            return None


def page_links(view: selection.View | None) -> None:
    """Draw the navigation. Its links carry the selection, which Streamlit's own navigation would
    drop.
    """
    absent = store_cache.absent(view)
    for page in navigation.PAGES:
        label = page.title
        if page.name in absent:
            label += f" :small[· {absent[page.name]}]"
        script = widgets.PAGES / f"{page.name}.py"
        st.page_link(script, label=label, query_params=address.of(view, page.name))


def link_to(view: selection.View | None) -> None:
    """Draw the link to this view, to copy."""
    popover = st.popover(
        "Link to this view",
        icon=":material/link:",
        key="link",
        on_change="rerun",
        width="stretch",
    )
    if popover.open:
        popover.code(address.absolute(view), language=None, wrap_lines=True)


def _pick_within(run: RunReader, *, is_shown: bool) -> selection.View:
    """Draw variant, prompt and position of a run, and return what is selected of it."""
    names = [pair.variant for pair in run.pairs]
    target = selection.take("variant")
    if target in names:
        st.session_state["variant"] = target
    elif target is not None:
        about = f"this run has '{names[0]}' and others."
        selection.report_bad_link(f"The link asks for variant '{clean(target, 60)}'; {about}")
    if st.session_state.get("variant") not in names:
        (gravest, _), *_ = gravest_first(run, run.pairs)
        st.session_state["variant"] = gravest.variant
    selection.preset_widget("variant")
    # A side that equals an earlier one says so.
    first_of = {side.bit_class: side.name for side in reversed(run.sides)}
    labels = {side.name: f"{side.name}  ≡ {first_of[side.bit_class]}" for side in run.sides}
    labels |= {name: name for name in first_of.values()}
    if is_shown:
        st.selectbox(
            f"Variant, compared with `{code(run.pairs[0].reference)}`",
            names,
            format_func=labels.__getitem__,
            key="variant",
        )
    pair = run.pairs[names.index(st.session_state["variant"])]
    prompts = run.header.prompts
    is_long = run.header.is_long
    # Positions of a long run do not fit into memory.
    read = RunReader.largest if is_long else RunReader.positions
    table = store_cache.cached(run, read, pair.index)
    is_open = "position" in st.session_state or selection.is_linked("position")
    _settle("prompt", 0, len(prompts) - 1, 0 if is_open else telling_place(table)[0])
    # Of top tokens not all prompts have a row on both sides.
    with_rows = table["prompt"].unique().tolist()
    if not is_long and st.session_state["prompt"] not in with_rows:
        st.session_state["prompt"] = with_rows[0]
    if len(prompts) > 1 and is_shown:
        forget = partial(st.session_state.pop, "position", None)
        label = "Sequence" if run.has_rollouts else "Prompt"
        st.number_input(label, 0, len(prompts) - 1, key="prompt", on_change=forget)
    prompt = int(st.session_state["prompt"])
    if is_long:
        table = run.positions_of(pair.index, prompt)
        if table.empty:
            raise StoreError(f"prompt {prompt} of this run was not compared; choose another one.")
    positions = table.loc[table["prompt"] == prompt, "position"]
    first = int(positions.min())
    last = int(positions.max())
    _settle("position", first, last, first if is_open else telling_place(table, prompt)[1])
    if last > first and is_shown:
        st.number_input(f"Position, {first:,} to {last:,}", first, last, key="position")
    position = int(st.session_state["position"])
    view = selection.View(run, pair, prompt, position, table)
    if is_shown:
        stepper.stepper(view)
        if view.texts and view.texts[position]:
            about = "text of this row:"
            if run.header.has_tokens:
                about = "logits here predict the token after"
            st.caption(f"{about} `{code(visible(view.texts[position]))}`")
    return view


def _settle(key: str, lowest: int, highest: int, default: int) -> None:
    """Take `key` out of the link if it is there, and clip it to the run; `default` if nothing was
    chosen yet.
    """
    target = selection.take(key)
    value = st.session_state.get(key, default) if target is None else whole(target)
    nearest = lowest if value is None else min(max(int(value), lowest), highest)
    st.session_state[key] = nearest
    if target is not None and value != nearest:
        about = f"this run has {lowest} to {highest}, and {nearest} is selected."
        selection.complain(f"The link asks for {key} '{clean(target, 60)}'; {about}")
