"""The parts of the gallery: what is asked for, the table of runs, and what can be done with the ticked ones."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from urllib.parse import quote

import pandas as pd
import streamlit as st

from app import address, exports, page_settings, reading, state, widgets, words
from app.hosting import pages
from app.widgets import PAGES
from core.errors import UlpscopeError
from core.runs import labels as labelling
from core.runs.gallery import BrokenRun, RunCard
from core.runs.labels import LONGEST_NOTE, LONGEST_TAG, MOST_TAGS, Labels

FLIPS = ("any", "with flips", "without flips")
# Widths of the first seven, so that at 1280 pixels the table ends where a column ends: 33 for the box, 815 for these.
COLUMNS = {
    "name": st.column_config.TextColumn(width=224),
    "verdict": st.column_config.MultiselectColumn(
        options=list(words.VERDICTS), color=list(words.VERDICTS.values()), help="of the run's pairs, the gravest first", width=116
    ),
    "outcome": st.column_config.TextColumn(width=186),
    "flips": st.column_config.NumberColumn(format="localized", help="positions whose argmax differs", width=58),
    "max ULPs": st.column_config.NumberColumn(format="localized", help="largest distance, in ULPs of the run's dtype", width=82),
    "dtype": st.column_config.TextColumn(width=72),
    "tags": st.column_config.ListColumn(width=77),
    "positions": st.column_config.NumberColumn(format="localized"),
    "created": st.column_config.DatetimeColumn(format="YYYY-MM-DD HH:mm", help="UTC"),
}
_MOST_ROWS = 16  # that are shown without scrolling
_FILTER = 155  # pixels: five beside each other on a laptop, two on a phone


@dataclass(frozen=True)
class Asked:
    """What the gallery is to show; an empty text, or 'any', asks for nothing."""

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


def matching(cards: Iterable[RunCard], asked: Asked, labels: Mapping[str, Labels], prompts: Mapping[str, str]) -> list[RunCard]:
    """The runs asked for, in order. prompts: run id to case-folded text, needed where words are sought."""
    shown = []
    for card in cards:
        attached = labels.get(card.run_id, Labels())
        if (
            asked.dtype in ("any", card.compute_dtype)
            and asked.device in ("", card.device)
            and (asked.verdict == "any" or asked.verdict in card.pair_verdicts)
            and asked.flips in ("any", "with flips" if card.flips else "without flips")
            and set(asked.tags) <= set(attached.tags)
            and _has(card, attached, prompts.get(card.run_id, ""), asked.sought)
        ):
            shown.append(card)
    return ordered(shown, asked.sort)


def _has(card: RunCard, attached: Labels, prompts: str, sought: list[str]) -> bool:
    if not sought:
        return True
    said = "\n".join((card.name, card.model, card.run_id, *card.sides, *attached.tags, attached.note)).casefold()
    return all(word in said or word in prompts for word in sought)


def ordered(cards: list[RunCard], sort: str) -> list[RunCard]:
    """Runs that the order calls equal stay newest first, as they come."""
    gravity = {name: place for place, name in enumerate(words.VERDICTS)}
    keys: dict[str, Callable[[RunCard], tuple]] = {
        "name": lambda card: (card.name.casefold(),),
        "verdict": lambda card: (min((gravity.get(name, len(gravity)) for name in card.pair_verdicts), default=len(gravity)),),
        "flips": lambda card: (-card.flips,),
        "max ULPs": lambda card: (-card.max_ulps,),
        "positions": lambda card: (-card.positions,),
    }
    if sort == "oldest":
        return cards[::-1]
    return sorted(cards, key=keys[sort]) if sort in keys else cards


def ask(cards: Sequence[RunCard], labels: Mapping[str, Labels]) -> Asked:
    """Draw the search, the filters and the order."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        text = st.text_input(
            "Search", type="search", placeholder="name, model, side, prompt, tag or note", key="gallery_search", width="stretch",
            max_chars=page_settings.LONGEST_TEXT,
        )  # fmt: skip
        sort = st.selectbox(
            "Sort", list(page_settings.SORTS), format_func=page_settings.SORTS.__getitem__, key="gallery_sort", width=170
        )
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        verdicts = [name for name in words.VERDICTS if any(name in card.pair_verdicts for card in cards)]
        verdict = st.selectbox("Verdict", _offered(["any", *verdicts], "gallery_verdict"), key="gallery_verdict", width=_FILTER)
        flips = st.selectbox("Flips", FLIPS, key="gallery_flips", width=_FILTER)
        dtypes = sorted({card.compute_dtype for card in cards})
        dtype = st.selectbox("dtype", _offered(["any", *dtypes], "gallery_dtype"), key="gallery_dtype", width=_FILTER)
        devices = sorted({card.device for card in cards if card.device})
        device = st.selectbox(
            "Device", _offered(["", *devices], "gallery_device"), format_func=_or_any, key="gallery_device", width=_FILTER
        )
        tags = _ask_tags(labels)
    return Asked(text, dtype, device, verdict, flips, tags, sort)


