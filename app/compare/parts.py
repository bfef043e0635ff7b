"""Parts of the Compare page: the choice of runs, their headline figures side by side, the flips they share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pandas as pd
import streamlit as st

from app.shell import selection, store_cache, widgets, wording
from core.errors import UlpscopeError
from core.numerics.metrics import COUNTS
from core.runs.reader import RunReader
from core.runs.reports.report_json import over_logits, over_margins, over_positions
from core.runs.store.store import cell_of
from core.runs.views.compare import FLIPS, NEAR_TIES, NOISE, Compared, FlipSet, headline
from core.runs.views.headline import multiple
from core.text import exact, number, percent, printable

MOST = 5  # runs beside the first: six colours can be told apart
BY = {
    "max_abs": "largest difference, logits",
    "max_row_ulps": "max row ULPs",
    "max_ulps": "max ULPs",
    "rms": "rms difference, logits",
    "kl": "KL, nats",
}
SHORT = {"max_abs": "difference", "max_row_ulps": "row ULPs", "max_ulps": "ULPs", "rms": "rms", "kl": "KL"}
_SEPARATOR, _PAIR = ",", "~"  # of the address: run~2,run~0


def asked() -> list[tuple[str, int | None]]:
    """Runs that the page's setting names, each with the index of its pair or None."""
    found = []
    for part in str(st.session_state.get("compare_with", "")).split(_SEPARATOR):
        run_id, _, index = part.strip().partition(_PAIR)
        if run_id:
            found.append((run_id, int(index) if index.isdigit() and len(index) < 6 else None))
    return found[:MOST]


def _ask(chosen: Sequence[tuple[str, int | None]]) -> None:
    st.session_state["compare_with"] = _SEPARATOR.join(
        run_id if index is None else f"{run_id}{_PAIR}{index}" for run_id, index in chosen
    )


def _of_same_cell(view: selection.View) -> set[str]:
    """Ids of the other runs of a sweep's cell, by other builds."""
    cell = cell_of(view.run.run_id)
    return set() if cell is None else {run_id for run_id in store_cache.store().cells() if cell_of(run_id) == cell}


def pick(view: selection.View) -> list[Compared]:
    """Draw the controls that choose runs, and return the chosen ones, the sidebar's pair first."""
    listed, _ = store_cache.cards()
    others = {*_of_same_cell(view), *(run_id for run_id, _ in asked())} - {card.run_id for card in listed}
    cards = [card for card in (*store_cache.cards_of(others), *listed) if card.run_id != view.run.run_id and card.sides]
    labels = {
        card.run_id: f"{card.name} · {card.compute_dtype}{f' · {card.device}' if card.device else ''}" for card in cards
    }
    twice = {label for label, count in Counter(labels.values()).items() if count > 1}
    labels = {run_id: f"{label} · {run_id}" if label in twice else label for run_id, label in labels.items()}
    wanted = asked()
    gone = [run_id for run_id, _ in wanted if run_id not in labels and run_id != view.run.run_id]
    if gone:
        st.warning(f"There is no run {', '.join(widgets.escaped(run_id[:60]) for run_id in gone)} here (any more).")
    indices = {run_id: index for run_id, index in wanted if run_id in labels}
    st.session_state["compare_runs"] = list(indices)

    def changed() -> None:
        _ask([(run_id, indices.get(run_id)) for run_id in st.session_state["compare_runs"]])

    st.multiselect(
        "Compare with",
        list(labels),
        format_func=labels.__getitem__,
        key="compare_runs",
        max_selections=MOST,
        on_change=changed,
        placeholder="Choose one or more runs",
    )
    compared = [Compared(view.run, view.pair, view.table)]
    choices = {}
    for run_id, index in indices.items():
        try:
            run = store_cache.open_run(run_id)
        except UlpscopeError as error:
            st.error(widgets.escaped(str(error)))
            continue
        choices[run_id] = _place(run, index, view.pair.variant)
        compared.append(Compared(run, run.pairs[choices[run_id]], store_cache.positions(run, choices[run_id])))
    _variants(compared[1:], choices, indices)
    return compared


