"""Tables of pairs and flips on the terminal, of complete logits and of top tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text

from ..checks.state import axes_of, axis_texts
from ..evidence import FAILED, MISSING, ORDER
from ..runs.file.keep import note_of
from ..runs.file.records import RunHeader
from ..runs.queries.verdicts import Answer, ulp_percentile
from ..runs.reports.report_json import PairReport, over_logits, over_positions, report_of_run
from ..text import column, out_of, plural
from .terminal.console import err, out, print_records, print_text, table_of

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
    title = f"{pairs[0].reference} vs …   {size if header.k is None else of_lists}"
    figures = list(zip(*map(_figures, pairs), strict=True))
    if not header.has_tokens:
        columns, figures = columns[:-_COLUMNS_OF_TOKENS], figures[:-_COLUMNS_OF_TOKENS]
    columns_of_figures = [_as_text(pairs, values) for values in figures]
    by_pair = zip(pairs, zip(*columns_of_figures, strict=True), strict=True)
    lines = (line for pair, figures in by_pair for line in _pair_lines(pair, header, figures))
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
        lines = [tuple(record.values()) for record in records]
        out.print(table_of(tuple(records[0]), lines))
    for pair in [] if axes else pairs:
        print_answer(pair.answer, f"{pair.variant} vs {pair.reference}")
    # figures of trainer vs. rollout say more than a count of what differs
    if pairs[0].mismatch is None:
        out.print(pair_table(pairs, header))
    for pair in pairs:
        for row in pair.answer.checks:
            if row.group == ORDER:
                print_text(f"{pair.variant}: {row.says}" if len(pairs) > 1 else row.says)
    # the first of the reference's class is the reference, which has no flips of its own
    first_of_class = {group[0] for group in classes} | (
        {group[1] for group in classes[:1] if len(group) > 1}
    )
    # one variant of a class: bit-identical ones have the same flips
    for pair in pairs:
        if pair.variant == variant if variant else pair.variant in first_of_class:
            print_flips(pair, texts, header.has_several_prompts)
    if len(pairs) > 1:
        groups = "   ".join("{" + ", ".join(group) + "}" for group in classes)
        out.print(f"bit-identical classes: {groups}", markup=False)
    if header.k is not None:
        print_text(f"note: {note_of(header)}", err)


def print_answer(answer: Answer, sides: str, console: Console = out) -> None:
    """Print a verdict: its name, sentence, first place and size, and on stderr the command that
    would decide.
    """
    console.print(f"[bold]{escape(answer.name)}[/bold]  {escape(sides)}")
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


def _as_text(pairs: Sequence[PairReport], values: Sequence[float | None]) -> list[str]:
    texts = zip(pairs, column(values), strict=True)
    return [text or ("" if pair.is_list else "undefined") for pair, text in texts]


def _pair_lines(
    pair: PairReport,
    header: RunHeader,
    figures: Sequence[str],
) -> Iterator[Sequence[str]]:
    s, rows = pair.summary, header.rows
    elements = rows * header.vocab if header.k is None else s.finite
    yield (
        pair.variant,
        "bit-identical" if s.bit_identical else out_of(s.neq, elements),
        *figures,
    )
    if s.nonfinite_mismatch:
        yield "", f"{plural(s.nonfinite_mismatch, 'element')}: NaN or infinity on one side only"
    if scope := over_logits(s, elements, header.elements):
        yield "", f"differences are {scope}, those finite on both sides"
    if header.k is None and header.has_tokens and (scope := over_positions(s, rows)):
        yield "", f"mean KL is {scope}"


def print_flips(pair: PairReport, texts: Mapping[int, str], has_prompts: bool) -> None:
    """Print the flips of a pair, if it has any."""
    flips = [row | with_texts(row, texts) for row in pair.rows if row["is_flip"]]
    keys = ("position", *TOKENS, "reference_margin_ulps", "variant_margin_ulps", "max_abs")
    print_records(
        flips,
        f"flips of {pair.variant}: {len(flips):,}",
        keys=("prompt", *keys) if has_prompts else keys,
        most=_MOST_FLIPS,
    )


def with_texts(row: Mapping[str, Any], texts: Mapping[int, str]) -> dict[str, str]:
    """Return both tokens of a row with their texts."""
    tokens = {key: row[key] for key in TOKENS if row[key] is not None}
    return {
        key: f"{token} {texts[token]!r}" if token in texts else str(token)
        for key, token in tokens.items()
    }
