"""Tables of pairs and flips on the terminal, of complete logits and of top tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text

from ..checks.state import axes_of, axis_texts
from ..evidence import FAILED, MISSING, ORDER
from ..runs.file.records import RunHeader, StoredPair
from ..runs.queries.verdicts import Answer, ulp_percentile
from ..runs.reports.report_json import PairReport, over_positions, over_some, report_of_run
from ..text import column, out_of, plural
from .terminal.console import err, out, print_note, print_records, print_text, table_of

if TYPE_CHECKING:
    from ..runs.reader import RunReader

_MOST_FLIPS = 20
_COLUMNS_OF_TOKENS = 3  # the last of the table of pairs
TOKENS = ("reference_token", "variant_token")
_STYLES = {FAILED: "bold red", MISSING: "yellow"}


def pair_table(pairs: Sequence[PairReport], header: RunHeader) -> Table:
    columns: tuple[str, ...] = (
        "variant",
        f"{header.elements} that differ",
        "RMS, row ULPs",
        f"max abs, {header.unit}",
        "ULPs: median",
        "p99",
        "flips",
        "near ties",
        "mean KL, nats",
    )
    size = f"{header.size}, ULPs of {header.compute_dtype}"
    of_lists = f"{plural(pairs[0].positions, 'position')}, {header.quantity}"
    title = f"{pairs[0].reference} vs …   {size if not header.is_list else of_lists}"
    figures = list(zip(*map(_figures, pairs), strict=True))
    if not header.has_tokens:
        columns, figures = columns[:-_COLUMNS_OF_TOKENS], figures[:-_COLUMNS_OF_TOKENS]
    texts = zip(*map(column, figures), strict=True)
    lines: list[Sequence[str]] = []
    for pair, of_pair in zip(pairs, texts, strict=True):
        s, rows = pair.summary, header.rows
        elements = rows * header.vocab if not header.is_list else s.finite
        differ = "bit-identical" if s.bit_identical else out_of(s.neq, elements)
        unknown = "" if pair.is_list else "undefined"
        lines.append((pair.variant, differ, *(text or unknown for text in of_pair)))
        notes = []
        if s.nonfinite_mismatch:
            count = plural(s.nonfinite_mismatch, "element")
            notes.append(f"{count}: NaN or infinity on one side only")
        if scope := over_some(s.finite, elements, header.elements):
            notes.append(f"differences are {scope}, those finite on both sides")
        if not header.is_list and header.has_tokens and (scope := over_positions(s, rows)):
            notes.append(f"mean KL is {scope}")
        lines += [("", note) for note in notes]
    return table_of(columns, lines, title=title, text=("variant",))


def print_pairs(run: RunReader, mismatch: dict[str, Any] | None = None) -> None:
    """Print figures, verdicts and flips of a run."""
    pairs, classes = report_of_run(run)
    pairs = [replace(pair, mismatch=mismatch) for pair in pairs]
    print_reports(pairs, classes, run.header, run.vocabulary)


def print_reports(
    pairs: Sequence[PairReport],
    classes: list[list[str]],
    header: RunHeader,
    texts: Mapping[int, str],
    variant: str | None = None,
) -> None:
    """Print verdicts, figures, flips and classes of pairs; variant: print only its flips."""
    axes = axes_of(row for pair in pairs for row in pair.answer.checks)
    if axes:
        records = [axis_texts(axis) for axis in axes]
        out.print(table_of(list(records[0]), [list(record.values()) for record in records]))
    for pair in [] if axes else pairs:
        print_answer(pair.answer, pair)
    # figures of trainer vs. rollout say more than a count of what differs
    if pairs[0].mismatch is None:
        out.print(pair_table(pairs, header))
    for pair in pairs:
        for row in pair.answer.checks:
            if row.group == ORDER:
                print_text(f"{pair.variant}: {row.says}" if len(pairs) > 1 else row.says)
    # the first of the reference's class is the reference, which has no flips of its own
    first_of_class = {*classes[0][1:2], *(group[0] for group in classes)}
    margins = (row["reference_margin_ulps"] for pair in pairs for row in pair.rows)
    # lists of servers seldom show the dtype that ULPs are of
    margin = "margin" if all(each is None for each in margins) else "margin_ulps"
    keys: Sequence[str] = (
        "position",
        *TOKENS,
        f"reference_{margin}",
        f"variant_{margin}",
        "max_abs",
    )
    if header.has_several_prompts:
        keys = ("prompt", *keys)
    # one variant of a class: bit-identical ones have the same flips
    for pair in pairs:
        if pair.variant in ({variant} if variant else first_of_class):
            flips = [row | with_texts(row, texts) for row in pair.rows if row["is_flip"]]
            print_records(
                flips, f"flips of {pair.variant}: {len(flips):,}", keys=keys, most=_MOST_FLIPS
            )
    if len(pairs) > 1:
        groups = "   ".join("{" + ", ".join(group) + "}" for group in classes)
        print_text(f"bit-identical classes: {groups}")
    if header.is_list:
        print_note(header.kept_note)


def print_answer(answer: Answer, pair: PairReport | StoredPair, console: Console = out) -> None:
    """Print a verdict: its name, sentence, first place and size, and on stderr the command that
    would decide.
    """
    sides = escape(f"{pair.variant} vs {pair.reference}")
    console.print(f"[bold]{escape(answer.name)}[/bold]  {sides}")
    print_text(answer.sentence, console)
    for name, value in answer.facts.items():
        print_text(f"{name}: {value}", console)
    if answer.next_command:
        print_text(f"next: {answer.next_command}", err)


def print_checks(answer: Answer) -> None:
    """Print a table of the checks, and which others could run."""
    if answer.checks:
        table = Table("outcome", "check", Column("result", overflow="fold"))
        for title, row in answer.titled_checks:
            table.add_row(
                Text(row.outcome, _STYLES.get(row.outcome, "")),
                escape(title),
                escape(row.says),
            )
        out.print(table)
    if answer.not_run:
        print_text(answer.not_run_line)


def _figures(pair: PairReport) -> tuple[float | None, ...]:
    s = pair.summary
    median, most = (ulp_percentile(pair.histogram, share) for share in (0.5, 0.99))
    return s.rms_row_ulps, s.max_abs, median, most, s.flips, s.near_ties, s.mean_kl


def with_texts(row: Mapping[str, Any], texts: Mapping[int, str]) -> dict[str, str]:
    """Return both tokens of a row with their texts."""
    both = {}
    for key in TOKENS:
        token = row[key]
        if token is not None:
            both[key] = f"{token} {texts[token]!r}" if token in texts else str(token)
    return both
