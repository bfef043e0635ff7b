"""`log`: names and values, and what each tracker stores offline (environment of `make
trackers`).
"""

import json
import os
import sys
from unittest.mock import Mock

import numpy as np
import pytest

import core
from core.errors import ExtraError, UsageError
from tests.places import ROOT
from tests.shell import ran

PYTHON = ROOT / ".trackers" / "bin" / "python"
SAMPLES = ROOT / "sample_runs"
RUN, STEPS = "fresh-against-cached", "trainer-against-rollout"


def shown(cli, run_id, at):
    """Figures by name and step, and texts, as `show --json` has them."""
    run = cli("show", run_id, "--json", "--store", SAMPLES).json
    side = f"ulpscope/{run['variant']}"
    texts = {
        "ulpscope/run_id": run_id,
        f"{side}/verdict": run["verdict"],
        f"{side}/because": run["because"],
    }
    if "mismatch" not in run:
        summary = run["summary"] | {"noise_ratio": run["verdicts"][0]["noise_ratio"]}
        figures = {}
        for name, value in summary.items():
            if value is not None:
                figures[f"{side}/{name}", at] = float(value)
        return figures, texts
    figures = {(f"mismatch/{row['name']}", at): row["value"] for row in run["mismatch"]["figures"]}
    for row in run["mismatch"]["by_step"]:
        for name in row.keys() - {"step"}:
            figures[f"mismatch/by_step/{name}", row["step"]] = row[name]
    return figures, texts


def log_to_writer(run, folder, step=None):
    """Figures by name and step, and texts, of the calls of a SummaryWriter."""
    writer = Mock(["add_scalar", "add_text", "file_writer"])
    writer.file_writer.get_logdir.return_value = str(folder)
    core.log(run, to=writer, step=step)
    figures = {(name, at): value for (name, value, at), _ in writer.add_scalar.call_args_list}
    return figures, {name: text for (name, text, _), _ in writer.add_text.call_args_list}


@pytest.mark.parametrize("run_id", [RUN, STEPS])
def test_figures_have_the_names_of_show_json(cli, tmp_path, run_id):
    figures, texts = log_to_writer(SAMPLES / f"{run_id}.duckdb", tmp_path, step=7)
    expected, expected_texts = shown(cli, run_id, 7)
    assert figures == pytest.approx(expected)
    assert texts == expected_texts | {"ulpscope/report": str(tmp_path / f"{run_id}.html")}


def test_variants_whose_names_look_alike_stay_apart(tmp_path):
    a, b, c = np.random.default_rng(0).normal(size=(3, 4, 10)).astype(np.float32)
    figures, _ = log_to_writer(core.compare(a, a, **{"b c": b, "b+c": c}), tmp_path)
    names = ("variant", "b_c", "variant_3")
    largest = [figures[f"ulpscope/{name}/max_abs", None] for name in names]
    expected = [0, np.abs(a - b).max(), np.abs(a - c).max()]
    assert largest == pytest.approx(expected)


@pytest.mark.parametrize(
    "to",
    [
        "wandb",
        "trackio",
        "mlflow",
        "tensorboard:runs",
    ],
)
def test_a_missing_package_is_named_with_its_command(monkeypatch, to):
    name = to.partition(":")[0]
    module = "torch.utils.tensorboard" if name == "tensorboard" else name
    # an import of None is an ImportError
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ExtraError, match=f"pip install (torch )?{name}"):
        core.log(SAMPLES / f"{RUN}.duckdb", to=to)


@pytest.mark.parametrize(
    "to",
    [
        "tensorboard",
        "wandb:entity",
        "mlfow",
        "",
        None,
        object(),
    ],
)
def test_an_unknown_tracker_is_refused(to):
    with pytest.raises(UsageError, match="tensorboard:FOLDER"):
        core.log("no such run", to=to)


@pytest.mark.thorough
@pytest.mark.skipif(not PYTHON.exists(), reason="no trackers here: make trackers")
@pytest.mark.parametrize("tracker", ["wandb", "trackio", "mlflow", "tensorboard"])
def test_a_tracker_stores_figures_texts_and_html(cli, tmp_path, tracker):
    command = [PYTHON, "-P", ROOT / "tests/core/tracker_logs.py", tracker, tmp_path]
    done = ran(command, env=os.environ | {"PYTHONPATH": str(ROOT)})
    runs, rows, html = json.loads(done.stdout.splitlines()[-1])
    assert runs == 2
    figures, texts = shown(cli, RUN, 0)
    figures_of_steps, texts_of_steps = shown(cli, STEPS, 3)
    figures |= figures_of_steps
    texts |= texts_of_steps
    figures["mismatch/k3", 4] = 0.25
    texts["mismatch/warning"] = "a warning"
    stored = {(name, step): value for name, step, value in rows if isinstance(value, float | int)}
    # TensorBoard: float32
    assert {key: stored[key] for key in figures} == pytest.approx(figures, rel=1e-6)
    stored_texts = {(name, value) for name, _, value in rows if isinstance(value, str)}
    assert texts.items() <= stored_texts
    runs_logged = [core.open(SAMPLES / f"{run_id}.duckdb") for run_id in (RUN, STEPS)]
    assert set(html) == {run.html() for run in runs_logged}
