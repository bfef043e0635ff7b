"""Parts of the Compare page: the choice of runs, and their figures and flips as tables."""

from collections.abc import Iterable, Sequence

import pandas as pd
import streamlit as st

from app.shell import selection, store_cache, widgets
from core.errors import UlpscopeError
from core.numerics.arrays import DataFrame, Record
from core.numerics.metrics import COUNTS
from core.runs.file.records import MAX_ROWS
from core.runs.queries.compare import FIGURES, RunPair, figures
from core.runs.reader import RunReader
from core.runs.store.cards import RunCard
from core.runs.store.store import cell_of
from core.text import clip, multiple, number, percent, printable

# runs next to the first: six colors can be distinguished
MOST = 5
Indices = dict[str, int | None]  # of a pair by run id, None: the one that is most like the open one


def _ask(indices: Indices) -> None:
    st.session_state["compare_with"] = ",".join(
        run_id if index is None else f"{run_id}~{index}" for run_id, index in indices.items()
    )


def pick_runs(view: selection.View) -> Indices:
    """Draw the control that chooses runs, and return them with the index of a pair: without a
    choice the latest run of the same model that is most like the sidebar's.
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
            return card.positions == header.rows, card.created, card.run_id

        # the latest one, of as many positions if there is one
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
        on_change=choose,
        placeholder="Choose one or more runs",
    )
    return indices


def pick(view: selection.View) -> list[RunPair]:
    """Draw the controls that choose runs, and return the sidebar's pair and the chosen ones, the
    oldest run first.
    """
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
            alike = [pair.index for pair in run.pairs if pair.variant == view.pair.variant]
            index = alike[0] if alike else 0
        table = store_cache.cached(run, RunReader.positions, index)
        pairs.append(RunPair(run, run.pairs[index], table))

    def choose(run_id: str, key: str) -> None:
        _ask(indices | {run_id: st.session_state[key]})

    several = [one for one in pairs[1:] if len(one.run.pairs) > 1]
    columns = st.columns(max(1, len(several)))
    for column, one in zip(columns, several, strict=False):
        run_id = one.run.run_id
        key = f"compare_variant_{run_id}"
        st.session_state[key] = one.pair.index
        variants = {pair.index: f"{pair.index}: {pair.variant}" for pair in one.run.pairs}
        with column:
            title = f"Variant of {widgets.escape(one.run.header.name)}"
            widgets.select(
                title,
                variants,
                key,
                on_change=choose,
                args=(run_id, key),
            )
    pairs.sort(key=lambda one: (one.run.created, one.run.run_id))
    return pairs


def names(runs: Sequence[RunReader]) -> list[str]:
    """Return short, distinct names of the runs: numbered if two share a name."""
    plain = [clip(printable(run.header.name, "?"), 60) for run in runs]
    return [
        name if plain.count(name) == 1 else f"{place}: {name}"
        for place, name in enumerate(plain, 1)
    ]


def differing(facts: Sequence[Record], titles: Iterable[str]) -> DataFrame:
    """Return the facts that differ between runs: one row per fact, one column per run."""
    table = pd.DataFrame(list(facts), index=list(titles))
    table = table.astype(object).fillna("").replace("", "–").astype(str).T
    return table[table.nunique(axis=1) > 1]


def figure_texts(pairs: Sequence[RunPair], titles: Sequence[str]) -> DataFrame:
    """Table of the figures: one row per figure, one column per run, with its ratio to the first in
    brackets if it says something.
    """
    table = figures(pairs)
    units = dict.fromkeys(one.run.header.unit for one in pairs)
    rows = {}
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
    return pd.DataFrame.from_dict(rows, orient="index", columns=list(titles))


def export_runs(pairs: Sequence[RunPair]) -> DataFrame:
    """Return the unrounded figures and provenance for a download, one row per run."""
    names = ["flips", "near_ties", "same_top1", "max_ulps", "mean_ulps", "max_row_ulps", *COUNTS]
    facts = pd.DataFrame([one.facts for one in pairs])
    summaries = pd.DataFrame([vars(one.pair.summary) for one in pairs])
    return pd.concat([facts, figures(pairs), summaries[names]], axis=1)


def flip_texts(
    flips: DataFrame,
    pairs: Sequence[RunPair],
    titles: Sequence[str],
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
    wide.columns = list(titles)
    # shared flips come first, as in `flips`
    wide = wide.reindex(pd.MultiIndex.from_frame(flips[place].drop_duplicates()))
    return wide.astype(object).fillna("").reset_index()
