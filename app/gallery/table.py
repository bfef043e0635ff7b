"""The table of runs, its download, the files that are no runs, and the first visitor's
introduction.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import pandas as pd
import streamlit as st
from msgspec.structs import asdict

from app.hosting import members
from app.shell import exports, selection, widgets, wording
from app.shell.widgets import PAGES
from core.numerics.arrays import DataFrame, Record
from core.runs.file.records import ALL
from core.runs.store.cards import BrokenRun, RunCard
from core.runs.store.labels import Labels
from core.text import plural, size
from core.verdict import BUG_SUSPECTED, ROUNDING

OPEN, EDIT, DELETE = "Open", "Rename, tags, files", "Delete"
_FIGURE = "%,.3g"
# the first four fit into a window of 1280 pixels, six into one of 1440
COLUMNS = {
    # Its chips have colors, which texts in a table have not.
    "verdict": st.column_config.MultiselectColumn(
        options=list(wording.VERDICTS),
        color=list(wording.VERDICTS.values()),
        help="The worst of the run's pairs, and how many other verdicts they have.",
        width=142,
    ),
    "name": st.column_config.TextColumn(width=430),
    "x floor": st.column_config.NumberColumn(
        "x noise floor",
        format=f"{_FIGURE}x",
        help="RMS of the difference over RMS of the noise floor, in the dtype that decides, mostly"
        " float32; rounding: up to 4",
        width=102,
    ),
    "flips": st.column_config.NumberColumn(
        format="localized",
        help="positions whose argmax differs",
        width=56,
    ),
    "differ": st.column_config.NumberColumn(
        "logits differ",
        format="%.1f%%",
        help="largest share of a pair's logits that differ",
        width=92,
    ),
    "rms row ULPs": st.column_config.NumberColumn(
        "RMS, row ULPs",
        format=_FIGURE,
        help="RMS difference, in spacings of the dtype at the row's largest logit",
        width=108,
    ),
    "dtype": st.column_config.TextColumn(width=72),
    "tags": st.column_config.ListColumn(width=90),
    "max row ULPs": st.column_config.NumberColumn(
        format=_FIGURE,
        help="largest difference, in row ULPs",
    ),
    "positions": widgets.GROUPED,
    "created": st.column_config.DatetimeColumn(format="YYYY-MM-DD HH:mm", help="UTC"),
}
# a table without a row shows them too
_NAMES = [
    "actions",
    "verdict",
    "name",
    "x floor",
    "flips",
    "differ",
    "rms row ULPs",
    "dtype",
    "tags",
    "device",
    "max row ULPs",
    "positions",
    "sides",
    "model",
    "created",
    "size",
    "note",
]
_MOST_ROWS = 16  # that are shown without scrolling


def count_line(
    cards: Sequence[RunCard],
    matches: Sequence[RunCard],
    labels: Mapping[str, Labels],
) -> None:
    """Draw the number of matching runs, and their list to download."""
    with st.container(
        horizontal=True,
        horizontal_alignment="distribute",
        vertical_alignment="center",
    ):
        total = plural(len(cards), "run")
        count = total if len(matches) == len(cards) else f"{len(matches):,} of {total}"
        what = "worst pair of each. Click one to open it, tick some to compare or delete them."
        st.caption(f"{count}, {what}", width="content")
        if matches:
            export = partial(export_table, matches, labels)
            exports.download({"runs": export}, "ulpscope-runs", "runs")


def export_table(matches: Sequence[RunCard], labels: Mapping[str, Labels]) -> DataFrame:
    """Table of the shown runs for a download, with every figure as it is, lists as JSON."""
    rows = []
    for card in matches:
        each = labels.get(card.run_id, Labels())
        row = asdict(card)
        del row["pair_verdicts"], row["sides"]
        lists = {"verdicts": wording.verdicts(card), "sides": card.sides, "tags": each.tags}
        for name, values in lists.items():
            row[name] = json.dumps(list(values), ensure_ascii=False)
        rows.append(row | {"note": each.note, "pinned": each.pinned})
    return pd.DataFrame(rows)


def key_of(name: str, parts: Sequence[str]) -> str:
    """Key of a table of these rows."""
    return f"{name}_{hash(tuple(parts))}"


def open_run(card: RunCard) -> None:
    """Open a run on its page; for callbacks."""
    if card.sides:
        selection.open_run(card.run_id)
    else:
        # probes of operations have no sides
        st.session_state.update(ops_run=card.run_id, opened="machine")


def table(
    matches: Sequence[RunCard],
    labels: Mapping[str, Labels],
    act: Callable[[RunCard, str], None],
) -> None:
    """Draw the runs; a click on a cell opens its run, a tick marks it, and `act` gets the action
    that was chosen in a row.

    The browser knows rows by their number, so each list of runs has a widget of its own: no tick
    moves to another run.
    """
    ids = [card.run_id for card in matches]
    key = key_of("gallery", [str(st.session_state.get("gallery_serial", 0)), *ids])

    def choose() -> None:
        picked = st.session_state[key]["selection"]
        for row, _ in picked["cells"]:
            open_run(matches[row])
        hidden = [run_id for run_id in st.session_state.get("ticked", ()) if run_id not in ids]
        st.session_state["ticked"] = hidden + [ids[row] for row in picked["rows"]]

    def choose_action() -> None:
        click = st.session_state[f"{key}_action"]
        act(matches[click["row"]], click["label"])

    def row_of(card: RunCard) -> Record:
        each = labels.get(card.run_id, Labels())
        verdicts = wording.verdicts(card)
        if len(verdicts) > 1:
            verdicts[1:] = [f"+{len(verdicts) - 1}"]
        is_own = not card.is_read_only and members.may_change()
        ratio = card.noise_ratio
        # as the verdict says it: two decimals below 10, else three digits
        if ratio is not None and ratio < 10:
            ratio = round(ratio, 2)
        share = None
        if card.sides and card.rms_row_ulps is not None:
            share = round(100 * card.max_neq_share, 1)
            # only no logit is 0.0%, and only all are 100.0%
            if card.max_neq_share not in (0, 1):
                share = min(max(share, 0.1), 99.9)
        return {
            "actions": [OPEN, EDIT, DELETE] if is_own else [OPEN, EDIT],
            "verdict": verdicts,
            "name": card.name,
            "x floor": ratio,
            "flips": card.flips,
            "differ": share,
            "rms row ULPs": card.rms_row_ulps,
            "dtype": card.compute_dtype,
            "tags": list(each.tags),
            "device": card.device or None,
            "max row ULPs": card.max_row_ulps,
            "positions": card.positions,
            "sides": " · ".join(card.sides),
            "model": wording.model_name(card.model) or None,
            "created": card.created,
            "size": size(card.bytes) + ("" if card.keep == ALL else f", {card.keep}"),
            "note": " ".join(each.note.split())[:120] or None,
        }

    rows = pd.DataFrame(map(row_of, matches), columns=_NAMES).astype({"flips": "Int64"})
    if not any(rows["tags"]):
        del rows["tags"]
    actions = st.column_config.ButtonColumn(
        "",
        width=44,
        pinned=True,
        type="tertiary",
        on_click=choose_action,
        key=f"{key}_action",
    )
    ticked = set(st.session_state.get("ticked", ()))
    height = widgets.table_height(len(ids), _MOST_ROWS)
    widgets.room("gallery", height).dataframe(
        rows,
        key=key,
        hide_index=True,
        on_select=choose,
        selection_mode=["multi-row", "single-cell"],
        # Ticks come from the session: a table with a new key would begin without them.
        selection_default={
            "selection": {"rows": [row for row, run_id in enumerate(ids) if run_id in ticked]},
        },
        width="stretch",
        height=height,
        placeholder="–",
        column_config={**COLUMNS, "actions": actions},
        alt="the runs, one row each",
    )


def unreadable(files: Sequence[BrokenRun], damaged: Sequence[str]) -> None:
    """Draw a sentence on each file in the store that is no whole run; several are folded."""
    sentences = [f"Not a readable run: {run.reason}" for run in files] + list(damaged)
    if len(sentences) == 1:
        st.warning(widgets.escape(sentences[0]))
    elif sentences:
        with st.expander(
            f":orange[{len(sentences)} files here cannot be read]",
            icon=":material/warning:",
        ):
            st.markdown("\n".join(f"- {widgets.escape(sentence)}" for sentence in sentences))
            st.caption(
                "The other runs are not affected. Copy such a file again, or remove it from the"
                " store.",
            )


def first_visit(cards: Sequence[RunCard]) -> None:
    """Draw what this is and two sample runs worth opening, for a store without a run of one's
    own.
    """
    sound = [card for card in cards if ROUNDING in card.pair_verdicts]
    bugs = [card for card in cards if BUG_SUSPECTED in card.pair_verdicts]
    with st.container(border=True, key="first_visit"):
        st.markdown(
            "**Rounding, or a bug?** The same model on the same tokens produces different logits on"
            " a different execution path: token by token with a cache, in a larger batch, with a"
            " different kernel. ULPscope stores both sides bit for bit and shows where they"
            " diverge. The verdict compares the difference with the model's noise floor: the noise"
            " from changing only the reduction order.",
        )
        links = []
        # The link of a run without a position opens at its first flip.
        if sound:
            flip = max(sound, key=lambda card: card.flips or 0)
            about = "Open a flip that rounding explains"
            links.append((about, "overview", {"run": flip.run_id}))
        if bugs:
            links.append(("Open an injected bug", "overview", {"run": bugs[0].run_id}))
        for about in ("Capture a run", "Upload a dump"):
            links.append((about, "new_run", {"tab": about.split()[0].lower()}))
        with st.container(horizontal=True):
            for label, page, query in links:
                st.page_link(PAGES / f"{page}.py", label=f"**{label}** →", query_params=query)
