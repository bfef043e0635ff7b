"""Parts of the Compare page: the choice of runs, and their figures and flips as tables."""

from collections.abc import Iterable, Sequence

import pandas as pd
import streamlit as st

from app.shell import selection, store_cache, widgets, wording
from core.errors import UlpscopeError
from core.numerics.arrays import DataFrame, Record
from core.numerics.metrics import COUNTS
from core.runs.file.records import MAX_ROWS
from core.runs.queries.compare import FIGURES, RunPair, figures
from core.runs.reader import RunReader
from core.runs.reports.issue_markdown import gravest_first
from core.runs.store.cards import RunCard
from core.runs.store.store import cell_of
from core.text import multiple, number, percent, printable

# runs next to the first: six colors can be distinguished
MOST = 5
LETTERS = "ABCDEF"  # of the runs in tables and legends, the sidebar's first
Indices = dict[str, int | None]  # of a pair by run id, None: the one that is most like the open one


def _ask(indices: Indices) -> None:
    st.session_state["compare_with"] = ",".join(
        run_id if index is None else f"{run_id}~{index}" for run_id, index in indices.items()
    )


def pick_runs(view: selection.View) -> Indices:
    """Draw the control that chooses runs, and return them with the index of a pair: without a
    choice the run of the same model that is most like the sidebar's, the latest of several.
    """
    indices: Indices = {}
    # of the page's setting, `run~2,run`
    for part in st.session_state["compare_with"].split(",")[:MOST]:
        run_id, _, index = part.strip().partition("~")
        # isdigit() would take ² for a number, of which int() makes an error
        is_index = index.isdecimal() and len(index) < 6
        if run_id:
            indices[run_id] = int(index) if is_index else None
    newest, _ = store_cache.cards()
    own_id = view.run.run_id
    others = set(indices)
    if cell := cell_of(own_id):
        cells = store_cache.store().cells()
        others |= {run_id for run_id in cells if cell_of(run_id) == cell}
    others -= {card.run_id for card in newest}
    every = [*store_cache.cards_of(others), *newest]
    cards = {card.run_id: card for card in every if card.sides}
    cards.pop(own_id, None)
    gone = [widgets.escape(run_id[:60]) for run_id in indices if run_id not in (*cards, own_id)]
    if gone:
        st.warning(f"There is no run {', '.join(gone)} here (any more).")
    indices = {run_id: index for run_id, index in indices.items() if run_id in cards}
    header = view.header
    of_model = [
        card
        for card in cards.values()
        if card.positions <= MAX_ROWS
        and (card.model, card.vocab) == (header.provenance.model, header.vocab)
    ]
    if of_model and not indices:

        def likeness(card: RunCard) -> tuple:
            return (
                card.sides[0] == view.pair.reference,
                view.pair.variant in card.sides,
                card.compute_dtype == header.compute_dtype,
                card.device == header.provenance.device,
                card.positions == header.rows,
                card.created,
                card.run_id,
            )

        indices = {max(of_model, key=likeness).run_id: None}

    def label(run_id: str) -> str:
        card = cards[run_id]
        about = (card.name, card.compute_dtype, card.device, run_id)
        return " · ".join(filter(None, about))

    def choose() -> None:
        _ask({run_id: indices.get(run_id) for run_id in st.session_state["compare_runs"]})

    # The setting of the link leads; the widget follows it, and its callback writes the setting.
    st.session_state["compare_runs"] = list(indices)
    st.multiselect(
        "Compare with",
        cards,
        format_func=label,
        key="compare_runs",
        max_selections=MOST,
        filter_mode="contains",
        # else Enter selects all matches
        select_all=False,
        on_change=choose,
        placeholder="Choose one or more runs",
    )
    return indices


