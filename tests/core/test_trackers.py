"""`log`: names and values, and what each tracker stores offline (environment of `make trackers`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import core
from core.errors import ExtraError, UsageError

ROOT = Path(__file__).resolve().parents[2]
TRACKERS = Path(os.environ.get("ULPSCOPE_TRACKERS", ROOT / ".trackers"))
SAMPLES = ROOT / "sample_runs"


class Writer(SimpleNamespace):
    """What `log` calls of a SummaryWriter."""

    def add_scalar(self, name, value, step):
        self.scalars[name, step] = value

    def add_text(self, name, text, step):
        self.texts[name] = text


def writer_in(folder: Path) -> Writer:
    return Writer(scalars={}, texts={}, file_writer=SimpleNamespace(get_logdir=lambda: folder))


def figures_of(cli, run_id: str) -> tuple[dict, dict]:
    """Figures by name and step, and texts, as `show --json` has them."""
    shown = json.loads(cli("show", run_id, "--json", "--store", SAMPLES).stdout)
    side = f"ulpscope/{shown['variant']}"
    texts = {"ulpscope/run_id": run_id, f"{side}/verdict": shown["verdict"], f"{side}/because": shown["because"]}
    if "mismatch" in shown:
        figures = {(f"mismatch/{row['name']}", 3): row["value"] for row in shown["mismatch"]["figures"]}
        for row in shown["mismatch"]["by_step"]:
            figures |= {(f"mismatch/by_step/{name}", row["step"]): row[name] for name in row if name != "step"}
    else:
        summary = shown["summary"] | {"noise_ratio": shown["verdicts"][0]["noise_ratio"]}
        figures = {(f"{side}/{name}", 0): float(value) for name, value in summary.items() if value is not None}
    return figures, texts


@pytest.mark.parametrize(("run_id", "step"), [("fresh-against-cached", 0), ("trainer-against-rollout", 3)])
def test_figures_have_the_names_of_show_json(cli, tmp_path, run_id, step):
    writer = writer_in(tmp_path)
    core.log(SAMPLES / f"{run_id}.duckdb", to=writer, step=step)
    figures, texts = figures_of(cli, run_id)
    assert writer.scalars == pytest.approx(figures)
    assert writer.texts == texts | {"ulpscope/report": str(tmp_path / f"{run_id}.html")}


def test_variants_whose_names_look_alike_stay_apart(tmp_path):
    a, b, c = np.random.default_rng(0).normal(size=(3, 4, 10)).astype(np.float32)
    writer = writer_in(tmp_path)
    core.log(core.compare(a, a, **{"b c": b, "b+c": c}), to=writer)
    largest = [writer.scalars[f"ulpscope/{name}/max_abs", None] for name in ("variant", "b_c", "variant_3")]
    assert largest == pytest.approx([0, np.abs(a - b).max(), np.abs(a - c).max()])


@pytest.mark.parametrize(
    ("to", "module", "command"),
    [
        ("wandb", "wandb", "pip install wandb"),
        ("trackio", "trackio", "pip install trackio"),
        ("mlflow", "mlflow", "pip install mlflow"),
        ("tensorboard:runs", "torch.utils.tensorboard", "pip install torch tensorboard"),
    ],
)
def test_a_missing_package_is_named_with_its_command(monkeypatch, to, module, command):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ExtraError, match=command):
        core.log(SAMPLES / "fresh-against-cached.duckdb", to=to)


@pytest.mark.parametrize("to", ["tensorboard", "wandb:entity", "mlfow", "", None, object()])
def test_an_unknown_tracker_is_refused(to):
    with pytest.raises(UsageError, match="tensorboard:FOLDER"):
        core.log("no such run", to=to)


@pytest.mark.thorough
@pytest.mark.parametrize("tracker", ["wandb", "trackio", "mlflow", "tensorboard"])
def test_a_tracker_stores_figures_texts_and_html(cli, tmp_path, tracker):
    python = TRACKERS / "bin" / "python"
    if not python.exists():
        pytest.skip("no trackers here: make trackers")
    done = subprocess.run(
        [python, "-P", ROOT / "tests/core/tracker_logs.py", tracker, tmp_path],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    runs, rows, html = json.loads(done.stdout.splitlines()[-1])
    assert runs == 2
    run_ids = "fresh-against-cached", "trainer-against-rollout"
    (figures, texts), (steps, step_texts) = (figures_of(cli, run_id) for run_id in run_ids)
    figures |= steps | {("mismatch/k3", 4): 0.25}
    texts |= step_texts | {"mismatch/warning": "a warning"}
    stored = {(name, step): value for name, step, value in rows if isinstance(value, float | int)}
    assert {key: stored[key] for key in figures} == pytest.approx(figures, rel=1e-6)  # TensorBoard: float32
    assert texts.items() - {("ulpscope/run_id", run_ids[1])} <= {(n, v) for n, _, v in rows if isinstance(v, str)}
    assert set(html) == {core.open(SAMPLES / f"{run_id}.duckdb").html() for run_id in run_ids}
