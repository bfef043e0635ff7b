"""The Kernels page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.page import Page, PageSetting, words
from core.runs.tables.kernels import LIBRARIES

if TYPE_CHECKING:
    from core.runs.reader import RunReader, StoredPair


def _line(run: RunReader, pair: StoredPair) -> str | None:
    from core.runs.views.kernels import in_words, place_in_words, side_by_side
    from core.runs.views.layers import kernels_where_it_starts

    reference, variant = run.kernels.get(0), run.kernels.get(pair.index + 1)
    if reference is None or variant is None:
        return None
    names, place = (pair.reference, pair.variant), kernels_where_it_starts(run, pair.index)
    if place is None:
        return "Kernels: " + in_words(side_by_side(reference, variant), names)
    return "Kernels: " + place_in_words(place, names, is_one_prompt=len(run.header.prompts) == 1)


PAGE = Page(
    "kernels",
    "Kernels",
    "capture",
    (
        PageSetting("list", "kernels_shown", "all", {"all": "all", "differ": "differ", "products": "products"}),
        PageSetting("library", "kernels_library", "any", words(["any", *LIBRARIES])),
        PageSetting("modules", "kernels_apart", False, {"apart": True, "together": False}),
    ),
    absent=lambda run, pair: "" if run.sides_with_kernels >= {0, pair.index + 1} else "not captured",
    line=_line,
)
