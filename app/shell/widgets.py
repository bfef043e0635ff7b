"""Parts that several pages share: the head of a page, definitions, empty states, escaped texts.

Definitions are glossary.md, metrics.md and each page's section of pages.md in docs/reference.
"""

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app.page import Page
from app.shell import address, selection, store_cache, wording
from core.errors import UlpscopeError
from core.packaged_models import EXAMPLE
from core.runs.file.records import Provenance
from core.runs.reader import RunReader
from core.runs.requests import caveat, command_with
from core.text import code, legible

# Whole numbers with thousands separators of the viewer's language.
GROUPED = st.column_config.NumberColumn(format="localized")
PAGES = Path(__file__).resolve().parents[2] / "pages"
# the only page that shows runs of any length
OVERVIEW = "overview"
_DOCS = PAGES.with_name("docs") / "reference"
_ROW = re.compile(r"^\| (?!word )(.+?) \| (.+) \|$", re.MULTILINE)
# the documents are no pages: what they link to is named, not linked
_LINK = re.compile(r"\[([^]]+)\]\([^)]+\)")
_SIGNS = re.compile(r"[\\`*_{}\[\]()#+\-.!|<>~$:]")
# Markdown links these even if every sign is escaped.
_ADDRESS = re.compile(r"(?=://)|(?<=www)(?=\.)|(?=@)", re.IGNORECASE)


@functools.cache
def definitions() -> str:
    """Markdown of every word by subject, and of every figure with its unit and how it is
    computed.
    """
    _, first, words = _text("glossary.md").partition("\n## ")
    figures = _text("metrics.md")
    both = f"{first}{words}\n## Figures\n\n{figures[figures.index('| name |') :]}"
    return _LINK.sub(r"\1", both.replace("\n## ", "\n#### "))


@functools.cache
def reading(page: str) -> str:
    """Markdown on how a page is read: the section of that title in docs/reference/pages.md."""
    _, _, section = _text("pages.md").partition(f"\n## {page}\n")
    return _LINK.sub(r"\1", section.partition("\n## ")[0]).strip()


@functools.cache
def meanings() -> dict[str, str]:
    """Meaning of each word; one entry for each word of a row that defines several."""
    rows = dict(_ROW.findall(_text("glossary.md")))
    return {word: meaning for names, meaning in rows.items() for word in names.split(", ")}


def _text(name: str) -> str:
    return (_DOCS / name).read_text(encoding="utf-8")


def title(page: Page, run: RunReader | None = None) -> None:
    """Draw the title of a page with the run's HTML file, and its Definitions: how the page is read,
    and what each word means.
    """
    left, right = st.columns((3, 2), vertical_alignment="bottom")
    left.title(page.title)
    buttons = right.container(horizontal=True, horizontal_alignment="right")
    if run is not None:
        buttons.link_button(
            "HTML file",
            f"/files/{quote(run.run_id)}.html",
            help="Verdict, flips and charts of every variant in one file that opens without a"
            " network.",
            icon=":material/download:",
        )
    with buttons.popover("Definitions", icon=":material/menu_book:"):
        st.markdown(f"#### {page.title}\n\n{reading(page.title)}\n\n{definitions()}")


def head(page: Page, *, needs_rows: bool = False) -> selection.View:
    """Draw the title and the pair; stop with a sentence if there is no run, or top tokens only."""
    view = selection.current_view()
    if view is None:
        title(page)
        empty()
    title(page, view.run)
    header = view.header
    about = header.provenance
    facts = (wording.model_name(about.model), header.compute_dtype, about.device)
    details = "".join(f" · {escape(fact)}" for fact in facts if fact)
    st.markdown(
        f"**{escape(header.name)}** — reference `{code(view.pair.reference)}`, variant"
        f" `{code(view.pair.variant)}`{details}",
    )
    lack = ""
    is_of_tokens = page.name in ("flips", "near_ties")
    if header.is_long and page.name != OVERVIEW:
        lack = f"A run of {header.rows:,} positions has an Overview only."
    elif is_of_tokens and view.run.has_rollouts:
        lack = (
            f"{page.title} needs both sides' top tokens: this run has one log-probability per"
            " token."
        )
    elif is_of_tokens and not header.has_tokens:
        lack = f"{page.title} need logits; this run holds other values."
    elif view.is_list and needs_rows:
        lack = f"{page.title} needs whole rows of logits: {header.without_logits}"
    if lack:
        st.info(lack)
        st.stop()
    if not view.run.has_all_logits:
        st.caption(header.kept_note)
    return view


