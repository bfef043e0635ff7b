"""Judging a run from its page: what the file chooses is shown, checked, and loaded only by somebody's word."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from app.capture import preview, recent_models
from app.shell.jobs import ANY_DEVICE, Job, Jobs
from app.verdict.panel_actions import _judging
from core.errors import UsageError
from core.runs.file.evidence import RUNGS
from core.runs.reader import RunReader
from core.runs.store.store import Store
from tests.app.opening import opened, said
from tests.core.runs.judged_runs import judged_run


@pytest.fixture(autouse=True)
def own_store(own_store: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("ULPSCOPE_SAMPLES", "")
    return own_store


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], str]]:
    """(arguments, queue) of every job."""
    found: list[tuple[list[str], str]] = []

    def submit(self, arguments, *, title, device, prompts=None, who="", secrets=None, on_over=None):
        found.append((list(arguments), device))
        return Job(1, title, device, tuple(arguments))

    monkeypatch.setattr(Jobs, "submit", submit)
    return found


def judging(store: Store, **about: object):
    with RunReader(store.path_of(judged_run(store, None, run_id="mine", **about))) as run:
        return _judging(SimpleNamespace(run=run))


def test_a_model_that_only_the_file_asks_for_is_loaded_once_a_member_agrees(
    own_store, submitted, monkeypatch, tmp_path
):
    monkeypatch.setenv("ULPSCOPE_SIGN_IN_PASSWORD", "correct horse")
    app = opened("overview", run=judged_run(own_store, None, model=str(tmp_path)))
    (agreeing,) = app.checkbox
    assert "Load the model folder" in agreeing.label
    button = app.button(key="judge")
    assert button.disabled
    button.proto.disabled = False  # as a page that is not ours may click
    button.click().run()
    assert submitted == []
    app.checkbox[0].check().run()
    app.button(key="judge").click().run()
    assert not app.exception
    ((arguments, queue),) = submitted
    assert arguments[1:3] == ["--model", str(tmp_path)]
    assert queue == ANY_DEVICE
    assert recent_models.is_known(own_store.directory, str(tmp_path))  # from now on


@pytest.mark.parametrize(
    ("model", "revision", "needs_yes", "loads"),
    [
        ("sample_runs/model", "sha256:c146", False, "the model folder `sample_runs/model` of this server"),
        ("gpt2", "", False, "the model `gpt2` from the hub"),
        ("gpt2", "refs/pr/7", True, "the model `gpt2` at revision `refs/pr/7` from the hub"),  # it may be anybody's
        ("a-stranger/model", "", True, "the model `a-stranger/model` from the hub"),
        ("core", "", True, "the model folder `core` of this server"),
    ],
)
def test_only_what_somebody_here_asked_for_before_needs_no_agreement(
    own_store, monkeypatch, model, revision, needs_yes, loads
):
    monkeypatch.setenv("ULPSCOPE_SIGN_IN_PASSWORD", "correct horse")
    recent_models.remember_model(own_store.directory, "gpt2")
    found = judging(own_store, model=model, revision=revision)
    assert (found.needs_yes, found.loads) == (needs_yes, loads)


@pytest.mark.parametrize("hidden", [{"model": "sample_runs/model\u200b"}, {"model": "gpt2", "revision": "ma\u202ein"}])
def test_a_model_whose_name_hides_something_is_not_loaded(own_store, hidden):
    with pytest.raises(UsageError, match="loaded by such a name"):
        judging(own_store, **hidden)


def test_a_file_that_only_a_run_file_names_is_never_loaded_and_one_that_was_captured_with_is(own_store, tmp_path):
    """A GGUF is a file, which a stranger's run may call what it likes: `owner/model` is also a relative path."""
    model = tmp_path / "m.gguf"
    model.write_bytes(b"GGUF")
    with RunReader(own_store.path_of(judged_run(own_store, None, run_id="mine", model=str(model)))) as run:
        with pytest.raises(UsageError, match="nobody here has captured"):
            _judging(SimpleNamespace(run=run))
        recent_models.remember_model(own_store.directory, str(model))
        found = _judging(SimpleNamespace(run=run))
    assert found.loads == f"the model file `{model}` of this server"
    assert not found.needs_yes


def test_a_model_of_the_hub_that_nobody_here_asked_for_is_not_even_looked_up(own_store, monkeypatch):
    """The twin: whose name stands in a file alone is loaded by a click, and by nothing before it."""
    monkeypatch.setattr(preview.Previews, "look", lambda *given: pytest.fail("it was looked up"))
    app = opened("overview", run=judged_run(own_store, None, model="a-stranger/model"))
    app.run()
    assert "several times the work" in said(app).replace("\\", "")
    assert [button.key for button in app.button if button.key == "judge"]


def test_an_unjudged_run_shows_one_button_and_neither_a_command_nor_empty_rungs(own_store, tmp_path):
    app = opened("overview", run=judged_run(own_store, None, model=str(tmp_path)))
    assert [button.key for button in app.button if button.key == "judge"] == ["judge"]
    labels = [step.label for step in app.expander]
    assert f"Evidence · 0 of {len(RUNGS) - 2} rungs run" in labels
    assert "The same on the command line" in labels
    assert not [label for label in labels if "not run" in label]
