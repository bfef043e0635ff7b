"""Tables of pairs and flips on the terminal, of complete rows and of the values that a server sent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from ..runs.queries.verdicts import ulp_percentile
from ..runs.reports.report_json import PairReport, over_logits, over_positions
from ..runs.reports.sparse_json import position_json, summary_json
from ..runs.reports.sparse_wording import (
    grid_lines,
    low_of,
    meeting_lines,
    placeholder_words,
    sentence,
    token_words,
    told,
    told_count,
)
from ..runs.sparse_run import SparseVerdict
from ..runs.topk.pairing import ListPair
from ..text import number, percent, plural
from .terminal.console import err, out, print_text, table_of

_MOST_NOTES = _MOST_FLIPS = 20


def pair_table(pairs: Sequence[PairReport], compute_dtype: str, rows: int, vocab: int) -> Table:
    columns = ("variant", "differing logits", "rms, row ULPs", "max abs", "ULPs: median", "p99", "flips", "near ties")
    title = f"{pairs[0].reference} vs …   {plural(rows, 'position')} x {vocab:,} tokens, ULPs of {compute_dtype}"
    lines = (line for pair in pairs for line in _pair_lines(pair, rows, rows * vocab))
    return table_of((*columns, "mean KL, nats"), lines, title=title, text=("variant",))


def _pair_lines(pair: PairReport, rows: int, elements: int) -> Iterator[Sequence[str]]:
    s = pair.summary
    yield (
        pair.variant,
        "bit-identical" if s.bit_identical else f"{s.neq:,} of {elements:,} ({percent(s.neq_share)})",
        number(s.rms_row_ulps, 3),
        number(s.max_abs),
        *(number(ulp_percentile(pair.histogram, share)) for share in (0.5, 0.99)),
        f"{s.flips:,}",
        f"{s.near_ties:,}",
        number(s.mean_kl, 3),
    )
    if s.nonfinite_mismatch:
        yield "", f"{plural(s.nonfinite_mismatch, 'element')}: NaN or infinity on one side only"
    if over := over_logits(s, elements):
        yield "", f"differences are {over}, those finite on both sides"
    if over := over_positions(s, rows):
        yield "", f"mean KL is {over}"


def print_flips(pair: PairReport, texts: Mapping[int, str], has_prompts: bool) -> None:
    """Print the flips of a pair, margins in ULPs; nothing if it has none."""

    def token(identity: int) -> str:
        return f"{identity} {texts[identity]!r}" if identity in texts else str(identity)

    flips = [row for row in pair.rows if row["is_flip"]]
    rows = (
        (
            row["prompt"],
            row["position"],
            token(row["reference_token"]),
            token(row["variant_token"]),
            " / ".join(number(row[f"{side}_margin_ulps"]) for side in ("reference", "variant")),
            number(row["max_abs"]),
        )
        for row in flips[:_MOST_FLIPS]
    )
    _print_flips(pair.variant, len(flips), ("margins, ULPs", "max abs"), rows, has_prompts)


def _print_flips(
    variant: str, count: int, figures: Sequence[str], rows: Iterable[Sequence[object]], has_prompts: bool
) -> None:
    if not count:
        return
    columns = ("prompt", "position", "reference", "variant", *figures)
    first = 0 if has_prompts else 1
    title = f"flips of {variant}: {count:,}{f', the first {_MOST_FLIPS}' if count > _MOST_FLIPS else ''}"
    out.print(table_of(columns[first:], (row[first:] for row in rows), title=title, text=()))


def print_sparse_pairs(pairs: Sequence[ListPair], verdicts: Sequence[SparseVerdict] = ()) -> None:
    """Print figures, verdicts and flips of pairs of sparse sides; notes on the comparison go to stderr."""
    judged = {one.variant: one for one in verdicts}
    first = pairs[0]
    vocabulary = "" if first.vocab is None else f" of {first.vocab:,} tokens"
    title = (
        f"{first.reference} vs …   {plural(len(first.positions), 'position')}{vocabulary}, {first.values} of both sides"
    )
    columns = ("variant", "values sent", "that differ", "max abs of them", "flips", "ties", "could flip")
    last = ("max KL, nats", "max prob. change")
    out.print(table_of((*columns, *last), map(_sparse_pair_line, pairs), title=title, text=("variant",)))
    for pair in pairs:
        verdict = judged.get(pair.variant)
        unjudged = f"{placeholder_words(pair)} {sentence(pair)}".strip()
        print_text(f"{pair.variant}: {unjudged if verdict is None else f'{verdict.name}, {verdict.because}'}")
        flips = [place for place in pair.positions if place.figures.is_flip]
        rows = (_sparse_flip_line(position_json(place, pair)) for place in flips[:_MOST_FLIPS])
        figures = ("margins", "margins, ULPs", "largest change")
        _print_flips(pair.variant, len(flips), figures, rows, len(pair.meetings) > 1)
    for line in (*grid_lines(*pairs), *(line for pair in pairs for line in meeting_lines(pair))):
        print_text(line)
    for note in list(dict.fromkeys(note for pair in pairs for note in pair.notes))[:_MOST_NOTES]:
        print_text(f"note: {note}", err)


def _sparse_pair_line(pair: ListPair) -> Sequence[str]:
    s = summary_json(pair)
    share = f" ({percent(s['listed_that_differ'] / s['listed'])})" if s["listed"] else ""
    return (
        pair.variant,
        f"{s['listed']:,}",
        f"{s['listed_that_differ']:,}{share}",
        number(low_of(s["max_abs"])) if s["listed"] else "none",
        *(told_count(s[name]) for name in ("flips", "ties", "could_flip")),
        told(s["max_kl"]),
        told(s["max_probability_change"]),
    )


def _sparse_flip_line(row: dict[str, Any]) -> Sequence[object]:
    sides = ("reference", "variant")
    ulps = [row[f"{side}_margin_ulps"] for side in sides]
    return (
        row.get("prompt", 0),
        row["position"],
        *(token_words(row, side) for side in sides),
        " / ".join(number(row[f"{side}_margin"]) for side in sides),
        "" if ulps == [None, None] else " / ".join(map(told, ulps)),
        told(row["max_abs"]),
    )


def sparse_side_table(sides: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table of what was sent, a line a side of `sparse_json.side_json`."""
    counted = ("prompts", "rows", "values sent", "most a row", "placeholders")
    rows = (
        (
            side["name"],
            ", ".join(side["formats"]),
            f"{side['values']} by {side['keys'].replace('_', ' ')}",
            *(f"{side[key]:,}" for key in ("prompts", "rows", "listed", "most_a_row", "missing")),
            {True: "yes", False: "no", None: "not said"}[side["processed"]],
        )
        for side in sides
    )
    columns = ("side", "format", "values", *counted, "processed")
    return table_of(columns, rows, title="sides", text=("side", "format", "values", "processed"))
