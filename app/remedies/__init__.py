"""The Remedies page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.page import Page

if TYPE_CHECKING:
    from core.runs.reader import RunReader, StoredPair


def _line(run: RunReader, pair: StoredPair) -> str | None:
    from core.runs.tables.remedies import advice

    tried = run.remedies.get(pair.index)
    return "Remedies: " + advice(tried) if tried else None


PAGE = Page(
    "remedies",
    "Remedies",
    "capture",
    absent=lambda run, pair: "" if pair.index in run.pairs_with_remedies else "not tried",
    line=_line,
)