def tabs(
    page: Page,
    parts: Mapping[str, Callable[[Any], None]],
) -> list[Page]:
    """Draw the head of a page and its open tab; return the tabs that are shown. parts: draws a tab,
    by its name.
    """
    view = selection.current_view()
    if page.shows == "run" and view is not None:
        head(page)
    else:
        title(page)
    visible = address.shown_tabs(page, view)
    if visible:
        # on_change: closed tabs are not computed. Without it Streamlit runs the code of all of
        # them.
        places = st.tabs([tab.title for tab in visible], key=page.tab.key, on_change="rerun")
        for tab, place in zip(visible, places, strict=True):
            if place.open:
                with place:
                    parts[tab.name](view)
    elif view is None:
        empty()
    return visible


def metrics(figures: Mapping[str, tuple[str, str]], places: int) -> None:
    """Draw figures side by side in so many places. figures: value and help by label."""
    for column, (label, (value, about)) in zip(st.columns(places), figures.items(), strict=False):
        column.metric(label, value, help=about or None)


def choice(label: str, names: Mapping[str, str] | Sequence[str], key: str, **look: Any) -> str:
    """Draw a row of options, by their words if they have others; the first if the session holds
    none of them.
    """
    selection.settle(key, names)
    words = names if isinstance(names, Mapping) else dict(zip(names, names, strict=True))
    chosen = st.segmented_control(
        label,
        names,
        format_func=words.__getitem__,
        required=True,
        key=key,
        **look,
    )
    return str(chosen)


ROW = 33  # pixels, at the theme's size of type
_MOST_ROOM = 20  # rows
_ROOM_CSS = (Path(__file__).parent / "room.css").read_text(encoding="utf-8")


def table_height(rows: int, most: int) -> int:
    """Height of a table with its heading, in pixels: all rows, or `most` and half a row to show
    that more follow.
    """
    return ROW * (max(rows, 1) + 1) + 3 if rows <= most else int(ROW * (most + 1.5))


def select(label: str, names: Mapping[Any, str], key: str, **look: Any) -> Any:
    """Draw a select box of options by their words."""
    return st.selectbox(label, names, format_func=names.__getitem__, key=key, **look)


def room(name: str, height: int) -> DeltaGenerator:
    """Return a container that is about `height` pixels high before its content arrives, so that
    nothing below jumps.
    """
    return st.container(key=f"rows{min(round(height / ROW), _MOST_ROOM)}_{name}")


def keep_room() -> None:
    """Draw the style sheet that keeps room, as markdown: `st.html` would wait for its script and
    come too late.
    """
    rows = "".join(
        f'[class*="st-key-rows{n}_"] {{ min-height: {n * ROW}px; }}\n'
        for n in range(1, _MOST_ROOM + 1)
    )
    st.markdown(f"<style>{_ROOM_CSS}{rows}</style>", unsafe_allow_html=True)


@contextmanager
def report_errors() -> Iterator[None]:
    """Turn what ULPscope raises on purpose into a sentence at the top of the page."""
    try:
        yield
    except UlpscopeError as error:
        selection.complain(str(error))


