"""The selection in the sidebar: run, variant, prompt and position, out of the link or as they were chosen."""

from __future__ import annotations

from collections import Counter

import streamlit as st

from app import navigation
from app.components import stepper
from app.shell import address, link, selection, store_cache, widgets
from core.errors import UlpscopeError
from core.runs.queries.flips import telling_place
from core.runs.reader import RunReader
from core.runs.store.cards import RunCard
from core.text import code, shown, visible


def draw() -> selection.View | None:
    """Draw the selection (run, variant, prompt, position) and return what it selects; None where there is no run."""
    asked = link.linked("run")
    everything, _ = store_cache.cards()
    listed = {card.run_id for card in everything}
    named = {str(run_id) for run_id in (asked, *(st.session_state.get(key) for key in ("open_next", "run"))) if run_id}
    everything = [*everything, *store_cache.cards_of(named - listed)]  # of a sweep whose cells are not listed
    cards = [card for card in everything if card.sides]  # probes of operations have none; the Ops page shows them
    by_id = {card.run_id: card for card in cards}
    if asked is not None and any(card.run_id == asked and not card.sides for card in everything):
        link.report_bad_link(
            f"The run '{shown(asked, 60)}' holds probes of operations and no logits; the Ops page shows it."
        )
    elif asked is not None and asked not in by_id:
        link.report_bad_link(f"There is no run '{shown(asked, 60)}' here (any more); these are the runs there are.")
        for key in link.LINKED:
            link.linked(key)  # what else the link says is of that run
    elif asked is not None:
        if asked != st.session_state.get("run"):
            selection.new_run()
        elif not link.is_linked("position"):
            st.session_state.pop("position", None)
        st.session_state["run"] = asked
    new = st.session_state.get("open_next")
    if not st.session_state.get(
        "opened"
    ):  # else the page is about to be left, and what the browser says meanwhile must not undo it
        st.session_state.pop("open_next", None)
    if new is not None and new not in by_id:
        st.session_state.pop("open_next", None)
        link.report_bad_link(f"The run '{shown(new, 60)}' was deleted meanwhile; these are the runs there are.")
        st.session_state.pop("opened", None)  # or the gallery would go on to another run
    elif new is not None:
        selection.new_run()
        st.session_state["run"] = new
    last = st.session_state.get("run")
    if last is not None and last not in by_id:
        link.report_bad_link(f"The run '{shown(last, 60)}' was deleted meanwhile; these are the runs there are.")
        selection.new_run()
    with st.sidebar:
        widgets.keep_room()
    if not cards:
        return None
    if last not in by_id:
        st.session_state["run"] = worth_opening(cards).run_id
    selection.preset_widget("run")
    with st.sidebar:
        labels = _labels(cards)
        run_id = st.selectbox(
            "Run", list(by_id), format_func=labels.__getitem__, key="run", on_change=selection.new_run
        )
        _way_to_judged(run_id)
        try:
            return _pick_within(run_id)
        except UlpscopeError as error:
            st.error(widgets.escaped(str(error)))
            return None


def page_links(view: selection.View | None) -> None:
    """Draw the navigation. Its links carry the selection, which Streamlit's own navigation would drop."""
    absent = {} if view is None else store_cache.absent(view)
    for group in navigation.GROUPS:
        st.caption(f"**{group.name}** {group.line}")
        with st.container(horizontal=True, gap="xxsmall"):
            for page in group.pages:
                label = f"{page.title} :small[· {absent[page.name]}]" if page.name in absent else page.title
                st.page_link(widgets.PAGES / f"{page.name}.py", label=label, query_params=address.of(view, page.name))


def link_to(view: selection.View | None) -> None:
    """Draw the link to exactly this view, to be copied."""
    popover = st.popover("Link to this view", icon=":material/link:", key="link", on_change="rerun", width="stretch")
    if popover.open:
        popover.code(address.absolute(view), language=None, wrap_lines=True)


