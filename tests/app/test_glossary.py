"""The glossary: what the pages call things is defined there, once, and that is what their
Definitions show.
"""

import re

from app.shell import widgets as glossary
from app.shell import wording
from core.verdict import VERDICTS
from tests.places import ROOT


def test_every_verdict_has_a_definition_of_its_own():
    assert {*VERDICTS, *wording.VERDICTS} <= set(glossary.meanings())


def test_no_word_is_defined_twice():
    text = (ROOT / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8")
    names = [
        name
        for row in re.findall(r"^\| (.+?) \|", text, re.M)
        if row != "word"
        for name in row.split(", ")
    ]
    assert sorted(names) == sorted(glossary.meanings())