def asked_tags() -> list[str]:
    """The tags that the page's setting names."""
    parts = str(st.session_state.get("gallery_tag", "")).split(",")
    return list(dict.fromkeys(part.replace("%2C", ",").replace("%25", "%") for part in parts if part))[:MOST_TAGS]


def said_tags(tags: Iterable[str]) -> str:
    """The setting that names them, with commas between; one within a tag is `%2C`, and the percent sign `%25`."""
    return ",".join(tag.replace("%", "%25").replace(",", "%2C") for tag in tags)


def _ask_tags(labels: Mapping[str, Labels]) -> tuple[str, ...]:
    known = sorted({tag for attached in labels.values() for tag in attached.tags}, key=str.casefold)
    wanted = asked_tags()
    st.session_state["gallery_tags"] = wanted

    def chosen() -> None:
        st.session_state["gallery_tag"] = said_tags(st.session_state["gallery_tags"])

    tags = st.multiselect(
        "With tags", [*known, *(tag for tag in wanted if tag not in known)], key="gallery_tags", on_change=chosen, placeholder="any",
        max_selections=MOST_TAGS, width=_FILTER if len(wanted) < 2 else 2 * _FILTER,
    )  # fmt: skip
    return tuple(tags)


def _offered(options: list[str], key: str) -> list[str]:
    """The filter's options, with the one that a link or an earlier visit chose although no run has it."""
    chosen = st.session_state.get(key)
    return options if chosen is None or chosen in options else [*options, chosen]


def _or_any(option: str) -> str:
    return option or "any"


def counted(cards: Sequence[RunCard], shown: Sequence[RunCard], labels: Mapping[str, Labels]) -> None:
    """How many runs there are of those asked for, and their list to download."""
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"):
        st.caption(
            f"{len(shown):,} of {len(cards):,} runs; click one to open it, tick some to tag or delete them.", width="content"
        )
        if shown:
            exports.download({"runs": partial(listed, shown, labels)}, "ulpscope-runs", "runs")


def listed(shown: Sequence[RunCard], labels: Mapping[str, Labels]) -> pd.DataFrame:
    """The same runs with every figure as it is: one row a run, in the order shown."""
    attached = [labels.get(card.run_id, Labels()) for card in shown]
    rows = []
    for card, each in zip(shown, attached, strict=True):
        row = {name: value for name, value in asdict(card).items() if name not in ("pair_verdicts", "verdicts", "sides")}
        joined = {"verdicts": words.verdicts(card), "sides": card.sides, "tags": each.tags}
        rows.append(
            row
            | {name: json.dumps(list(values), ensure_ascii=False) for name, values in joined.items()}
            | {"note": each.note, "pinned": each.pinned}
        )
    return pd.DataFrame(rows)


