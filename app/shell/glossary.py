"""Definitions on the pages: glossary.md, metrics.md and each page's section of pages.md, in docs/reference."""

from __future__ import annotations

import functools
import re
from pathlib import Path

_DOCS = Path(__file__).resolve().parents[2] / "docs" / "reference"
_ROW = re.compile(r"^\| (.+?) \| (.+) \|$", re.MULTILINE)
_LINK = re.compile(r"\[([^]]+)\]\([^)]+\)")  # the documents are no pages: what they link to is named, not linked


@functools.cache
def definitions() -> str:
    """Markdown of every word by subject, and of every figure with its unit and how it is computed."""
    _, first, words = _text("glossary.md").partition("\n## ")
    figures = _text("metrics.md")
    both = f"{first}{words}\n## Figures\n\n{figures[figures.index('| name |') :]}"
    return _LINK.sub(r"\1", both.replace("\n## ", "\n#### "))


@functools.cache
def reading(page: str) -> str:
    """Markdown on how a page is read: the section of that title in docs/reference/pages.md."""
    _, _, section = _text("pages.md").partition(f"\n## {page}\n")
    return _LINK.sub(r"\1", section.partition("\n## ")[0]).strip()


@functools.cache
def meanings() -> dict[str, str]:
    """Meaning of each word; one entry for each word of a row that defines several."""
    rows = [row for row in _ROW.findall(_text("glossary.md")) if row[0] != "word" and not row[0].startswith("---")]
    return {word: meaning for names, meaning in rows for word in names.split(", ")}


def _text(name: str) -> str:
    return (_DOCS / name).read_text(encoding="utf-8")
