"""The KV cache page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.page import Page, PageSetting, words
from app.shell import wording
from core.runs.tables.kv_cache import KINDS

if TYPE_CHECKING:
    from core.runs.reader import RunReader, StoredPair


def _line(run: RunReader, pair: StoredPair) -> str | None:
    from core.runs.views.kv_cache import sentence, summarize

    found = summarize(run.kv(pair.index))
    return None if found is None else "Key/value caches: " + sentence(found, len(run.header.prompts) > 1)


PAGE = Page(
    "kv_cache",
    "KV cache",
    "capture",
    (
        PageSetting("of", "kv_scope", "this prompt", words(["this prompt", "all prompts"])),
        PageSetting("measure", "kv_measure", "neq_share", words(wording.MEASURES)),
        PageSetting("kind", "kv_kind", "key", words(KINDS)),
        PageSetting("colour", "kv_colour", "neq_share", words(["neq_share", "max_row_ulps", "max_ulps"])),
    ),
    absent=lambda run, pair: "" if pair.index in run.pairs_with_kv else "not captured",
    line=_line,
)
