"""`ops`: which torch operations of this machine are the same from run to run, at every batch size and at every row of a
batch.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from ..errors import UsageError
from ..numerics.formats import format_named
from ..runs.ops_run import OpsHeader, OpsRun, read_ops, write_ops_run
from ..runs.reports.ops_wording import (
    NO,
    NOT_AVAILABLE,
    QUESTIONS,
    answer,
    beside,
    distance_says,
    machine,
    markdown,
    says,
    title,
)
from ..runs.reports.run_json import ops_json
from ..runs.store.store import open_store
from ..runs.tables.ops import OpRow
from .request_options import DeviceOption, RevisionOption, TrustOption
from .terminal.console import (
    JsonOption,
    StoreOption,
    Tell,
    check_progress,
    err,
    out,
    print_json,
    printable,
    steps,
    stoppable,
    typed_command,
)

if TYPE_CHECKING:  # torch is for those who probe
    from ..inference.ops.probing import ProbePlan

_QUICK = {"repeats": 3, "seconds_each": 0.3}
_STYLES = {NO: "bold red", NOT_AVAILABLE: "dim"}


def ops(
    device: DeviceOption = None,
    dtype: Annotated[
        list[str] | None,
        typer.Option(help="float32, bfloat16 or float16; may be given several times. Default: float32 and bfloat16."),
    ] = None,
    op: Annotated[
        list[str] | None,
        typer.Option(help="Probe this operation only; may be given several times. Default: all of them."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Folder, hub id, .gguf file, smollm2: also probe linear at its own shapes; no weights are read."
        ),
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Calls at each batch size after the first. Default: 20.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes, fewer batch sizes, 3 repeats: seconds.")] = False,
    seconds: Annotated[
        float | None,
        typer.Option(min=0.0, help="Begin no further probe after so many seconds; what was probed is kept."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the inputs, which are the same bits on every machine.")] = 0,
    revision: RevisionOption = None,
    trust_remote_code: TrustOption = False,
    name: Annotated[str | None, typer.Option(help="What to call the run.")] = None,
    save: Annotated[bool, typer.Option("--save/--no-save", help="Store the probes as a run.")] = True,
    show: Annotated[
        list[str] | None,
        typer.Option(metavar="RUN", help="Probe nothing: print a stored run; twice or more, runs beside each other."),
    ] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print tables for a report instead.")] = False,
    progress: Annotated[
        str, typer.Option(help="'bar' on a terminal, or 'json': a line of JSON for every probe, for programs.")
    ] = "bar",
    store: StoreOption = None,
    as_json_: JsonOption = False,
) -> None:
    """Probe this machine's torch operations: run to run, row 0 alone against row 0 among N, and a row at every index of
    a batch.

    Each answer is about bits. A difference over batch sizes is legitimate rounding; one from run to run makes every
    comparison of two runs noise.

    For example:  ulpscope ops --quick   or   ulpscope ops --device cuda --model sample_runs/model

    Two machines beside each other:  ulpscope ops --show RUN --show OTHER
    """
    check_progress(progress)
    if as_json_ and as_markdown:
        raise UsageError("--json and --markdown are two forms of the same; give one.")
    target = open_store(store)
    if show:
        _print_stored([read_ops(target, run_id) for run_id in show], as_json_, as_markdown)
        return
    dtypes = tuple(dict.fromkeys(format_named(given).name for given in dtype or ("float32", "bfloat16")))
    with stoppable(), steps(progress) as say:
        say("loading torch")
        plan = _plan(device, dtypes, op or [], model, revision, trust_remote_code, repeats, quick, seconds, seed)
        rows = _probed(plan, say)
        header = _header(plan, rows, name, model)
        run_id = write_ops_run(target, header, rows) if save else ""
    if progress == "json":
        sys.stdout.write(json.dumps({"stage": "done", **({"run_id": run_id} if run_id else {})}) + "\n")
        return
    run = read_ops(target, run_id) if run_id else OpsRun("", header, tuple(rows))
    _print_stored([run], as_json_, as_markdown)
    if run_id and not as_json_:
        (err if as_markdown else out).print(run_id, markup=False)


def _plan(
    device: str | None,
    dtypes: tuple[str, ...],
    names: list[str],
    model: str | None,
    revision: str | None,
    trust_remote_code: bool,
    repeats: int | None,
    quick: bool,
    seconds: float | None,
    seed: int,
) -> ProbePlan:
    """Plan a run of probes: everything checked, nothing probed yet."""
    from ..inference.models.devices import usable_device
    from ..inference.ops.of_model import linear_operations
    from ..inference.ops.operations import OPERATIONS
    from ..inference.ops.probing import ProbePlan, probes_of

    known = list(dict.fromkeys(operation.name for operation in OPERATIONS))
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(f"operation '{unknown[0]}' is not known; expected one of {', '.join(known)}.")
    where = usable_device(device)
    of_model = linear_operations(model, revision=revision, trust_remote_code=trust_remote_code) if model else ()
    settings: dict[str, Any] = dict(_QUICK) if quick else {}
    if repeats is not None:
        settings["repeats"] = repeats
    return ProbePlan(
        where,
        dtypes,
        probes_of(where, names, quick, of_model),
        seed=seed,
        is_quick=quick,
        seconds_in_all=seconds,
        **settings,
    )


def _probed(plan: ProbePlan, say: Tell) -> list[OpRow]:
    from ..inference.ops.probing import probe_all

    return list(probe_all(plan, lambda stage, done, total: say(stage, done, total, "probes")))


def _header(plan: ProbePlan, rows: Sequence[OpRow], name: str | None, model: str | None) -> OpsHeader:
    """Header of a run of probes; its note says so where the run ended early."""
    from ..inference.models.devices import name_of_device
    from ..inference.ops.probing import machine_settings

    chip = name_of_device(plan.device)
    note = f"{len(rows)} of {plan.total} probes: the time was used up." if len(rows) < plan.total else ""
    return OpsHeader(
        name=name or f"operations on {chip}",
        device=str(plan.device),
        device_name=chip,
        dtypes=plan.dtypes,
        seed=plan.seed,
        command=typed_command(),
        model=model or "",
        note=note,
        versions=machine_settings(plan.device),
    )


def _print_stored(runs: list[OpsRun], as_json_: bool, as_markdown: bool) -> None:
    if as_json_:
        found = [ops_json(run) for run in runs]
        print_json(found[0] if len(found) == 1 else found)
    elif as_markdown:
        sys.stdout.write(printable("\n".join(markdown(run) for run in runs)) + "\n")
    elif len(runs) == 1:
        _print_run(runs[0])
    else:
        _print_beside(runs)


def _print_run(run: OpsRun) -> None:
    """A line a probe; what differs stands out."""
    out.print(f"{machine(run)}", markup=False)
    if run.header.note:
        out.print(run.header.note, markup=False)
    table = Table()
    for column in ("operation", "dtype", "size", *QUESTIONS.values(), "row 0 from batch 1"):
        table.add_column(column, overflow="fold")
    for row in run.rows:
        cells = [_styled(answer(row, question), says(row, question)) for question in QUESTIONS]
        if row.refusal:
            cells = [*cells[:1], "", ""]
        table.add_row(escape(title(row)), escape(row.dtype), escape(row.size), *cells, distance_says(row))
    out.print(table)


def _print_beside(runs: list[OpsRun]) -> None:
    """A line a probe and machine column; where they disagree, on what."""
    table = Table(title="answers: run to run / batch size / row position")
    for column in (
        "operation",
        "dtype",
        "size",
        *(f"{number}: {machine(run)}" for number, run in enumerate(runs, 1)),
        "they disagree on",
    ):
        table.add_column(escape(column), overflow="fold")
    for found in beside(runs):
        cells = ["–" if row is None else _three(row) for row in found.rows]
        table.add_row(
            escape(title(found.first)), escape(found.first.dtype), escape(found.first.size), *cells, found.disagreement
        )
    out.print(table)


def _three(row: OpRow) -> str:
    if row.refusal:
        return _styled(NOT_AVAILABLE, NOT_AVAILABLE)
    return " / ".join(_styled(found, found) for found in (answer(row, question) for question in QUESTIONS))


def _styled(found: str, sentence: str) -> str:
    style = _STYLES.get(found, "")
    return f"[{style}]{escape(sentence)}[/{style}]" if style else escape(sentence)
