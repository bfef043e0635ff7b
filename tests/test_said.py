"""The file of sentences that tests hold: a changed one is caught, and rewritten only where that was asked for."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests import said

ROOT = Path(__file__).resolve().parents[1]
HELD = {"no-room": "the disk is full; nothing was stored", "other": 'a "b" of 1 × 2\n', "pattern": r"^takes \d+ MB\.$"}
NOW = "error: the disk is nearly full; nothing was stored, and nothing is lost. Make room."


@pytest.fixture
def sentences(tmp_path: Path) -> said.Sentences:
    said.write(HELD, tmp_path / "sentences.toml")
    return said.Sentences(tomllib.loads((tmp_path / "sentences.toml").read_text()))


def test_the_file_holds_what_was_written_in_order_and_a_pattern_as_it_is(sentences, tmp_path):
    assert dict(sentences) == HELD
    lines = (tmp_path / "sentences.toml").read_text().splitlines()
    assert lines[1:] == sorted(lines[1:])
    assert r"pattern = '^takes \d+ MB\.$'" in lines


def test_the_file_of_the_tests_is_as_the_command_would_write_it(tmp_path):
    said.write(dict(said.SAID), tmp_path / "again.toml")
    assert (tmp_path / "again.toml").read_text() == said.FILE.read_text()


def test_a_changed_sentence_is_shown_beside_what_is_said_and_nothing_is_written(sentences, tmp_path, monkeypatch):
    monkeypatch.delenv("ULPSCOPE_SENTENCES", raising=False)
    file = tmp_path / "sentences.toml"
    before = file.read_bytes()
    lines = said.explained("in", sentences["no-room"], NOW, file)
    assert f"- {HELD['no-room']}" in lines
    assert "+ the disk is nearly full; nothing was stored," in lines
    assert file.read_bytes() == before


def test_a_text_of_fewer_words_than_the_sentence_is_shown_whole():
    assert said.nearest("nothing was stored, for the disk is full", "disk full") == "disk full"


def test_rewriting_takes_what_is_said_now_and_leaves_the_others(sentences, tmp_path, monkeypatch):
    monkeypatch.setenv("ULPSCOPE_SENTENCES", "rewrite")
    file = tmp_path / "sentences.toml"
    said.explained("==", ["x", sentences["no-room"]], ["x", "the disk is full"], file)
    assert tomllib.loads(file.read_text()) == HELD | {"no-room": "the disk is full"}


@pytest.mark.parametrize(("how", "left", "right"), [("in", "a", "b"), ("==", 1, 2), ("not in", None, "b")])
def test_other_comparisons_are_explained_by_pytest(how, left, right, sentences):
    assert said.explained(how, left or sentences["other"], right) is None


PLANTED = {
    "in": "assert SAID[NAME] in TEXT.replace('e', 'E')",
    "equal": "assert TEXT.replace('e', 'E') == SAID[NAME]",
    "list": "assert [TEXT.replace('e', 'E')] == [SAID[NAME]]",
    "begins": "assert SAID[NAME].begins('x' + TEXT)",
    "ends": "assert SAID[NAME].ends(TEXT + 'x')",
    "raised": "with pytest.raises(ValueError, check=SAID[NAME].raised):\n        raise ValueError(TEXT[1:])",
}


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_change_of_a_sentence_fails_its_test_and_names_it(planted, tmp_path):
    """Through pytest itself, with the conftest that ours has."""
    name = next(name for name, text in said.SAID.items() if text.isascii() and text.isprintable() and "e" in text)
    (tmp_path / "conftest.py").write_text(
        "from tests.conftest import pytest_assertrepr_compare as pytest_assertrepr_compare\n"
    )
    (tmp_path / "test_planted.py").write_text(
        f"import pytest\nfrom tests.said import SAID\nNAME = {name!r}\nTEXT = {str(said.SAID[name])!r}\n\n"
        f"def test_it():\n    {PLANTED[planted]}\n"
    )
    before = said.FILE.read_bytes()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"sentences.toml: {name!r} is not said" in done.stdout
    assert said.FILE.read_bytes() == before