def table(shown: Sequence[RunCard], labels: Mapping[str, Labels]) -> None:
    """The runs; a click on a cell opens its run, a tick marks it.

    The browser knows rows by their number, so the widget belongs to exactly these runs in this order: a tick never moves to another run.
    """
    ids = [card.run_id for card in shown]
    known = "\0".join([str(st.session_state.get("gallery_serial", 0)), *ids])
    key = f"gallery_{hashlib.sha256(known.encode('utf-8', 'backslashreplace')).hexdigest()[:16]}"

    def choose() -> None:
        selection = st.session_state[key]["selection"]
        chosen = shown[selection["cells"][0][0]] if selection["cells"] else None
        if chosen is not None and not chosen.sides:  # probes of operations
            state.select(ops_runs=chosen.run_id, opened_ops=True)
        elif chosen is not None:
            state.select(run=chosen.run_id)
            widgets.new_run()
            st.session_state["opened"] = True
        hidden = [run_id for run_id in st.session_state.get("ticked", ()) if run_id not in ids]
        st.session_state["ticked"] = hidden + [ids[row] for row in selection["rows"]]

    if st.session_state.pop("opened_ops", False):
        st.switch_page(PAGES / "ops.py")
    ticked = set(st.session_state.get("ticked", ()))
    height = widgets.table_height(len(ids), _MOST_ROWS)
    widgets.room("gallery", height).dataframe(
        _rows(shown, labels), key=key, hide_index=True, on_select=choose, selection_mode=["multi-row", "single-cell"],
        selection_default={"selection": {"rows": [row for row, run_id in enumerate(ids) if run_id in ticked]}},
        width="stretch", height=height, placeholder="–", column_config=COLUMNS,
        alt="the runs, one row each",
    )  # fmt: skip


def _rows(shown: Sequence[RunCard], labels: Mapping[str, Labels]) -> pd.DataFrame:
    attached = [labels.get(card.run_id, Labels()) for card in shown]
    return pd.DataFrame(
        {
            "name": [card.name for card in shown],
            "verdict": [words.verdicts(card) for card in shown],
            "outcome": [words.outcome(card) if card.sides else "operations of a machine" for card in shown],
            "flips": pd.array([card.flips if card.sides else None for card in shown], "Int64"),
            "max ULPs": pd.array([card.max_ulps if card.sides else None for card in shown], "Int64"),
            "dtype": [card.compute_dtype for card in shown],
            "tags": [list(each.tags) for each in attached],
            "device": [card.device or None for card in shown],
            "positions": [card.positions for card in shown],
            "sides": [" · ".join(card.sides) for card in shown],
            "model": [words.model_name(card.model) or None for card in shown],
            "created": [card.created for card in shown],
            "size": [words.size(card.bytes) for card in shown],
            "note": [" ".join(each.note.split())[:120] or None for each in attached],
        }
    )


def panel(cards: Sequence[RunCard], shown: Sequence[RunCard], labels: Mapping[str, Labels]) -> None:
    """What can be done with the ticked runs; where none is ticked, with the run of the sidebar."""
    by_id = {card.run_id: card for card in cards}
    ticked = [by_id[run_id] for run_id in st.session_state.get("ticked", ()) if run_id in by_id]
    hidden = len({card.run_id for card in ticked} - {card.run_id for card in shown})
    view = state.current_view()
    with st.container(border=True, key="actions"):
        if len(ticked) > 1:
            _several(ticked, hidden, labels)
        elif ticked:
            _one(ticked[0], labels, "Ticked, not shown" if hidden else "Ticked", {"run": ticked[0].run_id})
        elif view is not None and view.run.run_id in by_id:
            _one(by_id[view.run.run_id], labels, "Selected", address.of(view, "overview"))
        else:
            st.caption("Tick runs to tag, download or delete them.")


