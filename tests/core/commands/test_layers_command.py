"""`capture --layers` and `layers` on the command line."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from core.capture_request import CaptureRequest
from core.runs.store.store import Store
from tests.core.runs.layer_runs import GROWING, layer_run
from tests.core.runs.made_runs import calm_sides, header_of, write_run

PROMPT = "def __init__(self, name, parent=None):\n    self.name = name"


def test_the_table_names_the_first_module_its_position_and_the_growth(cli, tmp_path):
    run_id = layer_run(Store(tmp_path / "runs"), GROWING)
    done = cli("layers", run_id)
    assert done.returncode == 0
    assert "to differ: model.layers.0.attn.<b>q</b>_proj" in done.stdout
    assert "all 8 positions" in done.stdout
    assert done.stdout.count("model.layers.0") == 4  # three modules, and the sentence
    blocks = cli("layers", run_id, "--blocks", "--prompt", 1)
    assert "model.layers.0 (residual), at position 3" in blocks.stdout
    assert "all 5 positions" in blocks.stdout
    assert "_proj" not in blocks.stdout


def test_json_has_every_module_and_no_infinity(cli, tmp_path):
    run_id = layer_run(Store(tmp_path / "runs"), {(0, 0, 0): 1, **GROWING})
    found = json.loads(cli("layers", run_id, "--json").stdout)
    (pair,) = found["pairs"]
    assert (pair["first_module"], pair["first_prompt"], pair["first_position"]) == ("model.embed", 0, 0)
    assert [row["ordinal"] for row in pair["by_module"]] == [0, 1, 2, 3, 4, 5]
    assert pair["by_module"][0]["ratio"] is None  # the floor is 0
    assert "the floor is 0" in cli("layers", run_id).stdout


def test_equal_modules_are_a_sentence(cli, tmp_path):
    run_id = layer_run(Store(tmp_path / "runs"), {})
    assert "No module differs: 6 outputs" in cli("layers", run_id).stdout


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ((), "holds no outputs of modules"),
        (("--variant", "x"), "no variant 'x'"),
        (("--prompt", "9"), "no prompt 9; the run has 0 to 1"),
    ],
)
def test_what_is_not_there_is_one_sentence_and_exit_code_2(options, sentence, cli, tmp_path):
    write_run(Store(tmp_path / "runs"), header_of(), calm_sides(header_of()), "bare")
    done = cli("layers", "bare", *options)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.thorough
@pytest.mark.model
def test_a_capture_with_layers_is_repeated_by_its_command_and_read_by_layers(cli, shipped):
    asked = ["capture", "--model", shipped, "--prompt", PROMPT, "--variant", "decode", "--layers"]
    dry = cli(*asked, "--dry-run")
    assert "outputs of 42 modules are compared at all positions" in dry.stdout
    done = cli(*asked, "--json")
    assert done.returncode == 0, done.stderr
    run_id = json.loads(done.stdout)["run_id"]
    assert "--layers" in json.loads(cli("show", run_id, "--json").stdout)["command"]
    (pair,) = json.loads(cli("layers", run_id, "--json").stdout)["pairs"]
    assert len(pair["by_module"]) == 42
    (summary,) = [json.loads(cli("show", run_id, "--json").stdout)["summary"]]
    assert pair["by_module"][-1]["neq"] == summary["neq"]  # the logits are those of the run
    assert pair["by_module"][-1]["max_ulps"] == summary["max_ulps"]
    floors = np.array([row["floor_rms"] for row in pair["by_module"]])
    assert floors[0] == 0  # an embedding is no sum
    assert (floors[2:] >= 0).all()
    assert floors[-1] > 0


@pytest.fixture
def shipped() -> Path:
    return Path(__file__).resolve().parents[3] / "sample_runs" / "model"


@pytest.mark.parametrize(("ulps", "ratio"), [(1, "0.125x"), (16, "2x")])
def test_the_module_nearest_to_its_floor_is_named_with_its_ratio(cli, tmp_path, ulps, ratio):
    """Every element of the floor is one ULP apart, of the pair one of 64: its rms is an eighth of that."""
    run_id = layer_run(Store(tmp_path / "runs"), {(5, 0, 0): ulps})
    assert f"noise floor: logits, {ratio}" in cli("layers", run_id).stdout


def test_a_run_that_was_asked_for_modules_no_compiler_shows_says_so(cli, tmp_path):
    header = header_of()
    request = CaptureRequest(model="m", variants=("prefill+compile",), layers=True)
    asked = dataclasses.replace(header.provenance, request=request.to_json())
    write_run(Store(tmp_path / "runs"), dataclasses.replace(header, provenance=asked), calm_sides(header), "compiled")
    done = cli("layers", "compiled")
    assert done.returncode == 2
    assert "compiler makes the kernels" in done.stderr
    assert "--layers --layers" not in done.stderr
