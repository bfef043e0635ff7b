"""docs/reference: the tables are what the code declares."""

import pytest

from core.numerics import metrics
from docs.reference.generate import FOLDER, PAGES, generated


def text_of(page):
    return (FOLDER / f"{page}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_the_declared_tables(page):
    """`python -m docs.reference.generate` writes them."""
    assert generated(page, text_of(page)) == text_of(page)


def test_a_metric_that_the_page_lacks_is_seen(monkeypatch):
    monkeypatch.setattr(metrics, "METRICS", metrics.METRICS[:-1])
    assert generated("metrics", text_of("metrics")) != text_of("metrics")


def test_a_modifier_without_words_is_named(monkeypatch):
    modifiers = pytest.importorskip("core.inference.paths.grammar").MODIFIER_ARGUMENTS
    monkeypatch.setitem(modifiers, "odd", modifiers["tf32"])
    with pytest.raises(KeyError, match="odd"):
        generated("paths", text_of("paths"))