def _place(run: RunReader, index: int | None, variant: str) -> int:
    """Index of the pair that was asked for, else of the one of the same variant, else of the first."""
    if index is not None and index < len(run.pairs):
        return index
    return next((pair.index for pair in run.pairs if pair.variant == variant), 0)


def _variants(compared: Sequence[Compared], choices: dict[str, int], indices: dict[str, int | None]) -> None:
    """Draw a choice of the variant for every run that has several."""
    several = [one for one in compared if len(one.run.pairs) > 1]
    for column, one in zip(st.columns(max(1, len(several))), several, strict=False):
        run_id, key = one.run.run_id, f"compare_variant_{one.run.run_id}"
        st.session_state[key] = choices[run_id]

        def changed(run_id: str = run_id, key: str = key) -> None:
            _ask([(other, st.session_state[key] if other == run_id else indices[other]) for other in indices])

        names = {pair.index: f"{pair.index}: {pair.variant}" for pair in one.run.pairs}
        column.selectbox(
            f"Variant of {widgets.escaped(one.run.header.name)}",
            list(names),
            format_func=names.__getitem__,
            key=key,
            on_change=changed,
        )


def names(compared: Sequence[Compared]) -> list[str]:
    """Names of the pairs, short and each its own: the run's name, and its variant where that tells two apart."""
    plain = [printable(one.run.header.name, "?")[:60] for one in compared]
    return [
        name if plain.count(name) == 1 else f"{name} · {one.pair.variant} · {place + 1}"
        for place, (name, one) in enumerate(zip(plain, compared, strict=True))
    ]


def provenance(compared: Sequence[Compared], titles: Sequence[str]) -> pd.DataFrame:
    """Differences in where the runs come from: one row a fact that is not the same everywhere, one column a run."""
    facts = []
    for one in compared:
        about, header = one.run.header.provenance, one.run.header
        facts.append(
            {
                "reference": one.pair.reference,
                "variant": one.pair.variant,
                "verdict": one.pair.verdict or "not judged",
                "dtype": header.compute_dtype,
                "model": wording.model_name(about.model),
                "revision": about.revision,
                "device": f"{about.device} {about.device_name}".strip(),
                "positions": f"{header.rows:,}",
                "vocabulary": f"{header.vocab:,}",
                "created (UTC)": f"{one.run.created:%Y-%m-%d %H:%M}",
                **about.versions,
            }
        )
    keys = list(dict.fromkeys(key for each in facts for key in each))
    rows = {key: [each.get(key, "") for each in facts] for key in keys}
    differing = {key: values for key, values in rows.items() if len(set(values)) > 1}
    return pd.DataFrame.from_dict(differing, orient="index", columns=list(titles))


def figures(compared: Sequence[Compared], titles: Sequence[str]) -> pd.DataFrame:
    """Table of the headline figures: one row a measure, one column a run, with its ratio to the first in brackets where
    it says something.
    """
    rows = {}
    for row in headline(compared, [histogram(one) for one in compared]):
        cells: list[str] = []
        values, ratios = row["values"], row["ratios"]
        for one, value, ratio in zip(compared, values, ratios, strict=True):  # type: ignore[call-overload]
            text = _shown(str(row["measure"]), value, one)
            cells.append(text if ratio is None or not cells else f"{text}  ({number(ratio, 3)}x)")
        rows[str(row["measure"])] = cells
    return pd.DataFrame.from_dict(rows, orient="index", columns=list(titles))


def _shown(measure: str, value: float | None, one: Compared) -> str:
    """Text of a measure: rates with their counts, logits with all their digits, and what it is over if not all."""
    if value is None:
        return "undefined"
    summary, rows = one.pair.summary, one.run.header.rows
    if measure in (FLIPS, NEAR_TIES):
        return f"{percent(value)}, {round(value * rows):,} of {rows:,}"
    if measure == "differing logits, share":
        return percent(value)
    if measure == NOISE:
        return multiple(value)
    text = exact(value) if measure in ("largest difference, logits", "smallest margin, logits") else number(value, 3)
    over = (
        over_positions(summary, rows)
        if measure == "mean KL, nats"
        else over_margins(summary, rows)
        if measure == "smallest margin, logits"
        else over_logits(summary, one.elements)
    )
    return f"{text}, {over}" if over else text


