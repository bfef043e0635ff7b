"""Judging a run from its page: what the file chooses is shown, checked, and loaded only by somebody's word."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.capture import preview, recent_models
from app.shell.jobs import ANY_DEVICE, Job, Jobs
from app.verdict.panel_actions import _judging, _queue
from core.errors import UsageError
from core.runs.file.evidence import RUNGS
from core.runs.reader import RunReader
from core.runs.store.store import Store
from tests.app.hosting.test_roles import ADA, GRACE, sits
from tests.app.opening import opened, said
from tests.core.runs.judged_runs import REQUEST, judged_run


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


def has_told(monkeypatch: pytest.MonkeyPatch, *devices: str) -> None:
    looks = preview.Previews(Path("runs"))
    looks._devices = devices
    monkeypatch.setattr("app.verdict.panel_actions.previews", lambda: looks)


def judging(store: Store, **about: object):
    with RunReader(store.path_of(judged_run(store, None, run_id="mine", **about))) as run:
        return _judging(SimpleNamespace(run=run))


@pytest.mark.parametrize(
    ("device", "told", "queue"),
    [
        (None, (), ANY_DEVICE),
        ("cpu", (), "cpu"),
        ("cuda", ("cpu", "cuda:0"), "cuda:0"),
        ("cuda:1", (), ANY_DEVICE),  # nobody has looked yet which devices there are: it waits for all the others
    ],
)
def test_a_job_waits_in_the_queue_of_its_device(monkeypatch, device, told, queue):
    has_told(monkeypatch, *told)
    assert _queue(device) == queue


def test_a_device_that_is_known_not_to_be_here_is_refused_by_name(monkeypatch):
    has_told(monkeypatch, "cpu", "cuda:0")
    with pytest.raises(UsageError, match="captured on cuda:7"):
        _queue("cuda:7")


def test_a_device_that_a_file_makes_up_gets_a_sentence_and_no_job(own_store, submitted):
    run_id = judged_run(own_store, None, request=dataclasses.replace(REQUEST, device="the store"))
    app = opened("overview", run=run_id)
    assert "names no device" in said(app).replace("\\", "")
    assert [button for button in app.button if button.key == "judge"] == []
    assert submitted == []


def test_on_ones_own_machine_nothing_is_asked_and_what_is_loaded_is_said(own_store, submitted, tmp_path):
    app = opened("overview", run=judged_run(own_store, None, model=str(tmp_path)))
    assert f"It loads the model folder `{tmp_path}` of this server" in said(app)
    assert not app.checkbox
    app.button(key="judge").click().run()
    assert len(submitted) == 1


def test_a_model_that_only_the_file_asks_for_is_loaded_once_an_editor_agrees(
    own_store, submitted, monkeypatch, tmp_path
):
    sits(monkeypatch, ADA)
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
    sits(monkeypatch, ADA)
    recent_models.remember_model(own_store.directory, "gpt2")
    found = judging(own_store, model=model, revision=revision)
    assert (found.needs_yes, found.loads) == (needs_yes, loads)


@pytest.mark.parametrize("hidden", [{"model": "sample_runs/model\u200b"}, {"model": "gpt2", "revision": "ma\u202ein"}])
def test_a_model_whose_name_hides_something_is_not_loaded(own_store, hidden):
    with pytest.raises(UsageError, match="loaded by such a name"):
        judging(own_store, **hidden)


@pytest.mark.parametrize("folder", ["{there}", pytest.param("/no/such/folder", marks=pytest.mark.thorough)])
def test_a_viewer_does_not_learn_which_folders_there_are(own_store, monkeypatch, tmp_path, folder):
    sits(monkeypatch, GRACE)
    app = opened("overview", run=judged_run(own_store, None, model=folder.format(there=tmp_path)))
    said_of_it = [each.value for each in app.caption if "editors can judge" in each.value or "folder" in each.value]
    assert len(said_of_it) == 1
    assert "editors can judge it" in said_of_it[0]


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


def test_a_model_of_a_package_is_loaded_once_it_is_here(own_store, tmp_path, monkeypatch):
    monkeypatch.setenv("ULPSCOPE_CACHE", str(tmp_path))
    with RunReader(own_store.path_of(judged_run(own_store, None, run_id="mine", model="smollm2"))) as run:
        with pytest.raises(UsageError, match="SmolLM2-135M-Instruct is not"):
            _judging(SimpleNamespace(run=run))
        (tmp_path / "models" / "smollm2").mkdir(parents=True)
        (tmp_path / "models" / "smollm2" / "config.json").touch()
        found = _judging(SimpleNamespace(run=run))
    assert found.loads == "SmolLM2-135M-Instruct, which a package brought to this server"
    assert not found.needs_yes


@pytest.mark.parametrize(
    ("costs", "refusal", "shown"),
    [
        ({"forwards": 1024}, "", "1,024 forwards of the sides"),
        ({}, "The model's folder is empty.", "several times the work of the capture. The model's folder is empty."),
    ],
)
def test_what_judging_costs_is_a_dry_runs_estimate_asked_for_once_the_page_is_drawn(
    own_store, monkeypatch, tmp_path, costs, refusal, shown
):
    asked: list[list[str]] = []

    def look(self, viewer, arguments):
        asked.append(list(arguments))
        return preview.Answer(costs, refusal, time.monotonic())

    monkeypatch.setattr(preview.Previews, "look", look)
    app = opened("overview", run=judged_run(own_store, None, model=str(tmp_path)))
    assert asked == []
    assert "are being counted" in said(app)
    app.run()
    assert not app.exception
    assert shown in said(app).replace("\\", "")
    assert {"--judge", "--prompts", "--model"} <= set(asked[0])


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
