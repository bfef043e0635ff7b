"""Previews: dry runs of the real command line, the latest of each viewer."""

from __future__ import annotations

import pytest

from app.capture import preview
from app.capture.preview import Answer, Previews
from app.shell.jobs import PromptFile
from core import subprocess_json
from tests.covering import thorough
from tests.waiting import until

ASKED = Previews._answer_to
CAPTURE = ("capture", "--model", "sample_runs/model", "--prompt", "for x in y:", "--variant")


@pytest.fixture
def previews(tmp_path, monkeypatch):
    monkeypatch.setattr(Previews, "_answer_to", ASKED)
    monkeypatch.setenv("ULPSCOPE_STORE", str(tmp_path / "runs"))
    return Previews()


def waited(previews: Previews, viewer: str, arguments: tuple[str, ...]) -> Answer:
    (answer,) = until(lambda: [answer for answer in [previews.look(viewer, arguments)] if answer is not None])
    return answer


def in_place_of_the_command_line(monkeypatch, tmp_path, source: str) -> None:
    """A program that loads no torch."""
    monkeypatch.setattr(subprocess_json, "ROOT", tmp_path)
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "__init__.py").touch()
    (tmp_path / "core" / "__main__.py").write_text(source)


@pytest.mark.thorough
@pytest.mark.model
def test_the_answer_has_the_figures_of_every_side_and_is_kept(previews, tmp_path):
    assert previews.look("a", (*CAPTURE, "decode")) is None
    costs = waited(previews, "a", (*CAPTURE, "decode")).costs
    assert [side["name"] for side in costs["sides"]] == ["prefill", "decode"]
    assert [side["forwards"] for side in costs["sides"]] == [1, costs["positions"]]
    again = previews.look("b", (*CAPTURE, "decode"))
    assert again is not None
    assert again.costs == costs
    assert not (tmp_path / "runs").exists()


REFUSES = """
import sys
print("error: path 'decode+batches:2': no modifier 'batches'.", file=sys.stderr)
sys.exit(2)
"""


@pytest.mark.model
@pytest.mark.parametrize("is_real", [False, *thorough([True])])
def test_a_refusal_is_the_sentence_of_the_command_line_and_asked_for_anew_after_a_while(
    previews, monkeypatch, tmp_path, is_real
):
    if not is_real:
        in_place_of_the_command_line(monkeypatch, tmp_path, REFUSES)
    answer = waited(previews, "a", (*CAPTURE, "decode+batches:2"))
    assert answer.refusal.startswith("path 'decode+batches:2': no modifier 'batches'")
    assert previews.look("a", (*CAPTURE, "decode+batches:2")) is not None
    monkeypatch.setattr(preview, "KEPT_REFUSAL_SECONDS", 0)
    stale = previews.look("a", (*CAPTURE, "decode+batches:2"))
    assert stale is not None
    assert not stale.is_fresh
    assert previews._wanted == {"a": (*CAPTURE, "decode+batches:2")}


STAYS_BUT_FOR_THE_THIRD = """
import json, sys, time
if "decode+batch:4" not in sys.argv:
    time.sleep(0.3)
print(json.dumps({"sides": [], "positions": 7}))
"""


def test_of_a_viewer_only_the_latest_form_is_looked_up(previews, monkeypatch, tmp_path):
    in_place_of_the_command_line(monkeypatch, tmp_path, STAYS_BUT_FOR_THE_THIRD)
    forms = [(*CAPTURE, f"decode+batch:{n}") for n in (2, 3, 4)]
    with previews._room, previews._room:  # other viewers' dry runs
        for form in forms:
            assert previews.look("a", form) is None
    assert waited(previews, "a", forms[2]).costs == {"sides": [], "positions": 7}
    assert previews._answers.keys() == {forms[2]}


def test_what_no_process_can_be_given_is_a_sentence_too(previews):
    assert "could not be looked up" in waited(previews, "a", ("capture", "--prompt=a\x00b")).refusal


def test_a_dropped_file_is_stored_once_for_its_content(previews):
    dropped = PromptFile("q.txt", b"for x in y:")
    path = previews.file(dropped)
    assert path.read_bytes() == dropped.content
    assert previews.file(PromptFile("q.txt", b"for x in y:")) == path
    assert previews.file(PromptFile("q.txt", b"for x in z:")) != path