def pick(view: selection.View) -> list[RunPair]:
    """Draw the controls that choose runs, and return the sidebar's pair and the chosen ones."""
    indices = pick_runs(view)
    pairs = [RunPair(view.run, view.pair, view.table)]
    for run_id, index in indices.items():
        try:
            run = store_cache.open_run(run_id)
            run.header.check_short()
        except UlpscopeError as error:
            st.error(widgets.escape(str(error)))
            continue
        if index is None or index >= len(run.pairs):
            alike = [pair for pair in run.pairs if pair.variant == view.pair.variant]
            if not alike:
                alike = [pair for pair, _ in gravest_first(run, run.pairs)]
            index = alike[0].index
        table = store_cache.cached(run, RunReader.positions, index)
        pairs.append(RunPair(run, run.pairs[index], table))

    def choose(run_id: str, key: str) -> None:
        _ask(indices | {run_id: st.session_state[key]})

    others = zip(LETTERS[1:], pairs[1:], strict=False)
    several = [(letter, one) for letter, one in others if len(one.run.pairs) > 1]
    columns = st.columns(max(1, len(several)))
    for column, (letter, one) in zip(columns, several, strict=False):
        run_id = one.run.run_id
        key = f"compare_variant_{run_id}"
        st.session_state[key] = one.pair.index
        variants = {pair.index: f"{pair.index}: {pair.variant}" for pair in one.run.pairs}
        with column:
            widgets.select(
                f"Variant of {letter}",
                variants,
                key,
                on_change=choose,
                args=(run_id, key),
            )
    return pairs


def draw_key(runs: Sequence[RunReader], details: Sequence[str]) -> list[str]:
    """Draw and return what each letter stands for: name, model and dtype of a run, and a detail."""
    lines = []
    for letter, run, detail in zip(LETTERS, runs, details, strict=False):
        header = run.header
        model = wording.model_name(header.provenance.model)
        about = (f"{letter}: {header.name}", model, header.compute_dtype, detail)
        lines.append(printable(" · ".join(filter(None, about))))
    st.markdown("\n".join(f"- {widgets.escape(line)}" for line in lines))
    return lines


def differing(facts: Sequence[Record], letters: Iterable[str]) -> DataFrame:
    """Return the facts that differ between runs: one row per fact, one column per run."""
    table = pd.DataFrame(list(facts), index=list(letters))
    table = table.astype(object).fillna("").replace("", "–").astype(str).T
    return table[table.nunique(axis=1) > 1]


def figure_texts(pairs: Sequence[RunPair], letters: Sequence[str]) -> DataFrame:
    """Table of the figures: one row per figure, one column per run, with its ratio to the first in
    brackets if it says something.
    """
    table = figures(pairs)
    units = dict.fromkeys(one.run.header.unit for one in pairs)
    rows = {"verdict": [one.verdict for one in pairs]}
    for name, label, is_more in FIGURES:
        cells: list[str] = []
        for value, one in zip(table.get(name, []), pairs, strict=False):
            # some figures of lists are unknown, of which it says so
            text = number(value)
            if pd.isna(value):
                text = "–"
            elif name == "noise_ratio":
                text = multiple(value)
            elif name.endswith("_share"):
                text = percent(value)
                if name != "neq_share":
                    total = len(one.table)
                    text += f", {round(value * total):,} of {total:,}"
            first = table[name][0]
            is_comparable = len(units) == 1 and cells and value and first
            if is_more and is_comparable and number(value / first) not in ("1", "undefined"):
                text += f"  ({multiple(value / first)})"
            cells.append(text)
        if cells:
            rows[label.format(unit=" or ".join(units))] = cells
    return pd.DataFrame.from_dict(rows, orient="index", columns=list(letters))


def export_runs(pairs: Sequence[RunPair]) -> DataFrame:
    """Return the unrounded figures and provenance for a download, one row per run."""
    names = ["flips", "near_ties", "same_top1", "max_ulps", "mean_ulps", "max_row_ulps", *COUNTS]
    facts = pd.DataFrame([one.facts for one in pairs])
    summaries = pd.DataFrame([vars(one.pair.summary) for one in pairs])
    return pd.concat([facts, figures(pairs), summaries[names]], axis=1)


def flip_texts(
    flips: DataFrame,
    pairs: Sequence[RunPair],
    letters: Sequence[str],
) -> DataFrame:
    """Return one row per position with a flip: place, and per run the two tokens, empty if it has
    no flip there.
    """
    texts = []
    for row in flips.itertuples():
        tokens = (row.reference_token, row.variant_token)
        texts.append(" → ".join(widgets.table_texts(tokens, pairs[row.run].run)))
    place = ["prompt", "position"]
    wide = flips.assign(text=texts).pivot(index=place, columns="run", values="text")
    # a run without any flip has a column too
    wide = wide.reindex(columns=range(len(pairs)))
    wide.columns = list(letters)
    # shared flips come first, as in `flips`
    wide = wide.reindex(pd.MultiIndex.from_frame(flips[place].drop_duplicates()))
    return wide.astype(object).fillna("").reset_index()
