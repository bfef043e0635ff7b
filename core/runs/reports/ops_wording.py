"""Probes of operations in words: an answer and a sentence to each question, machines beside each other, a table in
markdown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...text import plural
from ..ops_run import OpsRun
from ..tables.ops import OpRow
from .markdown import code

YES, NO, NOT_ASKED, NOT_AVAILABLE = "yes", "no", "not asked", "not available"
QUESTIONS = {"repeat": "run to run", "batch": "batch size", "position": "row position"}


def spans(members: Iterable[int], tested: Sequence[int]) -> str:
    """`2, 3, 8..64`: sizes that were tested, where three or more that follow one another in `tested` are one span."""
    order = {size: place for place, size in enumerate(tested)}
    runs: list[list[int]] = []
    for size in sorted(members):
        if runs and order[size] == order[runs[-1][-1]] + 1:
            runs[-1].append(size)
        else:
            runs.append([size])
    parts = [f"{run[0]}..{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return ", ".join(parts)


def batches_tested(row: OpRow) -> list[int]:
    return sorted(size for found in row.classes for size in found.batches)


def answer(row: OpRow, question: str) -> str:
    """YES, NO, NOT_ASKED or NOT_AVAILABLE. question: of QUESTIONS."""
    if row.refusal:
        return NOT_AVAILABLE
    found = {"repeat": row.is_repeatable, "batch": row.is_batch_invariant, "position": row.is_position_invariant}[
        question
    ]
    return NOT_ASKED if found is None else YES if found else NO


def says(row: OpRow, question: str) -> str:
    """State what was found, in a sentence without its full stop; where nothing was, the refusal or that it was not
    asked.
    """
    if row.refusal:
        return f"not available: {row.refusal}"
    sentence = {"repeat": _repeat_says, "batch": batch_says, "position": _position_says}[question](row)
    return sentence or (f"not asked: {row.note}" if row.note else "not asked")


def _repeat_says(row: OpRow) -> str:
    found = row.repeats
    if found is None:
        return ""
    if not found.differing:
        return f"{found.calls:,} calls, all identical"
    many = "calls differ from the first" if found.differing > 1 else "call differs from the first"
    ulps = plural(found.worst_max_ulps, "ULP")
    worst = f"in up to {found.worst_neq:,} of {found.worst_elements:,} elements, up to {ulps}"
    return (
        f"{found.differing:,} of {found.calls:,} {many} of their batch size, {worst} (batch {found.worst_batch}, call"
        f" {found.worst_call})"
    )


def batch_says(row: OpRow) -> str:
    """`differs from batch 1 at 2, 3; same class 1, 4..64`; '' where it was not asked."""
    if not row.classes:
        return ""
    tested = batches_tested(row)
    first, *others = row.classes
    if not others:
        return f"same bits at {spans(tested, tested)}"
    parts = [f"differs from batch 1 at {spans((size for found in others for size in found.batches), tested)}"]
    if len(others) > 1:
        parts.append("classes " + " ".join(f"{{{spans(found.batches, tested)}}}" for found in row.classes))
    elif len(first.batches) > 1:
        parts.append(f"same class {spans(first.batches, tested)}")
    return "; ".join(parts)


def distance_says(row: OpRow) -> str:
    """Distance of row 0 from batch 1 in the worst class, `3,990 of 4,096 elements, up to 12 ULPs`; '' if it stays."""
    if len(row.classes) < 2:
        return ""
    worst = max(row.classes, key=lambda found: (found.neq, found.max_ulps))
    return (
        f"{worst.neq:,} of {row.elements * row.rows_tried:,} elements, up to"
        f" {plural(max(found.max_ulps for found in row.classes), 'ULP')}"
    )


def _position_says(row: OpRow) -> str:
    if not row.positions:
        return ""
    sizes = [found.batch for found in row.positions]
    uneven = [found for found in row.positions if len(found.groups) > 1]
    if not uneven:
        return f"same bits at every index of batches {spans(sizes, sizes)}"
    parts = []
    for found in uneven:
        others = [index for group in found.groups[1:] for index in group]
        differ = "index {} differs" if len(others) == 1 else "indices {} differ"
        parts.append(f"batch {found.batch}: {differ.format(spans(others, range(found.batch)))} from index 0")
    return "; ".join(parts[:3]) + (f"; and {len(parts) - 3} more batch sizes" if len(parts) > 3 else "")


def title(row: OpRow) -> str:
    """`sdpa (flash)`."""
    return f"{row.op} ({row.backend})" if row.backend else row.op


@dataclass(frozen=True)
class ProbeComparison:
    """One probe compared over several machines: rows[i] is run i's, None where it did not probe it."""

    key: tuple[str, str, str, str]
    rows: tuple[OpRow | None, ...]

    @property
    def first(self) -> OpRow:
        return next(row for row in self.rows if row is not None)

    @property
    def disagreement(self) -> str:
        """Questions on which the machines that answered differ; '' where they agree, or fewer than two answered.

        Over the batch sizes that all of them tried: a quick probe and a full one are not at odds because one went
        further.
        """
        there = [row for row in self.rows if row is not None and not row.refusal]
        steady = [row.is_repeatable for row in there if row.is_repeatable is not None]
        classed = [row.classes for row in there if row.classes]
        common = _common(there)
        groupings = {_grouping([found.batches for found in classes], common) for classes in classed}
        placed = [{found.batch: found.groups for found in row.positions} for row in there if row.positions]
        batches = set.intersection(*(set(found) for found in placed)) if placed else set()
        parts = {
            "run to run": len(set(steady)) > 1,
            "batch size": len({len(grouping) == 1 for grouping in groupings}) > 1,
            "batch classes": len(groupings) > 1 and all(len(grouping) > 1 for grouping in groupings),
            "row position": len({all(len(found[batch]) == 1 for batch in batches) for found in placed}) > 1,
        }
        return ", ".join(name for name, is_so in parts.items() if is_so)

    @property
    def same_bits(self) -> bool | None:
        """Return whether row 0 alone has the same bits on every machine that measured it; None where fewer than two
        did.
        """
        digests = [row.classes[0].digest for row in self.rows if row is not None and row.classes]
        return None if len(digests) < 2 else len(set(digests)) == 1


