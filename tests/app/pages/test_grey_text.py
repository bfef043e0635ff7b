"""A page's grey text stays short, and every page begins with what it found: how it is read is behind Definitions."""

from __future__ import annotations

import re

import pytest
from streamlit.testing.v1 import AppTest

from app import navigation
from app.shell import glossary
from core.text import plural
from tests.app.opening import opened
from tests.covering import covering

PAGES = [page.name for page in navigation.PAGES]
RUNS = ["fresh-against-cached", "where-it-starts", "batch-1-against-n", "continuations-that-part"]
MOST_WORDS = 60
# What each page says first of a run whose figures are known, and of one that does not hold what it shows.
FIRST = {
    ("overview", "fresh-against-cached"): "999,370 of 2,985,984 (33.5%) logits differ; **4 of 729 positions",
    ("near_ties", "fresh-against-cached"): "**43 of 442 (9.7%) positions are near ties**, 1 of which flips;",
    ("heatmap", "fresh-against-cached"): "**999,370 of 2,985,984 (33.5%) logits differ**, at 604 of 729 positions.",
    ("flips", "fresh-against-cached"): "**4 flips in 729 positions**, the first at position 144 of prompt 0",
    ("kv_cache", "fresh-against-cached"): "elements differ**, first in layer 1's keys and values:",
    ("layers", "where-it-starts"): "**is the first module that differs, at position 10**: 1 of ",
    ("kernels", "where-it-starts"): "Of 17 kernels, **1 is launched more or less often in `decode+batch:2`**.",
    ("remedies", "where-it-starts"): "**math attention** makes the sides equal in every logit, at about 0.9",
    ("repeats", "batch-1-against-n"): "**4 sides in 3 classes of equal bits**, 2 sides alone in their class.",
    ("runs", "fresh-against-cached"): "6 runs with 10 pairs: 9 rounding, 1 bug suspected",
    ("capture", "fresh-against-cached"): "**No capture** since this dashboard started.",
    ("upload", "fresh-against-cached"): "**No upload** since this dashboard started.",
    ("layers", "fresh-against-cached"): "This run holds no outputs of modules",
    ("kernels", "fresh-against-cached"): "This run was captured without watching kernels",
    ("remedies", "fresh-against-cached"): "This run was captured without trying remedies",
    ("ops", "fresh-against-cached"): "No operations were probed yet.",
    ("compare", "fresh-against-cached"): "Choose a run to compare with",
}

pytestmark = pytest.mark.usefixtures("own_store")


def words_in_grey(app: AppTest) -> int:
    """Words of the captions of a page, the sidebar's left out; code between backticks is one."""
    texts = (re.sub(r"`[^`]*`", "code", str(caption.value)) for caption in app.main.caption)
    return sum(len(text.split()) for text in texts)


def first_figure(app: AppTest) -> int:
    """Place of the first chart, map, table or figure among the elements of a page; their number where there is none."""
    kinds = [element.type for element in app.main]
    drawn = {"metric", "arrow_data_frame", "arrow_table"}
    shown = (place for place, kind in enumerate(kinds) if kind in drawn or is_chart(app, place))
    return next(shown, len(kinds))


def is_chart(app: AppTest, place: int) -> bool:
    element = list(app.main)[place]
    return element.type == "bidi_component" and element.proto.component_name in (
        "ulpscope_figure",
        "ulpscope_heatmap",
        "ulpscope_strip",
    )


@pytest.mark.spread(6)
@pytest.mark.parametrize(("run", "page"), covering(RUNS, PAGES))
def test_the_grey_text_of_a_page_has_at_most_sixty_words(run, page):
    assert words_in_grey(opened(page, run=run)) <= MOST_WORDS


def test_a_page_that_says_too_much_in_grey_is_caught():
    def wordy() -> None:
        import streamlit as st

        st.caption("one two three `code of four words`")
        st.caption("word " * 57)

    app = AppTest.from_function(wordy).run()
    assert words_in_grey(app) == 61


@pytest.mark.spread(6)
@pytest.mark.parametrize(("page", "run"), FIRST)
def test_a_page_begins_with_what_it_found_or_with_what_to_do(page, run):
    app = opened(page, run=run)
    said = [
        (place, str(element.value).replace("\\", ""))
        for place, element in enumerate(app.main)
        if element.type in ("markdown", "info", "success", "alert", "caption") and hasattr(element, "value")
    ]
    places = [place for place, text in said if FIRST[page, run] in text]
    assert places, [text[:100] for _, text in said]
    assert places[0] < first_figure(app), plural(places[0], "element")


@pytest.mark.parametrize("title", [page.title for page in navigation.PAGES])
def test_every_page_has_a_section_on_how_it_is_read(title):
    assert len(glossary.reading(title).split()) > 20
    assert glossary.reading("Nothing of the kind") == ""