def button(
    label: str,
    key: str,
    draw: Callable[..., bool] = st.button,
    *,
    disabled: bool = False,
    **look: Any,
) -> bool:
    """Draw a button by `st.button` or the like; True in the first run that gets here after a click,
    if not disabled.

    What `st.button` returns is lost if a key or another control cuts the first run short.
    """
    # The callback runs even if the script run that the click began is cut short.
    clicks = st.session_state.setdefault("clicks", set())
    draw(label, key=key, disabled=disabled, on_click=clicks.add, args=(key,), **look)
    is_pressed = key in clicks
    clicks.discard(key)
    return is_pressed and not disabled


def forget_clicks(page: str) -> None:
    """Drop clicks of another page that no script run handled, so that nothing starts late."""
    if st.session_state.get("clicks_of") != page:
        st.session_state.update(clicks=set(), clicks_of=page)


def escape(text: str) -> str:
    """Escape a text of others for markdown: no markdown, no HTML, no addresses that turn into
    links.
    """
    return _SIGNS.sub(r"\\\g<0>", _ADDRESS.sub("\N{WORD JOINER}", text))


def to_markdown(text: str, *, bold: bool = False) -> str:
    """Return a stored sentence as markdown: code between backticks, everything else escaped."""
    parts = text.split("`")
    # a backtick without a partner
    if len(parts) % 2 == 0:
        parts = [text.replace("`", "'")]
    marked = ""
    for place, part in enumerate(parts):
        text = part.strip()
        if place % 2 == 1:
            # no code of no characters: in markdown two backticks open a code instead
            marked += f"`{code(part)}`" if part else ""
        elif text and bold:
            # markdown takes no bold that begins with a blank
            before, _, after = part.partition(text)
            marked += f"{before}**{escape(text)}**{after}"
        else:
            marked += escape(part)
    return marked


def causes(view: selection.View) -> None:
    """Draw common causes of the pair's difference, computed when unfolded."""
    header = view.header
    folded = st.expander(
        "Common causes",
        icon=":material/search_insights:",
        key="causes",
        on_change="rerun",
    )
    if not folded.open:
        return
    with folded:
        if header.is_long:
            st.markdown(f"A run of {header.rows:,} positions is too long to look for causes.")
            return
        if not view.run.has_all_logits and not view.is_list:
            st.markdown(f"Causes are fitted to logits: {header.without_logits}")
            return
        with st.spinner("Fitting common causes to half of the positions"):
            # It takes half a second to import, which no other part of a page needs.
            from core.judging.stored import explain_pair

            result = store_cache.cached(view.run, explain_pair, view.pair.index)
        for cause in result.causes:
            st.markdown(f"**{escape(cause.name)}**: {escape(cause.text)}")
        if not result.causes:
            st.markdown("No common cause fits.")
        st.caption(
            "Each cause is fitted to half of the positions and validated on the other half."
            f" {result.says}",
        )


def empty() -> NoReturn:
    """Draw what to do if there is no run to show, and stop."""
    st.info("No runs yet. Upload a dump of logits, or capture a run; it appears here by itself.")
    st.page_link(PAGES / "new_run.py", label="Upload a dump", query_params={"tab": "upload"})
    st.page_link(PAGES / "new_run.py", label="Capture a run", query_params={"tab": "capture"})
    code_block(
        f'ulpscope capture --model {EXAMPLE} --prompt "def __init__(self," --variant decode --dtype'
        " bfloat16",
    )
    st.stop()


def code_block(text: str, *, wraps: bool = False) -> None:
    """Draw a text with a button that copies it, what is invisible in it as escapes."""
    st.code(legible(text), language=None, wrap_lines=wraps)


def same_capture_with(about: Provenance, *extras: str) -> None:
    """Draw the command of the run's request with more recorded, to copy; nothing if none records
    it.
    """
    command = command_with(about, *extras)
    if command is not None:
        code_block(command, wraps=True)
    if sentence := caveat(about, command):
        st.caption(sentence)


def table_texts(column: Iterable, run: RunReader) -> list[str]:
    """Token ids as `text (id)`."""
    import pandas as pd

    vocabulary = run.vocabulary
    return [wording.token(None if pd.isna(i) else int(i), vocabulary.get(i)) for i in column]
