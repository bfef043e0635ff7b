"""How every benchmark here measures: the contenders take turns, each several times, and the median
counts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """One line of the table: what, the target, what was reached, how it was measured."""

    what: str
    target: str
    reached: str
    method: str


def interleaved(
    contenders: Mapping[str, Callable[[], object]],
    rounds: Mapping[str, int] | int,
) -> dict[str, float]:
    """Median seconds of each contender.

    They take turns, so that a busy minute of the machine meets them all.
    """
    counts = {name: rounds if isinstance(rounds, int) else rounds[name] for name in contenders}
    seconds = {name: [] for name in contenders}
    for turn in range(max(counts.values())):
        for name, run in contenders.items():
            if turn < counts[name]:
                began = time.perf_counter()
                run()
                seconds[name].append(time.perf_counter() - began)
    return {name: statistics.median(times) for name, times in seconds.items()}


def table(lines: list[Line]) -> str:
    """The lines under each other, columns aligned."""
    rows = [
        ("what", "target", "reached", "how"),
        *((x.what, x.target, x.reached, x.method) for x in lines),
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]])
        for row in rows
    )
