"""The table of runs, its list to download, the files in the store that are no runs, and the first visitor's
introduction.
"""

from __future__ import annotations

import hashlib
import json
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from unicodedata import east_asian_width

import pandas as pd
import streamlit as st

from app.shell import exports, store_cache, widgets, wording
from app.shell import selection as state
from app.shell.widgets import PAGES
from core.errors import UlpscopeError
from core.runs.file.kept import ALL
from core.runs.file.records import BUG_SUSPECTED, ROUNDING
from core.runs.store.cards import BrokenRun, RunCard
from core.runs.store.labels import Labels
from core.text import size

# Widths in pixels. At 1280 the table is 848 wide, of which the boxes take 33: what is widest in a column fits into it,
# and the names get the rest.
_TAGS = 90
_NAME = 327
COLUMNS = {
    "verdict": st.column_config.MultiselectColumn(
        options=list(wording.VERDICTS),
        color=list(wording.VERDICTS.values()),
        help="of the run's pairs, the gravest first",
        width=126,
    ),
    "differ": st.column_config.TextColumn(help="largest share of a pair's logits that differ", width=108),
    "flips": st.column_config.NumberColumn(format="localized", help="positions whose argmax differs", width=62),
    "rms row ULPs": st.column_config.NumberColumn(
        format="%.3g",
        help="rms of the differences, in spacings of the run's dtype at the row's largest logit",
        width=112,
    ),
    "rms / noise floor": st.column_config.NumberColumn(
        format="%.3g", help="rms of the pair over rms of the model's noise floor"
    ),
    "max row ULPs": st.column_config.NumberColumn(format="%.3g", help="largest difference, in row ULPs"),
    "dtype": st.column_config.TextColumn(width=80),
    "tags": st.column_config.ListColumn(width=_TAGS),
    "positions": st.column_config.NumberColumn(format="localized"),
    "created": st.column_config.DatetimeColumn(format="YYYY-MM-DD HH:mm", help="UTC"),
}
_LINE = 19
_WRAPS = 66  # pixels of a row in which Streamlit breaks a text into lines
_MOST_LINES = 5  # of a name
_MOST_ROWS = 16  # that are shown without scrolling


def counted(cards: Sequence[RunCard], shown: Sequence[RunCard], labels: Mapping[str, Labels]) -> None:
    """Draw how many runs there are of those asked for, and their list to download."""
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"):
        st.caption(
            f"{len(shown):,} of {len(cards):,} runs; click one to open it, tick some to tag or delete them.",
            width="content",
        )
        if shown:
            exports.download({"runs": partial(listed, shown, labels)}, "ulpscope-runs", "runs")


def listed(shown: Sequence[RunCard], labels: Mapping[str, Labels]) -> pd.DataFrame:
    """Table of the shown runs for a download, with every figure as it is: one row a run, in the order shown."""
    attached = [labels.get(card.run_id, Labels()) for card in shown]
    rows = []
    for card, each in zip(shown, attached, strict=True):
        row = {
            name: value for name, value in asdict(card).items() if name not in ("pair_verdicts", "verdicts", "sides")
        }
        joined = {"verdicts": wording.verdicts(card), "sides": card.sides, "tags": each.tags}
        rows.append(
            row
            | {name: json.dumps(list(values), ensure_ascii=False) for name, values in joined.items()}
            | {"note": each.note, "pinned": each.pinned}
        )
    return pd.DataFrame(rows)


def table(shown: Sequence[RunCard], labels: Mapping[str, Labels]) -> None:
    """Draw the runs; a click on a cell opens its run, a tick marks it.

    The browser knows rows by their number, so the widget belongs to exactly these runs in this order: a tick never
    moves to another run.
    """
    ids = [card.run_id for card in shown]
    known = "\0".join([str(st.session_state.get("gallery_serial", 0)), *ids])
    key = f"gallery_{hashlib.sha256(known.encode('utf-8', 'backslashreplace')).hexdigest()[:16]}"

    def choose() -> None:
        selection = st.session_state[key]["selection"]
        chosen = shown[selection["cells"][0][0]] if selection["cells"] else None
        if chosen is not None and not chosen.sides:  # probes of operations
            state.select(ops_run=chosen.run_id, opened_ops=True)
        elif chosen is not None:
            state.select(run=chosen.run_id)
            state.new_run()
            st.session_state["opened"] = True
        hidden = [run_id for run_id in st.session_state.get("ticked", ()) if run_id not in ids]
        st.session_state["ticked"] = hidden + [ids[row] for row in selection["rows"]]

    if st.session_state.pop("opened_ops", False):
        st.switch_page(PAGES / "ops.py")
    ticked = set(st.session_state.get("ticked", ()))
    name_width = _NAME - (_TAGS if any(labels.get(run_id, Labels()).tags for run_id in ids) else 0)
    lines = _lines([card.name for card in shown], name_width)
    row = widgets.ROW if lines == 1 else max(_WRAPS, widgets.ROW + _LINE * (lines - 1))
    height = widgets.table_height(len(ids), _MOST_ROWS, row)
    widgets.room("gallery", height).dataframe(
        _rows(shown, labels),
        key=key,
        hide_index=True,
        on_select=choose,
        selection_mode=["multi-row", "single-cell"],
        selection_default={"selection": {"rows": [row for row, run_id in enumerate(ids) if run_id in ticked]}},
        width="stretch",
        height=height,
        placeholder="–",
        column_config={"name": st.column_config.TextColumn(width=name_width)} | COLUMNS,
        row_height=None if lines == 1 else row,
        alt="the runs, one row each",
    )