def _common(rows: Sequence[OpRow]) -> set[int]:
    """Batch sizes that every row tested."""
    sizes = [set(batches_tested(row)) for row in rows if row.classes]
    return set.intersection(*sizes) if sizes else set()


def _grouping(classes: Sequence[tuple[int, ...]], sizes: set[int]) -> frozenset[frozenset[int]]:
    """Groups of `sizes` by the class they fall into."""
    return frozenset(found for batches in classes if (found := frozenset(batches) & sizes))


def beside(runs: Sequence[OpsRun]) -> list[ProbeComparison]:
    """Every probe of any of the runs, in the order of the first run that has it."""
    by_key: list[dict[tuple[str, str, str, str], OpRow]] = [{row.key: row for row in run.rows} for run in runs]
    keys = dict.fromkeys(row.key for run in runs for row in run.rows)
    return [ProbeComparison(key, tuple(rows.get(key) for rows in by_key)) for key in keys]


def machine(run: OpsRun) -> str:
    """`cpu, AMD EPYC, torch 2.13.0, 2 threads`."""
    about = run.header
    versions = about.versions
    parts = [about.device, about.device_name, f"torch {versions['torch']}" if "torch" in versions else ""]
    if about.device == "cpu" and "threads" in versions:
        parts.append("1 thread" if versions["threads"] == "1" else f"{versions['threads']} threads")
    return ", ".join(part for part in parts if part)


def markdown(run: OpsRun) -> str:
    """Markdown of a run of probes: its origin, and a table a dtype: operation, size, the three answers, distance and
    rms to float64.
    """
    about = run.header
    facts = ", ".join(f"{name} {value}" for name, value in about.versions.items())
    lines = [_inert(f"Device: {about.device} ({about.device_name}); {facts}."), ""]
    lines += [f"Command, as the file states it: {code(about.command)}", ""] if about.command else []
    lines += [_inert(about.note), ""] if about.note else []
    for dtype in about.dtypes:
        rows = [row for row in run.rows if row.dtype == dtype]
        lines += [
            f"### {_inert(dtype)}",
            "",
            (
                "| operation | size | run to run | batch size, row 0 | row position | distance to batch 1 | relative"
                " rms to float64 |"
            ),
        ]
        lines.append("|---|---|---|---|---|---|---|")
        for row in rows:
            rms = "" if row.relative_rms is None else f"{row.relative_rms:.2g}"
            name = title(row) + (f", {row.modules}" if row.modules else "")
            cells = [name, row.size, *(_cell(row, question) for question in QUESTIONS), distance_says(row), rms]
            lines.append("| " + " | ".join(_inert(cell) for cell in cells) + " |")
        lines.append("")
    return "\n".join(lines)


def _cell(row: OpRow, question: str) -> str:
    """The answer with what it rests on, once."""
    found = answer(row, question)
    if found == NOT_AVAILABLE:
        return says(row, question) if question == "repeat" else found
    if found == NOT_ASKED:
        return found
    return f"{found}: {says(row, question)}"


def _inert(text: str) -> str:
    """Text that stays within its cell."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
