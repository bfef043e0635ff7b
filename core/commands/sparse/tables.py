"""Tables of sparse pairs for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from ...runs.reports.sparse_json import position_json, summary_json
from ...runs.reports.sparse_wording import (
    grid_lines,
    low_of,
    meeting_lines,
    placeholder_words,
    sentence,
    token_words,
    told,
    told_count,
)
from ...runs.sparse.pairing import SparsePair
from ...runs.sparse_run import SparseVerdict
from ...text import number, percent, plural
from ..terminal.console import err, out

MOST_NOTES = 20
_FIGURES = (
    "values sent",
    "that differ",
    "max abs of them",
    "flips",
    "ties",
    "could flip",
    "max KL, nats",
    "max prob. change",
)
_ROW = ("reference", "variant", "margins", "margins, ULPs", "largest change")


def print_sparse_pairs(pairs: Sequence[SparsePair], verdicts: Sequence[SparseVerdict] = ()) -> None:
    """Figures, flips, verdicts, the grid and where texts part on stdout; what has to be known of the comparison on
    stderr.
    """
    judged = {found.variant: found for found in verdicts}
    out.print(sparse_pair_table(pairs))
    for pair in pairs:
        verdict = judged.get(pair.variant)
        unjudged = f"{placeholder_words(pair)} {sentence(pair)}".strip()
        said = unjudged if verdict is None else f"{verdict.name}, {verdict.because}"
        out.print(f"{pair.variant}: {said}", markup=False, soft_wrap=True)
        if any(place.figures.is_flip for place in pair.positions):
            out.print(sparse_flip_table(pair))
    for line in (*grid_lines(*pairs), *(line for pair in pairs for line in meeting_lines(pair))):
        out.print(line, markup=False, soft_wrap=True)
    for note in list(dict.fromkeys(note for pair in pairs for note in pair.notes))[:MOST_NOTES]:
        err.print(f"note: {note}", markup=False, soft_wrap=True)


def sparse_pair_table(pairs: Sequence[SparsePair]) -> Table:
    """One line a pair: figures as numbers where they are exact, else with their bounds."""
    first = pairs[0]
    vocabulary = "" if first.vocab is None else f" of {first.vocab:,} tokens"
    table = Table(
        title=f"{escape(first.reference)} against …   {plural(len(first.positions), 'position')}{vocabulary}, by"
        f" {first.values} of the tokens that both sides sent"
    )
    for name in ("variant", *_FIGURES):
        table.add_column(name, justify="left" if name == "variant" else "right")
    for pair in pairs:
        said = summary_json(pair)
        share = f" ({percent(said['listed_that_differ'] / said['listed'])})" if said["listed"] else ""
        table.add_row(
            escape(pair.variant),
            f"{said['listed']:,}",
            f"{said['listed_that_differ']:,}{share}",
            number(low_of(said["max_abs"])) if said["listed"] else "none",
            *(told_count(said[name]) for name in ("flips", "ties", "could_flip")),
            told(said["max_kl"]),
            told(said["max_probability_change"]),
        )
    return table


def sparse_flip_table(pair: SparsePair, limit: int = 20) -> Table:
    """The flips of a pair, margins in the values' unit and in ULPs of the grid where one is shown."""
    flips = [place for place in pair.positions if place.figures.is_flip]
    more = f", the first {limit}" if len(flips) > limit else ""
    table = Table(title=f"flips of {escape(pair.variant)}: {len(flips)}{more}")
    has_prompts = len(pair.meetings) > 1
    for name in (*(["prompt"] if has_prompts else []), "position", *_ROW):
        table.add_column(name, justify="right")
    for place in flips[:limit]:
        row = position_json(place, pair)
        margins = " / ".join(number(row[f"{side}_margin"]) for side in ("reference", "variant"))
        ulps = " / ".join(told(row[f"{side}_margin_ulps"]) for side in ("reference", "variant"))
        table.add_row(
            *([str(place.prompt)] if has_prompts else []),
            str(place.position),
            *(escape(token_words(row, side)) for side in ("reference", "variant")),
            margins,
            "" if row["reference_margin_ulps"] is None and row["variant_margin_ulps"] is None else ulps,
            told(row["max_abs"]),
        )
    return table


def sparse_side_table(sides: Sequence[Mapping[str, Any]]) -> Table:
    """Table of what was sent, a line a side of `sparse_json.side_json`."""
    table = Table(title="sides")
    counted = ("prompts", "rows", "values sent", "most a row", "placeholders")
    for column in ("side", "format", "values", *counted, "processed"):
        table.add_column(column, justify="right" if column in counted else "left")
    for side in sides:
        processed = {True: "yes", False: "no", None: "not said"}[side["processed"]]
        counts = (side["prompts"], side["rows"], side["listed"], side["most_a_row"], side["missing"])
        table.add_row(
            escape(side["name"]),
            escape(", ".join(side["formats"])),
            f"{side['values']} by {side['keys'].replace('_', ' ')}",
            *(f"{count:,}" for count in counts),
            processed,
        )
    return table