def _lines(names: Sequence[str], width: int) -> int:
    """Number of lines that the longest name takes in a column so many pixels wide; every row of a table is as high as
    the highest.
    """
    longest = 1
    for name in names:
        pixels = sum(
            13 if east_asian_width(c) in "WF" else 8 if c.isupper() else 7 if c.isdigit() else 5.5 for c in name
        )
        if pixels > width - 20:
            longest = max(longest, len(textwrap.wrap(name, max(1, int(len(name) * (width - 20) / pixels)))))
    return min(longest, _MOST_LINES)


def _rows(shown: Sequence[RunCard], labels: Mapping[str, Labels]) -> pd.DataFrame:
    attached = [labels.get(card.run_id, Labels()) for card in shown]
    return pd.DataFrame(
        {
            "name": [card.name for card in shown],
            "verdict": [wording.verdicts(card) for card in shown],
            "differ": [wording.outcome(card) if card.sides else "operations" for card in shown],
            "flips": pd.array([card.flips if card.sides else None for card in shown], "Int64"),
            "rms row ULPs": [card.rms_row_ulps for card in shown],
            "dtype": [card.compute_dtype for card in shown],
            "tags": [list(each.tags) for each in attached],
            "device": [card.device or None for card in shown],
            "rms / noise floor": [card.noise_ratio for card in shown],
            "max row ULPs": [card.max_row_ulps for card in shown],
            "positions": [card.positions for card in shown],
            "sides": [" · ".join(card.sides) for card in shown],
            "model": [wording.model_name(card.model) or None for card in shown],
            "created": [card.created for card in shown],
            "size": [size(card.bytes) + ("" if card.kept == ALL else f", {card.kept}") for card in shown],
            "note": [" ".join(each.note.split())[:120] or None for each in attached],
        }
    )


def unreadable(broken: Sequence[BrokenRun], damaged: Sequence[str]) -> None:
    """Draw a sentence on each file in the store that is no whole run: said where it is one, else folded, for it must
    not push the runs away.
    """
    sentences = [f"Not a readable run: {run.reason}" for run in broken] + list(damaged)
    if len(sentences) == 1:
        st.warning(widgets.escaped(sentences[0]))
    elif sentences:
        with st.expander(f":orange[{len(sentences)} files here cannot be read]", icon=":material/warning:"):
            for sentence in sentences:
                st.markdown(f"- {widgets.escaped(sentence)}")
            st.caption(
                "The other runs are not touched by them. Copy such a file again from where it came, or remove it from"
                " the store."
            )


def first_visit(cards: Sequence[RunCard]) -> None:
    """Draw, for who has no run yet, what this is, and two sample runs worth opening. It goes with the first run of
    one's own.
    """
    if not all(card.is_read_only for card in cards) or store_cache.unlisted_cells():
        return
    with st.container(border=True, key="first_visit"):
        st.markdown(
            "**Rounding, or a bug?** The same model on the same tokens produces different logits on a different"
            " execution path: token by token with a cache, in a larger batch, with a different kernel. ULPscope keeps"
            " both sides bit for bit and shows where they diverge. The verdict compares the difference with the model's"
            " noise floor: the noise from changing only the reduction order."
        )
        flip = max(
            (card for card in cards if ROUNDING in card.pair_verdicts), key=lambda card: card.flips, default=None
        )
        bug = next((card for card in cards if BUG_SUSPECTED in card.pair_verdicts), None)
        with st.container(horizontal=True, gap="small"):
            if flip is not None and flip.flips:
                st.page_link(
                    PAGES / "overview.py",
                    label="**Open a flip that rounding explains** →",
                    query_params=_first_flip(flip),
                )
            if bug is not None:
                st.page_link(
                    PAGES / "overview.py", label="**Open an injected bug** →", query_params={"run": bug.run_id}
                )
            if cards:  # else the empty gallery says what to do
                st.page_link(PAGES / "capture.py", label="**Capture a run** →")


def _first_flip(card: RunCard) -> dict[str, str]:
    """The address of the run's first flip; of the run, where that cannot be read."""
    address = {"run": card.run_id}
    with suppress(UlpscopeError):
        run = store_cache.open_run(card.run_id)
        if (first := run.first_flip()) is not None:
            pair, prompt, position = first
            of_prompt = {"prompt": str(prompt)} if len(run.header.prompts) > 1 else {}
            return address | {"variant": run.pairs[pair].variant} | of_prompt | {"position": str(position)}
    return address
