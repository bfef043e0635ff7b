"""Judging a run from its page: what the file names is shown, and loaded by a click alone."""

from __future__ import annotations

import dataclasses

import pytest

from app.verdict.panel_actions import refusal_of
from tests.app.opening import open_page, page_text
from tests.core.runs.judged_runs import REQUEST, judged_run


@pytest.mark.parametrize(
    ("model", "revision", "refusal"),
    [
        ("sample_runs/model", None, ""),
        ("gpt2", "refs/pr/7", ""),
        ("sample_runs/model\u200b", None, "cannot be seen"),
        ("gpt2", "ma\u202ein", "cannot be seen"),
        ("../gone/model", None, "not on this machine"),
        ("~nobody-of-that-name/a/b", None, "not on this machine"),
        ("m" * 5000 + "/a/b", None, "not on this machine"),
    ],
)
def test_a_model_that_cannot_be_loaded_here_is_refused(model, revision, refusal):
    page_text = refusal_of(dataclasses.replace(REQUEST, model=model, revision=revision))
    assert refusal in page_text
    assert bool(page_text) == bool(refusal)


def test_a_model_that_a_file_names_is_shown_before_the_click(bare_store):
    app = open_page("overview", run=judged_run(bare_store, None, model="a-stranger/model", revision="refs/pr/7"))
    assert "Loads `a-stranger/model` at revision `refs/pr/7`" in page_text(app).replace("\\", "")
    assert [button.key for button in app.button if button.key == "judge"] == ["judge"]


def test_an_unjudged_run_shows_one_button_and_one_line_of_checks(bare_store, tmp_path):
    app = open_page("overview", run=judged_run(bare_store, None, model=str(tmp_path)))
    assert [button.key for button in app.button if button.key == "judge"] == ["judge"]
    labels = [step.label for step in app.expander]
    assert "CLI command" in labels
    assert not [label for label in labels if "Checks" in label]
    assert "Not run: rerun, own dtype, float32 comparison" in page_text(app)
