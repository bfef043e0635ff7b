"""What a capture is computed with is known before anything large is read, and as its run has it."""

import json
import shutil
from pathlib import Path

import pytest

from core.capture_request import CaptureRequest
from core.commands.capturing import plan_of
from core.inference.capture.capture import environment_of
from tests.places import MODEL

pytestmark = pytest.mark.model


def _of(model, **more):
    request = CaptureRequest(
        model=str(model),
        prompts=("def",),
        variants=("decode",),
        dtype="float32",
        **more,
    )
    return request, environment_of(plan_of(request, weights=False))


@pytest.fixture
def copied(tmp_path):
    return Path(shutil.copytree(MODEL, tmp_path / "model"))


def test_it_is_that_of_the_run_though_no_weights_were_loaded():
    request, found = _of(MODEL)
    about = plan_of(request).header.provenance
    assert found["revision"] == about.revision
    assert found["revision"].startswith("sha256:")
    assert found["device_name"] == about.device_name
    assert found["versions"] == about.versions


def test_a_model_that_is_elsewhere_has_the_same_and_another_has_not(copied):
    sound = _of(MODEL)[1]
    assert _of(copied)[1] == sound
    assert _of(copied, build="1")[1] == {**sound, "build": "1"}
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-3}))
    other = _of(copied)[1]
    assert other["config"] != sound["config"]
    assert {**other, "config": sound["config"]} == sound
