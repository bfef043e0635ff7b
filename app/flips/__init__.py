"""The Flips page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.page import Page, PageSetting, words

if TYPE_CHECKING:
    from core.runs.reader import RunReader, StoredPair


def _line(run: RunReader, pair: StoredPair) -> str | None:
    from core.runs.queries.flips import continuations, outcome

    table = continuations(run)
    return None if table.empty else "Continuations: " + outcome(table[table["pair"] == pair.index])


def _absent(run: RunReader, pair: StoredPair) -> str:
    if pair.summary.flips or run.generations:
        return ""
    return "none" if pair.summary.flips == 0 else "unknown"


PAGE = Page(
    "flips",
    "Flips",
    "run",
    (PageSetting("list", "flips_listed", "flips", words(["flips", "flips and near ties"])),),
    absent=_absent,
    line=_line,
)
