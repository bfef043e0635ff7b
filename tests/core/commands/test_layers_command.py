"""`capture --layers` and `layers` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

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
