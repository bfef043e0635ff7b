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


_ABSENT = {None: "unknown", 0: "none"}  # by number of flips
PAGE = Page(
    "flips",
    "Flips",
    "run",
    (PageSetting("list", "flips_listed", "flips", words(["flips", "flips and near ties"])),),
    absent=lambda run, pair: "" if run.generations else _ABSENT.get(pair.summary.flips, ""),
    line=_line,
)
