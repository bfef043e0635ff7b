"""Log a run to an experiment tracker: W&B, trackio, MLflow or TensorBoard
(docs/guides/trackers.md).
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from .document.page import html_file
from .errors import ExtraError, UsageError
from .notebook import Run, open
from .rl.live import Check
from .rl.queries import mismatch_json
from .runs.queries.verdicts import answer_of
from .runs.reports.markdown import plain
from .runs.reports.report_json import plain_number
from .text import slug

_RUN_ID, _REPORT = "ulpscope/run_id", "ulpscope/report"


def log(run: Run | Check | str | Path, to: Any, *, step: int | None = None) -> None:
    """Log the figures of a run to a tracker, its verdicts as texts, and its HTML file.

    Args:
        run: a run, its id or file, or a `Check` of `ulpscope.rl`.
        to: 'wandb', 'trackio' or 'mlflow': the active run, else a new one; 'tensorboard:FOLDER'; or a tracker's own
            run or SummaryWriter.
        step: of the training loop.

    Raises:
        ExtraError: the tracker is not installed.
    """
    name, _, folder = (
        to.partition(":")
        if isinstance(to, str)
        else (type(to).__module__.partition(".")[0], "", "")
    )
    name, target = (
        ("tensorboard", to)
        if hasattr(to, "add_scalar")
        else (name, None if isinstance(to, str) else to)
    )
    is_known = name in ("wandb", "trackio", "mlflow", "tensorboard")
    if not is_known or (target is None and bool(folder) != (name == "tensorboard")):
        raise UsageError(
            "to: expected 'wandb', 'trackio', 'mlflow', 'tensorboard:FOLDER' or a tracker's own"
            " object.",
        )
    figures, texts, by_step, html = _contents(run)
    points = [(step, figures), *by_step]
    if name == "tensorboard":
        writer = target or _import("torch.utils.tensorboard", "torch tensorboard").SummaryWriter(
            folder,
        )
        for number, values in points:
            for key, value in values.items():
                writer.add_scalar(key, value, number)
        path = Path(writer.file_writer.get_logdir(), f"{texts.get(_RUN_ID)}.html")
        if html and path.parent.is_dir():  # TensorBoard shows no HTML; its folder may be a URL
            path.write_text(html, encoding="utf-8")
            texts[_REPORT] = str(path)
        for key, text in texts.items():
            # TensorBoard renders Markdown, and loads its images
            writer.add_text(key, plain(text), step)
        if target is None:
            writer.close()
    elif name == "mlflow":
        mlflow = _import("mlflow")
        active_run = target or mlflow.active_run()
        with (
            nullcontext(active_run) if active_run else mlflow.start_run(run_name=texts.get(_RUN_ID))
        ) as tracker_run:
            run_id = tracker_run.info.run_id
            for number, values in points:
                mlflow.log_metrics(values, number, run_id=run_id)
            for key, text in texts.items():
                mlflow.MlflowClient().set_tag(run_id, key, text)
            if html:
                mlflow.log_text(html, f"ulpscope/{texts[_RUN_ID]}.html", run_id=run_id)
    else:
        tracker = _import(name)
        active_run = target or (
            tracker.run if name == "wandb" else tracker.context_vars.current_run.get()
        )
        project = os.environ.get("WANDB_PROJECT", "ulpscope")
        tracker_run = active_run or tracker.init(project=project, name=texts.get(_RUN_ID))
        media = {_REPORT: tracker.Html(html, inject=False)} if html else {}
        if name == "wandb" and by_step:  # as charts: a step below the loop's would be lost
            steps, rows = zip(*by_step, strict=True)
            for key in rows[0]:
                media[key] = tracker.plot.line_series(
                    steps,
                    [[row[key] for row in rows]],
                    [key],
                    key,
                    "step",
                )
            points = points[:1]
        tracker_run.log({**figures, **texts, **media}, step=step)
        for number, values in points[1:]:
            tracker_run.log(values, step=number)
        if not active_run:
            tracker.finish()


def _import(module: str, packages: str = "") -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise ExtraError(f"{module} is not installed: pip install {packages or module}.") from error


def _contents(
    run: Run | Check | str | Path,
) -> tuple[dict[str, float], dict[str, str], list[tuple[int, dict[str, float]]], str]:
    """Return figures and texts by name, figures of each training step, and the HTML file."""
    if isinstance(run, Check):
        texts = {"mismatch/warning": run.warning} if run.warning else {}
        return {f"mismatch/{name}": value for name, value in run.figures.items()}, texts, [], ""
    reader = (run if isinstance(run, Run) else open(run)).reader
    mismatch = mismatch_json(reader) if reader.has_rollouts() else {"figures": [], "by_step": []}
    figures = {f"mismatch/{figure['name']}": figure["value"] for figure in mismatch["figures"]}
    texts = {_RUN_ID: reader.run_id}
    for pair in reader.pairs:
        answer, variant = answer_of(reader, pair), slug(pair.variant).replace("-", "_")
        if not variant or f"ulpscope/{variant}/verdict" in texts:
            variant = f"variant_{pair.index + 1}"
        texts |= {
            f"ulpscope/{variant}/verdict": answer.name,
            f"ulpscope/{variant}/because": answer.sentence,
        }
        summary = (
            {} if mismatch["figures"] else {**asdict(pair.summary), "noise_ratio": pair.noise_ratio}
        )
        figures |= {f"ulpscope/{variant}/{name}": value for name, value in summary.items()}
    figures = {
        name: float(value) for name, value in figures.items() if plain_number(value) is not None
    }
    by_step = [
        (row.pop("step"), {f"mismatch/by_step/{name}": value for name, value in row.items()})
        for row in mismatch["by_step"]
    ]
    return figures, texts, by_step, html_file(reader)