def _one(card: RunCard, labels: Mapping[str, Labels], how: str, address: dict[str, str]) -> None:
    attached = labels.get(card.run_id, Labels())
    st.markdown(f"{how}: **{widgets.escaped(card.name)}** · `{widgets.code(card.run_id)}`")
    if attached.note:
        st.caption(widgets.escaped(attached.note).replace("\n", "  \n"))
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        page = ("overview", address) if card.sides else ("ops", {"machines": card.run_id})
        st.page_link(PAGES / f"{page[0]}.py", label="**Open** →", query_params=page[1])
        st.markdown(f"[Run file](/files/{_quoted(card.run_id)}.duckdb)", width="content")
        if card.sides:
            st.markdown(f"[npz](/files/{_quoted(card.run_id)}.npz)", width="content")
        if not pages.may_edit():
            st.caption("viewers do not tag or delete", width="content")
            return
        popover = st.popover("Tags & note", key="labelling", on_change="rerun")
        forms = st.session_state.setdefault("label_forms", {})
        if popover.open:
            with popover:
                _label_form(card, attached, labels, forms)
        else:
            forms.clear()  # what is opened next shows what is stored then
        if attached.pinned:
            st.caption("pinned", width="content")
        if card.is_read_only:
            st.caption("sample, read-only", width="content")
        else:
            st.button("Delete", key="delete", on_click=_discard, args=([card],), help=_OF_DELETE)


_OF_DELETE = "It can be had back for a week."


def _quoted(run_id: str) -> str:
    """A run's id within a link in markdown."""
    return quote(run_id, safe="")


def unreadable(broken: Sequence[BrokenRun], damaged: Sequence[str]) -> None:
    """What lies in the store and is no whole run: said where it is one, else folded, for it must not push the runs away."""
    sentences = [f"Not a readable run: {run.reason}" for run in broken] + list(damaged)
    if len(sentences) == 1:
        st.warning(widgets.escaped(sentences[0]))
    elif sentences:
        with st.expander(f":orange[{len(sentences)} files here cannot be read]", icon=":material/warning:"):
            for sentence in sentences:
                st.markdown(f"- {widgets.escaped(sentence)}")
            st.caption(
                "The other runs are not touched by them. Copy such a file again from where it came, or remove it from the store."
            )


def _label_form(card: RunCard, stored: Labels, labels: Mapping[str, Labels], forms: dict[str, tuple[str, Labels]]) -> None:
    """Shows what is stored when it is opened, and from then on what is typed until it is saved, whatever others save meanwhile."""
    key, seen = forms.setdefault(card.run_id, (secrets.token_hex(6), stored))
    if seen != stored:
        st.caption("Somebody else has changed these labels since they were shown here. What you change is added to theirs.")
        st.button("Show theirs", key=f"theirs_{key}", on_click=forms.clear, help="What was typed here is dropped.")
    with st.form(f"labels_{key}", border=False):
        known = sorted({tag for each in (*labels.values(), seen) for tag in each.tags}, key=str.casefold)
        tags = st.multiselect(
            "Tags", known, default=list(seen.tags), key=f"tags_{key}", accept_new_options=True, max_selections=MOST_TAGS,
            placeholder="choose, or type a new one", help=f"At most {MOST_TAGS}, of {LONGEST_TAG} characters each.",
        )  # fmt: skip
        note = st.text_area("Note", seen.note, key=f"note_{key}", max_chars=LONGEST_NOTE)
        pinned = st.checkbox("Pinned", seen.pinned, key=f"pinned_{key}", help="Retention leaves a pinned run where it is.")
        st.caption("Kept beside the run file, which stays as it is.")
        if st.form_submit_button("Save", type="primary"):
            with widgets.said():
                reading.label(card.run_id, seen, labelling.labels_of(tags, note, pinned))
                forms.clear()
            st.rerun()


def _several(ticked: list[RunCard], hidden: int, labels: Mapping[str, Labels]) -> None:
    own = [card for card in ticked if not card.is_read_only]
    size = words.size(sum(card.bytes for card in ticked))
    st.markdown(f"**{len(ticked)} runs ticked** · {size}" + (f" · {hidden} of them not shown" if hidden else ""))
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        if not pages.may_edit():
            st.button("Untick all", key="untick", type="tertiary", on_click=_untick)
            st.caption("viewers do not tag or delete", width="content")
            return
        known = sorted({tag for each in labels.values() for tag in each.tags}, key=str.casefold)
        tag = st.selectbox(
            "Tag", known, index=None, key="tag_of_several", accept_new_options=True, placeholder="choose or type", width=200
        )
        st.button("Add tag", key="add_tag", on_click=_tag, args=(ticked, tag, True), disabled=not tag)
        st.button("Remove tag", key="remove_tag", on_click=_tag, args=(ticked, tag, False), disabled=not tag)
        if own:
            st.button(f"Delete {words.plural(len(own), 'run')}", key="delete", on_click=_discard, args=(own,), help=_OF_DELETE)
        st.button("Untick all", key="untick", type="tertiary", on_click=_untick)
        if len(own) < len(ticked):
            st.caption(f"{words.plural(len(ticked) - len(own), 'sample run')}, read-only", width="content")


