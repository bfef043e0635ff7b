"""Result of a gate as files: JUnit XML for a CI system, Markdown for its job page. Names in them come from untrusted
dump.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from ...disk import write_atomic
from ...errors import StoreError
from ...text import clean
from ..file.evidence import FAILED, PASSED
from . import markdown
from .gate import UNDECIDED, GateReport, Outcome, figure_text


def junit_text(report: GateReport) -> str:
    """JUnit XML that Ant's and Jenkins' schemas take: a suite a pair, a test a condition; `undecided` is a
    skipped test.
    """
    root = ET.Element("testsuites")
    suites: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in report.outcomes:
        suites.setdefault((outcome.reference, outcome.variant), []).append(outcome)
    for number, ((reference, variant), outcomes) in enumerate(suites.items()):
        name = _name(f"{variant} vs {reference}")
        attributes = {
            "name": name,
            "package": "ulpscope",
            "id": str(number),
            "timestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S"),
            "hostname": "localhost",
            "tests": str(len(outcomes)),
            "failures": str(sum(outcome.outcome == FAILED for outcome in outcomes)),
            "errors": "0",
            "skipped": str(sum(outcome.outcome == UNDECIDED for outcome in outcomes)),
            "time": "0",
        }
        suite = ET.SubElement(root, "testsuite", attributes)
        ET.SubElement(suite, "properties")
        class_name = f"ulpscope.{name.replace('.', '_')}"  # a dot would make packages of it
        for outcome in outcomes:
            test = ET.SubElement(suite, "testcase", name=_name(outcome.condition), classname=class_name, time="0")
            message = clean(outcome.says, 4000)
            if outcome.outcome == FAILED:
                failure = ET.SubElement(test, "failure", message=message, type=clean(outcome.condition, 4000))
                failure.text = clean(report.sentence(outcome), 4000)
            elif outcome.outcome == UNDECIDED:
                ET.SubElement(test, "skipped", message=message)
        ET.SubElement(suite, "system-out").text = "\n".join(clean(report.sentence(each), 4000) for each in outcomes)
        ET.SubElement(suite, "system-err").text = "\n".join(clean(note, 4000) for note in report.notes)
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def markdown_text(report: GateReport) -> str:
    """Markdown: a table of conditions with outcome and figure, the worst position, the notes."""
    counts = {kind: sum(outcome.outcome == kind for outcome in report.outcomes) for kind in (FAILED, UNDECIDED, PASSED)}
    rows = []
    for outcome in report.outcomes:
        pair = f"{markdown.code(outcome.variant)} vs {markdown.code(outcome.reference)}"
        result = f"**{outcome.outcome}**" if outcome.outcome == FAILED else outcome.outcome
        condition, says = markdown.code(outcome.condition), markdown.plain(outcome.says)
        rows.append((result, condition, pair, figure_text(outcome), says))
    parts = [
        f"### ULPscope gate: {report.outcome}",
        f"{', '.join(f'{count:,} {kind}' for kind, count in counts.items() if count)}.",
        markdown.table(("outcome", "condition", "pair", "figure", "result"), rows),
    ]
    worst = report.worst
    if worst is not None and worst.worst is not None:
        pair = f"{markdown.code(worst.variant)} vs {markdown.code(worst.reference)}"
        parts.append(f"**Worst position** ({pair}): {markdown.plain(report.in_words(worst.worst))}.")
    parts += [f"Note: {markdown.plain(clean(note, 1000))}" for note in report.notes]
    return "\n\n".join(parts) + "\n"


def write_whole(path: Path, text: str) -> None:
    """Write a file that is there whole or not at all, over an older one; StoreError if it cannot be written."""
    target = path.resolve()  # a link keeps pointing where it does
    if target.exists() and not target.is_file():  # a device or a folder is never replaced
        raise StoreError(f"{path}: is not a file; expected a new name, or a file to replace.")
    with _writing(path):
        write_atomic(target, text.encode())


def append(path: Path, text: str) -> None:
    """Add to the end of a file, as `$GITHUB_STEP_SUMMARY` is meant to be used; StoreError if it cannot be written."""
    with _writing(path), path.open("ab") as file:
        file.write(text.encode())


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise StoreError(f"{path}: cannot be written ({reason}); check the folder and its permissions.") from error


def _name(text: str) -> str:
    return " ".join(clean(text, 300).split()) or "-"