def exported(compared: Sequence[Compared]) -> pd.DataFrame:
    """Table for a download with the figures as they are, one row a run, columns as in the run file's `pair`; where each
    comes from beside them.
    """
    rows = []
    for one in compared:
        about = one.run.header.provenance
        rows.append(
            {
                "run": one.run.run_id,
                "name": one.run.header.name,
                "reference": one.pair.reference,
                "variant": one.pair.variant,
                "verdict": one.pair.verdict,
                "compute_dtype": one.run.header.compute_dtype,
                "positions": one.run.header.rows,
                "vocab": one.run.header.vocab,
                "model": about.model,
                "revision": about.revision,
                "device": about.device,
                "device_name": about.device_name,
                "created": one.run.created,
                **{f"version of {name}": version for name, version in about.versions.items()},
            }
        )
    table = pd.DataFrame(rows)
    for row in headline(compared, [histogram(one) for one in compared]):
        table[str(row["measure"])] = pd.Series(row["values"], dtype=float)
    for name in ("flips", "near_ties", "same_top1", "max_ulps", "mean_ulps", "max_row_ulps", *COUNTS):
        table[name] = [getattr(one.pair.summary, name) for one in compared]
    return table


def by_position(compared: Sequence[Compared], prompt: int) -> pd.DataFrame:
    """Table of every run's figures by position of a prompt, one below another, with the run in front."""
    parts = [
        one.table[one.table["prompt"] == prompt].assign(variant=one.pair.variant, run=one.run.run_id)
        for one in compared
    ]
    whole = pd.concat(parts, ignore_index=True)
    return whole[["run", "variant", *(name for name in whole.columns if name not in ("run", "variant"))]]


def histogram(one: Compared) -> dict[int, int]:
    """Map from ULP distance to number of elements, kept: of a float32 pair it takes 0.15 s to read."""
    return store_cache.histogram(selection.View(one.run, one.pair, 0, 0, one.table))


def distributions(compared: Sequence[Compared]) -> pd.DataFrame:
    """Table with run, variant, distance_ulps, elements: how many logits of each pair are how many ULPs of its own dtype
    apart.
    """
    parts = []
    for one in compared:
        found = histogram(one)
        counted = {"distance_ulps": list(found), "elements": list(found.values())}
        parts.append(pd.DataFrame({"run": one.run.run_id, "variant": one.pair.variant} | counted))
    return pd.concat(parts, ignore_index=True)


def flips_exported(found: Sequence[FlipSet], compared: Sequence[Compared]) -> pd.DataFrame:
    """Table with prompt, position, run, variant, reference_token, variant_token: one row a flip of a run."""
    rows = [
        {
            "prompt": one.prompt,
            "position": one.position,
            "run": each.run.run_id,
            "variant": each.pair.variant,
            "reference_token": tokens[0],
            "variant_token": tokens[1],
        }
        for one in found
        for tokens, each in zip(one.tokens, compared, strict=True)
        if tokens is not None
    ]
    return pd.DataFrame(rows, columns=["prompt", "position", "run", "variant", "reference_token", "variant_token"])


def flips(found: Sequence[FlipSet], compared: Sequence[Compared], titles: Sequence[str]) -> pd.DataFrame:
    """Table of flips, one row a position: where, in each run the two tokens, or nothing where it does not flip."""
    rows = []
    for one in found:
        row: dict[str, object] = {
            "prompt": one.prompt,
            "position": one.position,
            "in": f"{sum(one.flips)} of {len(compared)}",
        }
        for title, tokens, each in zip(titles, one.tokens, compared, strict=True):
            texts = [] if tokens is None else [wording.token(token, each.run.vocabulary.get(token)) for token in tokens]
            row[title] = " → ".join(texts)
        rows.append(row)
    table = pd.DataFrame(rows)
    return table.drop(columns="prompt") if len(compared[0].run.header.prompts) == 1 and len(table) else table
