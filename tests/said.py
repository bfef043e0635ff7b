"""The sentences that tests hold, each once, in sentences.toml: `assert SAID["no-room-left"] in page`.

A sentence that changed fails its test with the passage that is nearest to it. With ULPSCOPE_SENTENCES=rewrite that
passage takes its place in the file, whose diff is then read; nothing else writes there. A pattern (`match=`) and a
template (`.format()`) are edited by hand.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import tomllib
from difflib import get_close_matches, ndiff
from pathlib import Path

FILE = Path(__file__).with_name("sentences.toml")
HEAD = "# What tests hold the product to say. CONTRIBUTING.md has the command that rewrites it; read its diff.\n"


class Sentence(str):
    """A sentence of the file, or a part of one, that knows its name there."""

    name: str

    def raised(self, error: BaseException) -> bool:
        """For `pytest.raises(..., check=)`: the error says it."""
        return self._holds(self in str(error), "in", str(error))

    def begins(self, text: str) -> bool:
        return self._holds(text.startswith(self), "begins", text)

    def ends(self, text: str) -> bool:
        return self._holds(text.endswith(self), "ends", text)

    def _holds(self, is_said: bool, how: str, text: str) -> bool:
        if not is_said:
            raise AssertionError("\n".join(explained(how, self, text) or []))
        return True


class Sentences(dict[str, str]):
    """The sentences by name. tests/test_house.py reads from the tests which are used."""

    def __getitem__(self, name: str) -> Sentence:
        sentence = Sentence(super().__getitem__(name))
        sentence.name = name
        return sentence


def nearest(sentence: str, text: str) -> str:
    """The passage most like the sentence, of all that have about as many words."""
    words = [word.span() for word in re.finditer(r"\S+", text)]
    count = len(sentence.split())
    passages = [
        text[words[i][0] : words[i + n][1]]
        for n in (count - 2, count - 1, count)
        if n >= 0
        for i in range(len(words) - n)
    ]
    return (get_close_matches(sentence, passages, n=1, cutoff=0) or [text])[0]


def write(sentences: dict[str, str], file: Path) -> None:
    """Sorted by name; a pattern as it is, without a second backslash."""
    lines = []
    for name, text in sorted(sentences.items()):
        is_raw = "\\" in text and "'" not in text and text.isprintable()
        lines.append(f"{name} = " + (f"'{text}'" if is_raw else json.dumps(text, ensure_ascii=False)) + "\n")
    file.write_text(HEAD + "".join(lines), encoding="utf-8")


def explained(how: str, left: object, right: object, file: Path = FILE) -> list[str] | None:
    """A comparison with a sentence that failed, in lines; the sentence is rewritten where that was asked for."""
    if isinstance(left, list | tuple) and isinstance(right, list | tuple) and how == "==" and len(left) == len(right):
        found = [explained(how, a, b, file) for a, b in zip(left, right, strict=True) if a != b]
        return [line for lines in found for line in lines or []] or None
    held, actual = (left, right) if isinstance(left, Sentence) else (right, left)
    if not isinstance(held, Sentence) or not isinstance(actual, str) or how not in ("in", "==", "begins", "ends"):
        return None
    said = actual if how == "==" else nearest(held, actual)
    if os.environ.get("ULPSCOPE_SENTENCES") == "rewrite":
        with file.open("r+", encoding="utf-8") as opened:
            fcntl.flock(opened, fcntl.LOCK_EX)  # workers of xdist write the same file
            write(tomllib.loads(opened.read()) | {held.name: said}, file)
    title = f"{file.name}: {held.name!r} is not said (`{how}`); nearest to it is:"
    return [title, *ndiff([str(held)], [said]), "in what was said:", *actual.splitlines()]


SAID = Sentences(tomllib.loads(FILE.read_text(encoding="utf-8")))
