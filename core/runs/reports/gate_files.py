"""Result of a gate as files: JUnit XML for a CI system, Markdown for its job page. Names in them
come from untrusted dump.
"""

import math
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ...disk import write_atomic
from ...errors import StoreError
from ...evidence import FAILED, PASSED
from ...text import clean, number, plural
from . import markdown
from .conditions import UNDECIDED, Outcome, Record
from .gate import GateReport, figure_text

_BARS = "▁▂▃▄▅▆▇█"
_COLUMNS = 80


def junit_text(report: GateReport) -> str:
    """JUnit XML: a suite a pair, a test a condition; `undecided` is a skipped test."""
    root = ET.Element("testsuites")
    by_pair: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in report.outcomes:
        by_pair.setdefault((outcome.variant, outcome.reference), []).append(outcome)
    for pair, outcomes in by_pair.items():
        kinds = [each.outcome for each in outcomes]
        name = " ".join(clean(" vs ".join(pair), 300).split())
        suite = ET.SubElement(
            root,
            "testsuite",
            name=name,
            tests=str(len(kinds)),
            failures=str(kinds.count(FAILED)),
            skipped=str(kinds.count(UNDECIDED)),
        )
        for outcome in outcomes:
            # a dot would make packages of it
            class_name = f"ulpscope.{name.replace('.', '_')}"
            condition = clean(outcome.condition, 300)
            test = ET.SubElement(suite, "testcase", name=condition, classname=class_name)
            if outcome.outcome != PASSED:
                result = ET.SubElement(test, "failure" if outcome.outcome == FAILED else "skipped")
                result.attrib["message"] = clean(outcome.says, 4000)
                result.text = clean(report.sentence(outcome), 4000)
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def markdown_text(report: GateReport) -> str:
    """Markdown: the worst position and its pair as a strip of text, a table of conditions, the
    notes.

    The table comes last, for it is what a comment has no room for.
    """
    kinds = [outcome.outcome for outcome in report.outcomes]
    counts = [
        f"{kinds.count(kind):,} {kind}" for kind in (FAILED, UNDECIDED, PASSED) if kind in kinds
    ]
    rows = []
    for outcome in report.outcomes:
        pair = f"{markdown.code(outcome.variant)} vs {markdown.code(outcome.reference)}"
        result = f"**{outcome.outcome}**" if outcome.outcome == FAILED else outcome.outcome
        condition, says = markdown.code(outcome.condition), markdown.plain(outcome.says)
        rows.append((result, condition, pair, figure_text(outcome), says))
    parts = [
        f"### ULPscope gate: {report.outcome}",
        f"{', '.join(counts)}.",
    ]
    worst = report.worst
    if worst and worst.worst:
        pair = f"{markdown.code(worst.variant)} vs {markdown.code(worst.reference)}"
        parts.append(
            f"**Worst position** ({pair}): {markdown.plain(report.in_words(worst.worst))}.",
        )
        parts += _strip(report.rows.get((worst.reference, worst.variant), ()), report.unit)
    parts.append(markdown.table(("outcome", "condition", "pair", "figure", "result"), rows))
    parts += [f"Note: {markdown.plain(clean(note, 1000))}" for note in report.notes]
    return "\n\n".join(parts) + "\n"


def _strip(rows: Sequence[Record], unit: str) -> list[str]:
    """Draw the largest difference by position as bars of text: a comment cannot embed an image.

    Empty if none is.
    """
    largest = max((row["max_abs"] or 0.0 for row in rows), default=0.0)
    if not largest and not any(row.get("nonfinite_mismatch") for row in rows):
        return []
    columns = min(len(rows), _COLUMNS)
    bars, flips = "", ""
    for column in range(columns):
        group = rows[len(rows) * column // columns : len(rows) * (column + 1) // columns]
        top = max(row["max_abs"] or 0.0 for row in group)
        bar = _BARS[max(0, math.ceil(8 * (top / largest)) - 1)] if top else " "
        bars += "×" if any(row.get("nonfinite_mismatch") for row in group) else bar
        flips += "^" if any(row["is_flip"] for row in group) else " "
    legend = (
        f"Largest difference by position, {plural(len(rows), 'position')} in"
        f" {plural(columns, 'column')}: █ is {number(largest)} {unit}, ^ a flip, × NaN or Inf on"
        " one side only."
    )
    return [legend, markdown.block("\n".join(filter(str.strip, (bars, flips))))]


def write_whole(path: Path, text: str) -> None:
    """Write a file that is there whole or not at all, over an older one; StoreError if it cannot be
    written.
    """
    # a link keeps pointing where it does, and its target is replaced
    target = path.resolve()
    # a device or a folder is never replaced
    if target.exists() and not target.is_file():
        raise StoreError(f"{path}: is not a file; expected a new name, or a file to replace.")
    with _writing(path):
        write_atomic(target, text.encode())


def append(path: Path, text: str) -> None:
    """Add to the end of a file, as `$GITHUB_STEP_SUMMARY` is meant to be used; StoreError if it
    cannot be written.
    """
    with _writing(path), path.open("ab") as file:
        file.write(text.encode())


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise StoreError(
            f"{path}: cannot be written ({reason}); check the folder and its permissions.",
        ) from error
