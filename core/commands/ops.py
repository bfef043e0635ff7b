"""`ops`: which torch operations are bit-stable on this machine."""

from typing import Any

from typer import Option

from ..errors import UsageError
from ..numerics.formats import format_named
from ..runs.ops_run import OpsHeader, OpsRun, read_ops, write_ops_run
from ..runs.reports.run_json import ops_json
from ..runs.store.store import open_store
from ..runs.tables.ops import answers, title
from .options import DeviceOption, JsonOption, ProgressOption, StoreOption
from .terminal.console import (
    print_json,
    print_line,
    print_records,
    print_text,
    steps,
    typed_command,
)
from .terminal.stopping import stoppable


def ops(
    device: DeviceOption = None,
    dtype: list[str] = Option(
        [], help="float32, bfloat16 or float16, several times. Default: the first two."
    ),
    op: list[str] = Option([], help="Probe this operation only; may be given several times."),
    model: str | None = Option(
        None, help="Folder, hub id or GGUF: probe linear at its shapes too."
    ),
    repeats: int = Option(20, min=1, help="Calls at each batch size after the first."),
    quick: bool = Option(False, "--quick", help="Two sizes each, batches to 64, 0.3 s per probe."),
    name: str | None = Option(None, help="Name of the run."),
    show: str | None = Option(None, metavar="RUN", help="Print a stored run instead."),
    progress: ProgressOption = "bar",
    store: StoreOption = None,
    as_json_: JsonOption = False,
) -> None:
    """Probe this machine's torch operations: bit-identical from run to run, at every batch size, at
    every row?

    Distances are in ULPs of the dtype. A difference over batch sizes is legitimate rounding; one
    from run to run is nondeterminism, which makes any comparison of two runs noisy.

    For example:  ulpscope ops --quick   or   ulpscope ops --device cuda --model sample_runs/model
    """
    target = open_store(store)
    if show:
        _print(read_ops(target, show), as_json_)
        return
    dtypes = tuple(
        dict.fromkeys(format_named(each).name for each in dtype or ("float32", "bfloat16")),
    )
    with stoppable(), steps(progress) as say:
        # before the imports, which take a while
        say("loading torch")
        from ..inference.models.devices import name_of_device, usable_device
        from ..inference.models.model import load_model
        from ..inference.ops import (
            OPERATIONS,
            ProbePlan,
            linear_operations,
            machine_settings,
            probe_all,
            probes_of,
        )

        operations = list(dict.fromkeys(operation.name for operation in OPERATIONS))
        if unknown := [each for each in op if each not in operations]:
            raise UsageError(
                f"unknown operation '{unknown[0]}'; expected one of {', '.join(operations)}.",
            )
        used = usable_device(device)
        linear: list[Any] = []
        if model:
            # on the CPU and without weights: only the shapes of its layers are looked at
            shapes = load_model(model, dtype="float32", device="cpu", weights=False)
            linear += linear_operations(shapes.model)
        probes = probes_of(used, op, quick, linear)
        plan = ProbePlan(used, dtypes, probes, repeats, quick, seconds_each=0.3 if quick else 1.0)
        rows = list(probe_all(plan, say))
        chip = name_of_device(used)
        title = name or f"operations on {chip}"
        header = OpsHeader(
            title,
            str(used),
            chip,
            dtypes,
            typed_command(),
            model or "",
            versions=machine_settings(used),
        )
        run_id = write_ops_run(target, header, rows)
    if progress == "json":
        print_line(stage="done", run_id=run_id)
        return
    _print(read_ops(target, run_id), as_json_)
    if not as_json_:
        print_text(run_id)


def _print(run: OpsRun, as_json: bool) -> None:
    if as_json:
        print_json(ops_json(run))
        return
    versions = run.header.versions
    about = [run.header.device, run.header.device_name, f"torch {versions.get('torch', '')}"]
    print_text(", ".join([*about, f"{versions.get('threads', '?')} threads"]))
    columns = ("dtype", "size")
    print_records(
        [
            {"operation": title(row), **{name: row[name] for name in columns}, **answers(row)}
            for row in run.rows
        ],
    )
