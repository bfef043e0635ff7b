"""Search, filters and order of the gallery, on the page and in the API."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import streamlit as st

from app.gallery import SORTS
from app.page import LONGEST_TEXT
from app.shell import wording
from core.runs.store.cards import RunCard
from core.runs.store.labels import MOST_TAGS, Labels
from core.text import plural

FLIPS = ("any", "with flips", "without flips")
_FILTER = 155  # pixels: five beside each other on a laptop, two on a phone


@dataclass(frozen=True)
class Filters:
    """Search, filters and order of the gallery; an empty text, or 'any', asks for nothing."""

    text: str = ""
    dtype: str = "any"
    device: str = ""
    verdict: str = "any"
    flips: str = "any"
    tags: tuple[str, ...] = ()  # all of them
    sort: str = "newest"

    @property
    def sought(self) -> list[str]:
        """The words that a run has to have, all of them."""
        return self.text.casefold().split()


def matching(
    cards: Iterable[RunCard], filters: Filters, labels: Mapping[str, Labels], prompts: Mapping[str, str]
) -> list[RunCard]:
    """The runs asked for, in order. prompts: run id to case-folded text, needed where words are sought."""
    shown = []
    for card in cards:
        attached = labels.get(card.run_id, Labels())
        if (
            filters.dtype in ("any", card.compute_dtype)
            and filters.device in ("", card.device)
            and (filters.verdict == "any" or filters.verdict in card.pair_verdicts)
            and filters.flips in ("any", "with flips" if card.flips else "without flips")
            and set(filters.tags) <= set(attached.tags)
            and _has(card, attached, prompts.get(card.run_id, ""), filters.sought)
        ):
            shown.append(card)
    return ordered(shown, filters.sort)


def _has(card: RunCard, attached: Labels, prompts: str, sought: list[str]) -> bool:
    if not sought:
        return True
    said = "\n".join((card.name, card.model, card.run_id, *card.sides, *attached.tags, attached.note)).casefold()
    return all(word in said or word in prompts for word in sought)


def ordered(cards: list[RunCard], sort: str) -> list[RunCard]:
    """Sort runs. Those that the order calls equal stay newest first, as they come."""
    gravity = {name: place for place, name in enumerate(wording.VERDICTS)}
    keys: dict[str, Callable[[RunCard], tuple]] = {
        "name": lambda card: (card.name.casefold(),),
        "verdict": lambda card: (
            min((gravity.get(name, len(gravity)) for name in card.pair_verdicts), default=len(gravity)),
        ),
        "flips": lambda card: (-card.flips,),
        "rms": lambda card: (-1.0 if card.rms_row_ulps is None else -card.rms_row_ulps,),
        "max row ULPs": lambda card: (-1.0 if card.max_row_ulps is None else -card.max_row_ulps,),
        "positions": lambda card: (-card.positions,),
    }
    if sort == "oldest":
        return cards[::-1]
    return sorted(cards, key=keys[sort]) if sort in keys else cards


def ask(cards: Sequence[RunCard], labels: Mapping[str, Labels]) -> Filters:
    """Draw the search, the filters and the order, and return their values."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        text = st.text_input(
            "Search",
            type="search",
            placeholder="name, model, side, prompt, tag or note",
            key="gallery_search",
            width="stretch",
            max_chars=LONGEST_TEXT,
        )
        sort = st.selectbox("Sort", list(SORTS), format_func=SORTS.__getitem__, key="gallery_sort", width=170)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        verdicts = [name for name in wording.VERDICTS if any(name in card.pair_verdicts for card in cards)]
        verdict = st.selectbox(
            "Verdict", _offered(["any", *verdicts], "gallery_verdict"), key="gallery_verdict", width=_FILTER
        )
        flips = st.selectbox("Flips", FLIPS, key="gallery_flips", width=_FILTER)
        dtypes = sorted({card.compute_dtype for card in cards})
        dtype = st.selectbox("dtype", _offered(["any", *dtypes], "gallery_dtype"), key="gallery_dtype", width=_FILTER)
        devices = sorted({card.device for card in cards if card.device})
        device = st.selectbox(
            "Device",
            _offered(["", *devices], "gallery_device"),
            format_func=_or_any,
            key="gallery_device",
            width=_FILTER,
        )
        tags = _ask_tags(labels)
    return Filters(text, dtype, device, verdict, flips, tags, sort)


def ask_cells(count: int) -> None:
    """Draw the choice to list the runs of sweeps too, where they are so many that they are not listed by themselves."""
    if count:
        st.toggle(
            f"with {count:,} runs of sweeps",
            key="gallery_cells",
            help="The Matrix page shows them as a table of their cells.",
        )


def ask_replaced(count: int) -> None:
    """Draw the choice to list runs that a judged run replaces, if there are any."""
    if count:
        st.toggle(f"with {plural(count, 'run')} replaced by a judged run", key="gallery_replaced")


def asked_tags() -> list[str]:
    """The tags that the page's setting names."""
    parts = str(st.session_state.get("gallery_tag", "")).split(",")
    return list(dict.fromkeys(part.replace("%2C", ",").replace("%25", "%") for part in parts if part))[:MOST_TAGS]


def said_tags(tags: Iterable[str]) -> str:
    """Text of the setting that names the tags, with commas between; one within a tag is `%2C`, and the percent sign
    `%25`.
    """
    return ",".join(tag.replace("%", "%25").replace(",", "%2C") for tag in tags)


def _ask_tags(labels: Mapping[str, Labels]) -> tuple[str, ...]:
    known = sorted({tag for attached in labels.values() for tag in attached.tags}, key=str.casefold)
    wanted = asked_tags()
    st.session_state["gallery_tags"] = wanted

    def chosen() -> None:
        st.session_state["gallery_tag"] = said_tags(st.session_state["gallery_tags"])

    tags = st.multiselect(
        "With tags",
        [*known, *(tag for tag in wanted if tag not in known)],
        key="gallery_tags",
        on_change=chosen,
        placeholder="any",
        max_selections=MOST_TAGS,
        width=_FILTER if len(wanted) < 2 else 2 * _FILTER,
    )
    return tuple(tags)


def _offered(options: list[str], key: str) -> list[str]:
    """The filter's options, with the one that a link or an earlier visit chose although no run has it."""
    chosen = st.session_state.get(key)
    return options if chosen is None or chosen in options else [*options, chosen]


def _or_any(option: str) -> str:
    return option or "any"