def _untick() -> None:
    st.session_state["ticked"] = []
    st.session_state["gallery_serial"] = st.session_state.get("gallery_serial", 0) + 1  # the browser's ticks go with its table


def _tag(cards: Sequence[RunCard], tag: str, is_wanted: bool) -> None:
    """Add a tag to every run, or take it away. The labels are read anew: another viewer may have changed them."""
    labels, _ = reading.all_labels()
    for card in cards:
        attached = labels.get(card.run_id, Labels())
        with widgets.said():
            (wanted,) = labelling.labels_of([tag], "").tags or ("",)
            tags = [*attached.tags, wanted] if is_wanted else [each for each in attached.tags if each != wanted]
            reading.label(card.run_id, attached, labelling.labels_of(tags, attached.note, attached.pinned))


def _discard(cards: Sequence[RunCard]) -> None:
    gone = []
    for card in cards:
        with widgets.said():
            gone.append((reading.discard(card.run_id), card))
    if gone:
        first = gone[0][1]
        what = f"'{first.name}'" if len(gone) == 1 else words.plural(len(gone), "run")
        st.session_state["undo"] = ([entry for entry, _ in gone], f"Deleted {what}.")
    ids = {card.run_id for _, card in gone}
    st.session_state["ticked"] = [run_id for run_id in st.session_state.get("ticked", ()) if run_id not in ids]
    if st.session_state.get("run") in ids:  # or the sidebar would call it deleted by somebody
        st.session_state.pop("run")
        widgets.new_run()


def first_visit(cards: Sequence[RunCard]) -> None:
    """For who has no run yet: what this is, and two sample runs worth opening. It goes with the first run of one's own."""
    if not all(card.is_read_only for card in cards):
        return
    with st.container(border=True, key="first_visit"):
        st.markdown(
            "**Rounding, or a bug?** The same model on the same tokens gives other logits along another path: token by token with a "
            "cache, in a larger batch, with another kernel. ULPscope keeps both sides bit for bit and shows where, and by how many ULPs, "
            "they part. Whether rounding explains it is measured against this model's own rounding floor: what mere reorderings of its "
            "sums do to the same logits."
        )
        flip = max((card for card in cards if "rounding" in card.pair_verdicts), key=lambda card: card.flips, default=None)
        bug = next((card for card in cards if "bug suspected" in card.pair_verdicts), None)
        with st.container(horizontal=True, gap="small"):
            if flip is not None and flip.flips:
                st.page_link(
                    PAGES / "overview.py", label="**Open a flip that rounding explains** →", query_params=_first_flip(flip)
                )
            if bug is not None:
                st.page_link(PAGES / "overview.py", label="**Open an injected bug** →", query_params={"run": bug.run_id})
            if cards:  # else the empty gallery says what to do
                st.page_link(PAGES / "capture.py", label="**Capture a run** →")


def _first_flip(card: RunCard) -> dict[str, str]:
    """The address of the run's first flip; of the run, where that cannot be read."""
    address = {"run": card.run_id}
    with suppress(UlpscopeError):
        run = reading.open_run(card.run_id)
        for pair in run.pairs:
            positions = reading.positions(run, pair.index)
            flips = positions[positions["is_flip"]]
            if not flips.empty:
                first = flips.iloc[0]
                prompt = {"prompt": str(first["prompt"])} if len(run.header.prompts) > 1 else {}
                return address | {"variant": pair.variant} | prompt | {"position": str(first["position"])}
    return address