def _way_to_judged(run_id: str) -> None:
    """Draw a button to the run that judges this one, if there is one."""
    judged = store_cache.judged_run(run_id)
    if judged and widgets.pressed(st.button, "Open the judged run", "open_judged_run", icon=":material/gavel:"):
        st.session_state["open_next"] = judged
        st.rerun()


def _labels(cards: list[RunCard]) -> dict[str, str]:
    """Names to choose by. A select box tells its options apart by their labels, so runs of equal names carry their
    ids.
    """
    count = Counter(card.name for card in cards)
    return {card.run_id: card.name if count[card.name] == 1 else f"{card.name} · {card.run_id}" for card in cards}


def worth_opening(cards: list[RunCard]) -> RunCard:
    """Run to open where nothing was chosen: the newest of one's own, else the sample run with most flips."""
    own = [card for card in cards if not card.is_read_only]
    return own[0] if own else max(cards, key=lambda card: card.flips)


def _settle_variant(names: list[str], first: int = 0) -> None:
    """Take the variant out of the link if it is there, and keep it one of the run's; `first` where none was chosen."""
    asked = link.linked("variant")
    if asked is not None and asked in names:
        st.session_state["variant"] = asked
    elif asked is not None:
        link.report_bad_link(
            f"The link asks for variant '{shown(asked, 60)}'; this run has {_listed(names)}, and '{names[first]}' is"
            " selected."
        )
    if st.session_state.get("variant") not in names:
        st.session_state["variant"] = names[first]
    selection.preset_widget("variant")


def _pick_within(run_id: str) -> selection.View:
    run = store_cache.open_run(run_id)
    names = [pair.variant for pair in run.pairs]
    _settle_variant(names)
    variant = st.selectbox(
        f"Variant, compared with `{code(run.pairs[0].reference)}`",
        names,
        format_func=_twins(run).__getitem__,
        key="variant",
    )
    pair = run.pairs[names.index(variant)]

    prompts = run.header.prompts
    table = store_cache.positions(run, pair.index)
    is_open = "position" in st.session_state or link.is_linked("position")
    _settle("prompt", len(prompts) - 1, 0 if is_open else telling_place(table)[0])
    compared = table["prompt"].unique().tolist()  # of lists not all prompts have a row on both sides
    if st.session_state["prompt"] not in compared:
        st.session_state["prompt"] = compared[0]
    prompt = (
        int(st.number_input("Prompt", 0, len(prompts) - 1, key="prompt", on_change=_new_prompt))
        if len(prompts) > 1
        else 0
    )
    positions = table.loc[table["prompt"] == prompt, "position"]
    first, last = int(positions.min()), int(positions.max())
    _settle("position", last, first if is_open else telling_place(table, prompt)[1], first)
    asked = f"Position, {first:,} to {last:,}"
    position = int(st.number_input(asked, first, last, key="position")) if last > first else first
    view = selection.View(run, pair, prompt, position, table)
    stepper.stepper(view)
    if view.texts and view.texts[position]:
        st.caption(f"scores the token after `{code(visible(view.texts[position]))}`")
    return view


def _twins(run: RunReader) -> dict[str, str]:
    """Labels of variants to choose by; one that equals an earlier side bit for bit says so."""
    first: dict[int, str] = {}
    labels = {}
    for side in run.sides:
        twin = first.setdefault(side.bit_class, side.name)
        labels[side.name] = side.name if twin == side.name else f"{side.name}  ≡ {twin}"
    return labels


def _listed(names: list[str]) -> str:
    """The first few names, quoted."""
    return ", ".join(f"'{name}'" for name in names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _settle(key: str, highest: int, first: int, lowest: int = 0) -> None:
    """Take `key` out of the link if it is there, and keep it within the run; `first` where nothing was chosen yet."""
    value = link.linked_number(key, lowest, highest)
    current = st.session_state.get(key, first) if value is None else value
    st.session_state[key] = min(max(int(current), lowest), highest)


def _new_prompt() -> None:
    st.session_state.pop("position", None)
