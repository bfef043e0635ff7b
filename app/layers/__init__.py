"""The Layers page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.page import Page, PageSetting, words

if TYPE_CHECKING:
    from core.runs.reader import RunReader, StoredPair


def _line(run: RunReader, pair: StoredPair) -> str | None:
    from core.runs.views.layers import count_at_first, sentence, summarize

    found = summarize(run.layers(pair.index))
    if found is None:
        return None
    counted = count_at_first(run, pair.index, found.first)
    return "Modules: " + sentence(found, len(run.header.prompts) > 1, counted)


PAGE = Page(
    "layers",
    "Layers",
    "capture",
    (
        PageSetting("of", "layers_scope", "this prompt", words(["this prompt", "all prompts"])),
        PageSetting("measure", "layers_measure", "ratio", words(["ratio", "neq_share", "max_row_ulps", "max_ulps"])),
        PageSetting("module", "layers_module", "", longest=200),
    ),
    absent=lambda run, pair: "" if pair.index in run.pairs_with_layers else "not captured",
    line=_line,
)
