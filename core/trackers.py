"""Log a run to an experiment tracker: W&B, trackio, MLflow or TensorBoard
(docs/guides/trackers.md).
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

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
Figures = dict[str, float]


class Contents(NamedTuple):
    """What is logged: figures and texts by name, figures of each training step, the HTML file."""

    figures: Figures
    texts: dict[str, str]
    by_step: Sequence[tuple[int, Figures]] = ()
    html: str = ""


def log(run: Run | Check | str | Path, to: Any, *, step: int | None = None) -> None:
    """Log the figures of a run to a tracker, its verdicts as texts, and its HTML file.

    Args:
        run: a run, its id or file, or a `Check` of `ulpscope.rl`.
        to: 'wandb', 'trackio' or 'mlflow': the active run, else a new one; 'tensorboard:FOLDER'; or
            a tracker's own run or SummaryWriter.
        step: of the training loop.

    Raises:
        ExtraError: the tracker is not installed.
    """
    target = to
    folder = ""
    name = type(to).__module__.partition(".")[0]
    if isinstance(to, str):
        target = None
        name, _, folder = to.partition(":")
    elif hasattr(to, "add_scalar"):
        # a SummaryWriter of torch or tensorboardX
        name = "tensorboard"
    needs_folder = name == "tensorboard" and target is None
    is_known = name in (*_TRACKERS, "tensorboard")
    if not is_known or bool(folder) != needs_folder:
        raise UsageError(
            "to: expected 'wandb', 'trackio', 'mlflow', 'tensorboard:FOLDER' or a tracker's own"
            " object.",
        )
    contents = _contents(run)
    if name == "tensorboard":
        module = "torch.utils.tensorboard"
        writer = target or _import(module, "torch tensorboard").SummaryWriter(folder)
        for number, figures in [(step, contents.figures), *contents.by_step]:
            for key, value in figures.items():
                writer.add_scalar(key, value, number)
        texts = contents.texts
        path = Path(writer.file_writer.get_logdir(), f"{texts.get(_RUN_ID)}.html")
        # it shows no HTML; its folder may be a URL
        if contents.html and path.parent.is_dir():
            path.write_text(contents.html, encoding="utf-8")
            texts[_REPORT] = str(path)
        for key, text in texts.items():
            # TensorBoard renders Markdown, and loads its images
            writer.add_text(key, plain(text), step)
        if target is None:
            writer.close()
    else:
        _TRACKERS[name](_import(name), contents, step, target)


def _log_to_mlflow(mlflow: Any, contents: Contents, step: int | None, target: Any) -> None:
    texts = contents.texts
    active_run = target or mlflow.active_run()
    if active_run:
        new_run = nullcontext(active_run)
    else:
        new_run = mlflow.start_run(run_name=texts.get(_RUN_ID))
    with new_run as tracker_run:
        run_id = tracker_run.info.run_id
        for number, figures in [(step, contents.figures), *contents.by_step]:
            mlflow.log_metrics(figures, number, run_id=run_id)
        for key, text in texts.items():
            mlflow.MlflowClient().set_tag(run_id, key, text)
        if contents.html:
            mlflow.log_text(contents.html, f"ulpscope/{texts[_RUN_ID]}.html", run_id=run_id)


def _log_to_wandb(tracker: Any, contents: Contents, step: int | None, target: Any) -> None:
    """Log to W&B, or to trackio, which has its functions."""
    is_wandb = tracker.__name__ == "wandb"
    by_step = contents.by_step
    active_run = target or (tracker.run if is_wandb else tracker.context_vars.current_run.get())
    project = os.environ.get("WANDB_PROJECT", "ulpscope")
    tracker_run = active_run or tracker.init(project=project, name=contents.texts.get(_RUN_ID))
    media = {_REPORT: tracker.Html(contents.html, inject=False)} if contents.html else {}
    # as charts: a step below the loop's would be lost
    if is_wandb and by_step:
        steps, rows = zip(*by_step, strict=True)
        for key in rows[0]:
            values = [row[key] for row in rows]
            media[key] = tracker.plot.line_series(steps, [values], [key], key, "step")
        by_step = ()
    tracker_run.log({**contents.figures, **contents.texts, **media}, step=step)
    for number, figures in by_step:
        tracker_run.log(figures, step=number)
    if not active_run:
        tracker.finish()


_TRACKERS: dict[str, Any] = {
    "wandb": _log_to_wandb,
    "trackio": _log_to_wandb,
    "mlflow": _log_to_mlflow,
}


def _import(module: str, packages: str = "") -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise ExtraError(f"{module} is not installed: pip install {packages or module}.") from error


def _under(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{prefix}/{name}": value for name, value in values.items()}


def _contents(run: Run | Check | str | Path) -> Contents:
    if isinstance(run, Check):
        warning = {"mismatch/warning": run.warning} if run.warning else {}
        return Contents(_under("mismatch", run.figures), warning)
    reader = (run if isinstance(run, Run) else open(run)).reader
    figures = {}
    by_step = []
    if reader.has_rollouts:
        mismatch = mismatch_json(reader)
        figures = _under("mismatch", {row["name"]: row["value"] for row in mismatch["figures"]})
        for row in mismatch["by_step"]:
            by_step.append((row.pop("step"), _under("mismatch/by_step", row)))
    texts = {_RUN_ID: reader.run_id}
    for pair in reader.pairs:
        answer = answer_of(reader, pair)
        variant = f"ulpscope/{slug(pair.variant).replace('-', '_')}"
        if f"{variant}/verdict" in texts or variant.endswith("/"):
            variant = f"ulpscope/variant_{pair.index + 1}"
        texts |= _under(variant, {"verdict": answer.name, "because": answer.sentence})
        if not reader.has_rollouts:
            figures |= _under(variant, vars(pair.summary) | {"noise_ratio": pair.noise_ratio})
    known = {name: float(each) for name, each in figures.items() if plain_number(each) is not None}
    return Contents(known, texts, by_step, html_file(reader))
