"""Cells of a sweep as a table of two axes, one figure per entry: that of its gravest cell."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ..text import number, percent, plural
from .history import CellChange
from .ledger import DONE, FAILED, MISSING, RUNNING, SEVERITY
from .plan import AXES, in_short

FIGURES = {
    "verdict": "verdict",
    "noise_ratio": "RMS / noise floor",
    "flips": "flips",
    "neq_share": "share that differs",
    "max_row_ulps": "max row ULPs",
}
_STATES = {FAILED: 0, DONE: 1, RUNNING: 2, MISSING: 3}  # the gravest first
CHANGED = "Δ "  # prefix of an entry that changed since the last good run


@dataclass(frozen=True)
class MatrixEntry:
    """One entry of the table. change: of its gravest cell, None if it has none."""

    change: CellChange | None
    text: str


@dataclass(frozen=True)
class Matrix:
    """Table of two axes. entries: [rows][columns]."""

    rows: list[str]
    columns: list[str]
    entries: list[list[MatrixEntry]]


def varying(changes: Sequence[CellChange]) -> list[str]:
    """Return the axes with more than one value, in the order of a plan."""
    return [axis for axis in AXES if len({change.axes[axis] for change in changes}) > 1]


def matrix_of(changes: Sequence[CellChange], rows: str, columns: str, figure: str) -> Matrix:
    """Return the table of the cells. figure: a key of FIGURES."""
    at: dict[tuple[str, str], list[CellChange]] = {}
    for change in changes:
        axes = change.axes
        at.setdefault((axes[rows], axes[columns]), []).append(change)
    row_names = dict.fromkeys(row for row, _ in at)
    column_names = dict.fromkeys(column for _, column in at)
    entries = []
    for row in row_names:
        entries.append([_entry(at.get((row, column), []), figure) for column in column_names])
    return Matrix(
        [in_short(rows, name) or "-" for name in row_names],
        [in_short(columns, name) or "-" for name in column_names],
        entries,
    )


def sentence(changes: Sequence[CellChange]) -> str:
    """`96 cells: 90 rounding, 2 bug suspected, 4 missing; 3 changed since their last good run.`"""
    counts = Counter(_status(change) for change in changes)
    count_changed = sum(bool(change.what) for change in changes)
    of_each = ", ".join(f"{count:,} {name}" for name, count in counts.most_common())
    since = f"; {count_changed:,} changed since their last good run" if count_changed else ""
    return f"{plural(len(changes), 'cell')}: {of_each}{since}."


def _entry(changes: Sequence[CellChange], figure: str) -> MatrixEntry:
    if not changes:
        return MatrixEntry(None, "")
    gravest = min(changes, key=_gravity)
    mark = CHANGED if any(change.what for change in changes) else ""
    text = _status(gravest)
    if gravest.done and figure != "verdict":
        values = [getattr(change.done, figure) for change in changes if change.done]
        largest = max((value for value in values if value is not None), default=None)
        form = {"flips": "{:,}".format, "neq_share": percent}.get(figure, number)
        text = "" if largest is None else form(largest)
    if len(changes) == 1:
        return MatrixEntry(gravest, f"{mark}{text}")
    of_all = f"×{len(changes)}"
    if figure == "verdict" or not gravest.done:
        alike = sum(_status(change) == _status(gravest) for change in changes)
        of_all = f"{alike}/{len(changes)}"
    others = Counter(change.state for change in changes)
    del others[DONE], others[gravest.state]
    states = "".join(f", {count} {state}" for state, count in sorted(others.items()))
    return MatrixEntry(gravest, f"{mark}{text} {of_all}{states}")


def _status(change: CellChange) -> str:
    """Return the verdict of a cell, or its state if it has no run."""
    return change.done.verdict if change.done else change.state


def _gravity(change: CellChange) -> tuple[float, ...]:
    """Return a sort key: failed cells, then done ones by verdict, then running and missing ones."""
    card = change.done
    if card is None:
        return (_STATES[change.state], 0.0, 0.0)
    return (_STATES[DONE], SEVERITY.get(card.verdict, -1), -(card.noise_ratio or 0.0))
