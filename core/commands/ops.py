"""`ops`: which torch operations of this machine keep their bits from run to run, over batch sizes and row positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import UsageError
from ..numerics.formats import format_named
from ..runs.ops_run import OpsHeader, OpsRun, read_ops, write_ops_run
from ..runs.reports.run_json import ops_json
from ..runs.store.store import open_store
from ..runs.tables.ops import answers
from . import options
from .terminal.console import out, print_json, print_line, steps, stoppable, table_of, typed_command

if TYPE_CHECKING:  # torch is for those who probe
    from ..inference.ops.probing import ProbePlan


def ops(
    device: options.Device = None,
    dtype: Annotated[
        list[str] | None,
        typer.Option(help="float32, bfloat16 or float16; may be given several times. Default: float32 and bfloat16."),
    ] = None,
    op: Annotated[
        list[str] | None, typer.Option(help="Probe this operation only; may be given several times. Default: all.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Folder, hub id or .gguf file: probe linear at its shapes too; no weights are read."),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Calls at each batch size after the first.")] = 20,
    quick: Annotated[bool, typer.Option("--quick", help="Two sizes each, batches to 64, 0.3 s a probe.")] = False,
    name: Annotated[str | None, typer.Option(help="What to call the run.")] = None,
    save: Annotated[bool, typer.Option("--save/--no-save", help="Store the probes as a run.")] = True,
    show: Annotated[str | None, typer.Option(metavar="RUN", help="Probe nothing: print a stored run.")] = None,
    progress: options.Progress = "bar",
    store: options.Store = None,
    as_json_: options.Json = False,
) -> None:
    """Probe this machine's torch operations: is a call the same from run to run, at every batch size, at every row?

    Answers are about bits, distances in ULPs of the dtype. A difference over batch sizes is legitimate rounding; one
    from run to run makes every comparison of two runs noise.

    For example:  ulpscope ops --quick   or   ulpscope ops --device cuda --model sample_runs/model
    """
    target = open_store(store)
    if show:
        _print(read_ops(target, show), as_json_)
        return
    dtypes = tuple(dict.fromkeys(format_named(each).name for each in dtype or ("float32", "bfloat16")))
    with stoppable(), steps(progress) as say:
        say("loading torch")
        from ..inference.models.devices import name_of_device
        from ..inference.ops.probing import machine_settings, probe_all

        plan = _plan(device, dtypes, op or [], model, repeats, quick)
        rows = list(probe_all(plan, lambda stage, done, total: say(stage, done, total, "probes")))
        chip = name_of_device(plan.device)
        header = OpsHeader(
            name or f"operations on {chip}",
            str(plan.device),
            chip,
            dtypes,
            typed_command(),
            model or "",
            versions=machine_settings(plan.device),
        )
        run_id = write_ops_run(target, header, rows) if save else ""
    if progress == "json":
        print_line(stage="done", **({"run_id": run_id} if run_id else {}))
        return
    _print(read_ops(target, run_id) if run_id else OpsRun("", header, rows), as_json_)
    if run_id and not as_json_:
        out.print(run_id, markup=False)


def _plan(
    device: str | None, dtypes: tuple[str, ...], names: list[str], model: str | None, repeats: int, quick: bool
) -> ProbePlan:
    """Everything checked, nothing probed yet."""
    from ..inference.models.devices import usable_device
    from ..inference.models.model import load_model
    from ..inference.ops.operations import OPERATIONS, linear_operations
    from ..inference.ops.probing import ProbePlan, probes_of

    known = list(dict.fromkeys(operation.name for operation in OPERATIONS))
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(f"operation '{unknown[0]}' is not known; expected one of {', '.join(known)}.")
    target = usable_device(device)
    of_model = linear_operations(load_model(model, dtype="float32", device="cpu", weights=False).model) if model else ()
    probes = probes_of(target, names, quick, of_model)
    return ProbePlan(target, dtypes, probes, repeats, quick, seconds_each=0.3 if quick else 1.0)


def _print(run: OpsRun, as_json: bool) -> None:
    if as_json:
        print_json(ops_json(run))
        return
    versions = run.header.versions
    about = [run.header.device, run.header.device_name, f"torch {versions.get('torch', '')}"]
    out.print(", ".join([*about, f"{versions.get('threads', '?')} threads"]), markup=False)
    rows = (
        (
            f"{row['op']} ({row['backend']})" if row["backend"] else row["op"],
            row["dtype"],
            row["size"],
            *answers(row).values(),
        )
        for row in run.rows
    )
    columns = ("operation", "dtype", "size", "run to run", "batch size, row 0", "row position")
    out.print(table_of(columns, rows))
