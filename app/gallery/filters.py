"""Search and filters of the gallery, on the page and in the API."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import streamlit as st

from app.page import LONGEST_TEXT
from app.shell import wording
from core.runs.store.cards import RunCard
from core.runs.store.labels import Labels
from core.text import plural

FLIPS = ("any", "with flips", "without flips")


@dataclass(frozen=True)
class Filters:
    """Search and filters of the gallery; an empty text, or 'any', matches all runs."""

    text: str = ""
    verdict: str = "any"
    flips: str = "any"
    tags: tuple[str, ...] = ()  # all of them

    @property
    def words(self) -> list[str]:
        """The words that a run has to have, all of them."""
        return self.text.casefold().split()


def matching(
    cards: Iterable[RunCard],
    filters: Filters,
    labels: Mapping[str, Labels],
    prompts: Mapping[str, str],
) -> list[RunCard]:
    """Return the runs that match, in their order. prompts: run id to case-folded text, needed to
    search for words.
    """

    def is_match(card: RunCard) -> bool:
        attached = labels.get(card.run_id, Labels())
        about = (card.name, card.model, card.run_id, card.compute_dtype, card.device, *card.sides)
        text = "\n".join((*about, *attached.tags, attached.note)).casefold()
        text += f"\n{prompts.get(card.run_id, '')}"
        # None: the run does not say, so it is neither with nor without flips.
        known_flips = {None: "", 0: "without flips"}.get(card.flips, "with flips")
        return (
            filters.verdict in ("any", *card.pair_verdicts)
            and filters.flips in ("any", known_flips)
            and set(filters.tags) <= set(attached.tags)
            and all(word in text for word in filters.words)
        )

    return [card for card in cards if is_match(card)]


def ask(hidden: int) -> Filters:
    """Draw search and filters and return their values. hidden: number of runs that are listed on
    request only.
    """
    with st.container(horizontal=True, vertical_alignment="bottom"):
        about = "name, model, side, prompt, dtype, device, tag or note"
        text = st.text_input(
            "Search",
            type="search",
            placeholder=about,
            key="gallery_search",
            max_chars=LONGEST_TEXT,
        )
        verdict = st.selectbox(
            "Verdict",
            ["any", *wording.VERDICTS],
            key="gallery_verdict",
            width=180,
        )
        flips = st.selectbox("Flips", FLIPS, key="gallery_flips", width=150)
    if hidden:
        about = "Cells of large sweeps, which Compare shows, and runs that a judged run replaces."
        st.toggle(f"List {plural(hidden, 'more run')}", key="gallery_hidden", help=about)
    return Filters(text, verdict, flips)


def nothing_found(total: int) -> None:
    """Say that no run matches, with a button that clears search and filters."""
    st.info(f"None of {plural(total, 'run')} matches the search and the filters.")
    st.button("Show all runs", "clear_filters", on_click=_clear)


def _clear() -> None:
    st.session_state.update(gallery_search="", gallery_verdict="any", gallery_flips="any")
