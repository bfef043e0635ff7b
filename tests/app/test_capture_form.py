"""The Capture page's form as a request and as a command line."""

from dataclasses import replace

import pytest

from app.capture.tab import PROMPT_BYTES, CaptureForm, split_prompts
from app.shell.jobs import PromptFile
from core.capture_request import CaptureRequest
from core.prompt_files import read_prompts

REQUEST = CaptureRequest(model="a/model", prompts=("one", "two\nlines"), variants=("decode",))
FORM = CaptureForm(REQUEST)


def form(**change):
    return CaptureForm(replace(REQUEST, **change))


def test_a_dropped_file_stands_in_place_of_what_was_typed():
    dropped = CaptureForm(REQUEST, PromptFile("q.jsonl", b"{}"))
    assert " --prompts q.jsonl " in dropped.typed
    assert " --prompt " not in dropped.typed
    assert dropped.missing is None
    assert dropped.prompt_file == dropped.file


def test_prompts_too_long_for_an_argument_are_carried_in_a_file_that_reads_back_as_them(tmp_path):
    long = ("é\n" * PROMPT_BYTES, "short")
    carried = form(prompts=long).prompt_file
    (tmp_path / carried.name).write_bytes(carried.content)
    assert tuple(prompt.text for prompt in read_prompts(tmp_path / carried.name)) == long
    assert FORM.prompt_file is None


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"model": ""}, "Choose a model."),
        ({"prompts": ()}, "Write at least one prompt"),
        ({"reference": ""}, "Choose a reference path."),
        ({"variants": ()}, "Choose at least one variant or a sweep"),
        ({"device": "gpu"}, "'gpu' names no device"),
    ],
)
def test_what_is_missing_is_said(change, sentence):
    assert form(**change).missing.startswith(sentence)
    assert FORM.missing is None
    assert form(variants=(), repeat=2).missing is None


def test_a_model_of_a_package_has_to_be_got_first(tmp_path, monkeypatch):
    monkeypatch.setenv("ULPSCOPE_CACHE", str(tmp_path))
    assert form(model="smollm2").missing == "Get SmolLM2-135M-Instruct first."
    (tmp_path / "models" / "smollm2").mkdir(parents=True)
    (tmp_path / "models" / "smollm2" / "config.json").touch()
    assert form(model="smollm2").missing is None


def test_a_line_of_three_dashes_separates_prompts_and_nothing_else_does():
    assert split_prompts("a\n---\nb --- c\n\n---\n  \n---\n----\n") == ("a", "b --- c", "----")
    assert split_prompts("a\r\n---\r\nb") == ("a", "b")
    assert split_prompts(" \n") == ()
