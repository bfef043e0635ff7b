"""The glossary: what the pages call things is defined there, once, and that is what their Definitions show."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from app.internals.charts import MEASURES
from app.overview import COLOURS
from app.shell import glossary, wording
from core.runs.file.evidence import CHECK_GROUPS
from core.runs.file.records import VERDICTS

ROOT = Path(__file__).resolve().parents[2]
# Columns whose headings are everyday words, units, or a condition in words.
PLAIN = {
    "by",
    "created",
    "deleted",
    "from batch 1",
    "name",
    "only in",
    "same bits, row 0 alone",
    "size",
    "they disagree on",
    "µs",
}


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) for part in node.values if isinstance(part, ast.Constant))
    return str(node.value) if isinstance(node, ast.Constant) else ""


def labels(source: str) -> Iterator[str]:
    """What a script calls its figures (`metric`) and the columns of its tables."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "metric":
            yield _text(node.args[0])
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if key and isinstance(value, ast.Call) and ast.unparse(value.func).startswith("st.column_config."):
                    yield _text(key)


def on_pages() -> set[str]:
    """Every term of the pages: labels of figures and columns, and the words that they take from one place."""
    scripts = [*(ROOT / "pages").glob("*.py"), *(ROOT / "app").rglob("*.py")]
    found = {label for path in scripts for label in labels(path.read_text(encoding="utf-8"))}
    found |= {*MEASURES.values(), *CHECK_GROUPS.values(), *wording.VERDICTS, *COLOURS}
    return {term for term in found if term} - PLAIN


def undefined(terms: set[str], meanings: Mapping[str, str]) -> set[str]:
    """Those in which no word of the glossary stands, alone or in the plural."""
    words = re.compile("|".join(rf"\b{re.escape(word)}(?:s|es)?\b" for word in meanings), re.IGNORECASE)
    return {term for term in terms if not words.search(term)}


def test_every_term_on_a_page_is_in_the_glossary():
    terms = on_pages()
    assert {"Near ties", "Median ULPs", "float32 comparison"} <= terms
    assert undefined(terms, glossary.meanings()) == set()


def test_every_verdict_has_a_definition_of_its_own():
    assert {*VERDICTS, *wording.VERDICTS} <= set(glossary.meanings())


def test_no_word_is_defined_twice():
    text = (ROOT / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8")
    names = [name for row in re.findall(r"^\| (.+?) \|", text, re.M) if row != "word" for name in row.split(", ")]
    assert sorted(names) == sorted(glossary.meanings())
