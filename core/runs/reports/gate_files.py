"""Result of a gate as files: JUnit XML for a CI system, Markdown for its job page. Names in them come from somebody's
dump.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from datetime import UTC, datetime
from pathlib import Path

from ...disk import write_atomic
from ...errors import StoreError
from ...text import shown
from ..file.evidence import FAILED, PASSED
from . import markdown
from .gate import UNDECIDED, GateReport, Outcome, figure_text

MOST_ROWS = 50  # of prompts beyond their bounds in a table for people; GitHub takes 1 MiB of a step


def junit_text(report: GateReport) -> str:
    """JUnit XML: a suite a pair, a test a condition, and a test a prompt that has bounds; `undecided` is a skipped
    test.

    It has what both common schemas ask for, Ant's (JUnit.xsd of Windy Road) and Jenkins' (junit-10.xsd), and nothing
    that either refuses.
    """
    root = ET.Element("testsuites")
    when = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S")
    suites: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in report.outcomes:
        suites.setdefault((outcome.reference, outcome.variant), []).append(outcome)
    for number, ((reference, variant), outcomes) in enumerate(suites.items()):
        name = _name(f"{variant} against {reference}")
        counts = {kind: sum(outcome.outcome == kind for outcome in outcomes) for kind in (FAILED, UNDECIDED)}
        suite = ET.SubElement(
            root,
            "testsuite",
            name=name,
            package="ulpscope",
            id=str(number),
            timestamp=when,
            hostname="localhost",
            tests=str(len(outcomes)),
            failures=str(counts[FAILED]),
            errors="0",
            skipped=str(counts[UNDECIDED]),
            time="0",
        )
        ET.SubElement(suite, "properties")
        for outcome in outcomes:
            # A dot in a class name would make packages of it.
            test = ET.SubElement(
                suite, "testcase", name=_name(outcome.name), classname=f"ulpscope.{name.replace('.', '_')}", time="0"
            )
            if outcome.outcome == FAILED:
                failure = ET.SubElement(test, "failure", message=_text(outcome.says), type=_text(outcome.condition))
                failure.text = _text(report.sentence(outcome))
            elif outcome.outcome == UNDECIDED:
                ET.SubElement(test, "skipped", message=_text(outcome.says))
        ET.SubElement(suite, "system-out").text = "\n".join(_text(report.sentence(outcome)) for outcome in outcomes)
        ET.SubElement(suite, "system-err").text = "\n".join(_text(note) for note in report.notes)
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def markdown_text(report: GateReport) -> str:
    """Markdown: a table of conditions with outcome and figure, then the worst position, then what should be known
    beside it.
    """
    counts = {kind: sum(outcome.outcome == kind for outcome in report.outcomes) for kind in (FAILED, UNDECIDED, PASSED)}
    said = ", ".join(f"{count:,} {kind}" for kind, count in counts.items() if count)
    whole = [outcome for outcome in report.outcomes if outcome.key is None]
    held = [outcome for outcome in report.outcomes if outcome.key is not None]
    rows = [_row(outcome) for outcome in whole]
    told = [outcome for outcome in held if outcome.outcome != PASSED]
    rows += [_row(outcome) for outcome in sorted(told, key=lambda outcome: outcome.outcome != FAILED)[:MOST_ROWS]]
    if len(told) > MOST_ROWS:
        rows.append(("", f"{len(told) - MOST_ROWS:,} more prompts", "", "", ""))
    if len(held) > len(told):
        rows.append(
            (PASSED, "bounds", "", "", f"{len(held) - len(told):,} of {len(held):,} prompts are within their bounds")
        )
    parts = [f"### ULPscope gate: {report.outcome}", f"{said}."]
    parts.append(markdown.table(("outcome", "condition", "pair", "figure", "what it says"), rows))
    worst = report.worst
    if worst is not None and worst.worst is not None:
        pair = f"{markdown.code(worst.variant)} against {markdown.code(worst.reference)}"
        parts.append(f"**Worst position** ({pair}): {markdown.plain(report.in_words(worst.worst))}.")
    parts += [f"Note: {markdown.plain(shown(note, 1000))}" for note in report.notes]
    return "\n\n".join(parts) + "\n"


def write_whole(path: Path, text: str) -> None:
    """Writes a file that is there whole or not at all, over an older one; StoreError where it cannot be written."""
    target = path.resolve()  # a link keeps pointing where it does
    try:
        if target.exists() and not target.is_file():  # a device or a folder is never replaced
            raise StoreError(f"{path}: is no file; expected the name of one, new or to be replaced.")
        write_atomic(target, text.encode())
    except OSError as error:
        raise _unwritable(path, error) from error


def append(path: Path, text: str) -> None:
    """Adds to the end of a file, as `$GITHUB_STEP_SUMMARY` is meant to be used; StoreError where it cannot be
    written.
    """
    try:
        with path.open("ab") as file:
            file.write(text.encode())
    except OSError as error:
        raise _unwritable(path, error) from error


def _row(outcome: Outcome) -> tuple[str, ...]:
    pair = f"{markdown.code(outcome.variant)} against {markdown.code(outcome.reference)}"
    told = f"**{outcome.outcome}**" if outcome.outcome == FAILED else outcome.outcome
    return told, markdown.code(outcome.condition), pair, figure_text(outcome), markdown.plain(outcome.says)


def _text(text: str) -> str:
    """Text that XML 1.0 may hold: no control character, no half of a surrogate pair; line ends become escapes too."""
    return shown(text, 4000)


def _name(text: str) -> str:
    return " ".join(shown(text, 300).split()) or "-"


def _unwritable(path: Path, error: OSError) -> StoreError:
    return StoreError(
        f"{path}: cannot be written ({error.strerror or error}); expected a folder with room and permission."
    )
