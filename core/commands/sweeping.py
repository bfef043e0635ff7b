"""`sweep`: run the missing captures of a plan of many."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from typer import Argument, Exit, Option

from ..command_name import shell_command
from ..engines.registry import use_all as use_engines
from ..errors import UlpscopeError, UsageError
from ..numerics.arrays import Record
from ..progress import Progress, no_progress
from ..runs.file.database import each_database
from ..runs.store.store import Store, open_store
from ..sweeps.history import CellChange, change_of, conditions_of, gate_of
from ..sweeps.ledger import (
    DONE,
    FAILED,
    RUNNING,
    CellCard,
    CellOutcome,
    Ledger,
    in_ledger,
    read_card,
    run_id_of,
)
from ..sweeps.plan import Cell, SweepPlan, cell_counts, in_short, read_plan
from ..sweeps.ray_executor import compute_on_ray
from ..sweeps.workers import compute_here
from ..text import clean, plural
from .capturing import load, plan_of, run_plan
from .comparing import write_gate
from .options import EngineOption, JsonOption, JunitOption, MarkdownOption, StoreOption
from .terminal.console import err, print_facts, print_json, print_records, print_text, steps
from .terminal.stopping import EXIT_CODE, stoppable, stopping

if TYPE_CHECKING:  # torch is for those who run a model
    from ..inference.models.model import LoadedModel

# a terminal's table shows so many cells; --json has all
_MOST_SHOWN = 40
_ELSEWHERE = "another process computes it."


def sweep(
    plan: Path = Argument(
        ..., metavar="PLAN", help="The plan, a TOML file (docs/guides/sweeps.md)."
    ),
    dry_run: bool = Option(False, "--dry-run", help="List the cells and the cost of each."),
    jobs: int = Option(1, min=1, help="Cells at once per device, each with a copy of the model."),
    ray: str | None = Option(
        None, metavar="ADDRESS", help="Compute on a Ray cluster: 'auto', HOST:PORT or 'local'."
    ),
    build: str = Option("", help="Label of the build under test; a new one recomputes the cells."),
    cell: list[str] = Option([], help="Compute only this cell, in this process; repeatable."),
    print_: bool = Option(False, "--print", help="Print a command per missing cell, for Slurm."),
    against: str | None = Option(
        None, help="Compare each cell with its run that has this tag. Default: its last good run."
    ),
    fail_on: list[str] = Option([], help="Exit with 1 if a cell is one of changed, bug, flips."),
    junit: JunitOption = None,
    markdown: MarkdownOption = None,
    engine: EngineOption = None,
    store: StoreOption = None,
    as_json_: JsonOption = False,
) -> None:
    """Run the missing cells of a sweep. A cell is one capture of a plan: models x engines x paths x
    dtypes x prompts.

    A run's name holds the digests of its request and its environment. A sweep that was killed,
    extended or moved to another machine resumes; nothing is computed twice (docs/guides/sweeps.md).

    For example:  ulpscope sweep sweep.toml --fail-on changed,bug --build "$(git rev-parse --short
    HEAD)"
    """
    use_engines(engine)
    conditions = conditions_of(fail_on)
    if (junit or markdown) and not conditions:
        raise UsageError("--junit and --markdown write a gate; add --fail-on changed,bug,flips.")
    sweep_plan = read_plan(plan, build)
    target = open_store(store)
    ledger = Ledger(target)
    cells = [sweep_plan.cell(one) for one in cell] if cell else list(sweep_plan.cells)
    if dry_run:
        _print_costs(sweep_plan, cells, ledger, as_json_)
        return
    if print_:
        _print_commands(plan, cells, ledger, build, engine or (), store)
        return
    # an unknown tag is an error before hours of work
    pinned = _runs_tagged(ledger, against)
    ledger.write_plan(sweep_plan)
    outcomes: list[CellOutcome] = []
    states: Counter[str] = Counter()

    def stop_line() -> str:
        done = f"{states[DONE]:,} of {len(cells):,}"
        return f"stopped; {done} cells are stored; the same command resumes."

    def tell(say: Progress, what: str) -> None:
        failed = f" ({states[FAILED]} failed)" if states[FAILED] else ""
        say(what + failed, len(outcomes), len(cells), "cells")

    with stoppable(says=stop_line), steps() as say:
        compute = partial(compute_cell, address=target.address, engines=tuple(engine or ()))
        if ray:
            coming = compute_on_ray(cells, compute, target, ray, jobs=jobs)
        elif cell:
            coming = (outcome_of(target, one, say) for one in cells)
        else:
            coming = compute_here(
                cells,
                compute,
                jobs=jobs,
                on_begin=lambda one: tell(say, one.title),
            )
        # a sweep that is left early must end its workers too
        with closing(coming):  # type: ignore[type-var]
            for outcome in coming:
                outcomes.append(outcome)
                states[outcome.state] += 1
                ledger.record(outcome)
                if outcome.state == FAILED:
                    print_text(f"failed: {outcome.cell.title}: {outcome.says}", err)
                tell(say, "cells")
    of_now = {outcome.cell.digest: outcome.run_id for outcome in outcomes}
    changes = [
        change_of(state, of_now.get(state.cell, ""), pinned)
        for state in ledger.states(in_ledger(cells))
    ]
    reused = sum(outcome.was_there for outcome in outcomes)
    about: Record = {
        "name": sweep_plan.name,
        "cells": [change.as_json() for change in changes],
        "computed": len(outcomes) - reused - states[FAILED],
        "were_there": reused,
        "failed": states[FAILED],
    }
    gate = gate_of(changes, conditions) if conditions else None
    if gate is not None:
        write_gate(gate, junit, markdown)
        about["gate"] = gate.as_json()
    if as_json_:
        print_json(about)
    else:
        _print_changes(sweep_plan, changes)
        if gate is not None:
            print_text(gate.table())
    if gate is not None and gate.failed:
        raise Exit(1)
    if states[FAILED]:
        raise Exit(2)


def _print_commands(
    path: Path,
    cells: Sequence[Cell],
    ledger: Ledger,
    build: str,
    engines: Sequence[str],
    store: str | None,
) -> None:
    """Print a command for each cell that has no run, of any build."""
    states = {state.cell: state for state in ledger.states(in_ledger(cells))}
    arguments = [part for engine in engines for part in ("--engine", engine)]
    arguments += ["--build", build] if build else []
    arguments += ["--store", store] if store else []
    for cell in cells:
        if not states[cell.digest].cards or build:
            words = ["sweep", str(path), "--cell", cell.digest, *arguments]
            # as it is: a script runs it
            sys.stdout.write(f"{shell_command(words)}\n")


def _print_costs(plan: SweepPlan, cells: Sequence[Cell], ledger: Ledger, as_json_: bool) -> None:
    """Print every cell with its state, and its costs or the reason why it cannot be computed."""
    from ..inference.capture.costs import costs_of

    states = {state.cell: state.state for state in ledger.states(in_ledger(cells))}
    rows: list[Record] = []
    with stoppable():
        for cell in cells:
            state = states[cell.digest]
            row: Record = {"cell": cell.digest, "axes": dict(cell.axes), "state": state}
            rows.append(row)
            try:
                costs = costs_of(plan_of(cell.request, weights=False))
            except UlpscopeError as error:
                row["refused"] = clean(error, 200)
                continue
            row |= {
                "forwards": costs["forwards"],
                "tokens": costs["tokens"],
                "memory_bytes": costs["weight_bytes"] + (costs["kv_bytes"] or 0),
                "file_bytes": costs["file_bytes"],
            }
    open_rows = [row for row in rows if "refused" not in row and row["state"] != DONE]
    summed = ("forwards", "tokens", "file_bytes")
    total = {key: sum(row[key] for row in open_rows) for key in summed}
    if as_json_:
        print_json({"name": plan.name, "cells": rows, "missing": total})
        return
    for cell, row in zip(cells, rows, strict=True):
        row["capture"] = cell.title
    print_records(
        rows,
        f"{plan.name}: {cell_counts(cells)}",
        keys=("cell", "capture", "state", *summed[:2], "memory_bytes", "file_bytes", "refused"),
        most=_MOST_SHOWN,
    )
    print_facts({"cells to compute": len(open_rows), **total})
    if refused := sum("refused" in row for row in rows):
        print_text(f"{plural(refused, 'cell')} cannot be computed; exclude them by [[exclude]].")


def _runs_tagged(ledger: Ledger, tag: str | None) -> set[str]:
    if tag is None:
        return set()
    run_ids = {run_id for run_id in ledger.run_ids() if tag in ledger.store.labels(run_id).tags}
    if not run_ids:
        raise UsageError(
            f"--against '{clean(tag)}': no run of a cell has this tag; add it by `label RUN"
            " --tag`.",
        )
    return run_ids


def _print_changes(plan: SweepPlan, changes: Sequence[CellChange]) -> None:
    axes = ("model", "engine", "path", "dtype", "prompts")
    rows = []
    for change in changes:
        cell = change.as_json()
        rows.append({axis: clean(in_short(axis, cell["axes"][axis])) for axis in axes} | cell)
    states = Counter(change.state for change in changes)
    states["changed"] = sum(bool(change.what) for change in changes)
    counts = [f"{count:,} {state}" for state, count in states.items() if count]
    print_records(
        rows,
        f"{plan.name}: {', '.join(counts)}",
        keys=(*axes, "state", "verdict", "noise_ratio", "flips", "neq_share", "says"),
        most=_MOST_SHOWN,
    )


# the model of the last cell is kept for the next one
_loaded: dict[tuple[object, ...], LoadedModel] = {}


def compute_cell(cell: Cell, address: str, engines: Sequence[str] = ()) -> CellOutcome:
    """Compute a cell in a worker. address: of the store."""
    use_engines(list(engines))
    store = open_store(address)
    try:
        with stopping(lambda: ""):
            return outcome_of(store, cell)
    except KeyboardInterrupt:
        sys.exit(EXIT_CODE)


def outcome_of(store: Store, cell: Cell, say: Progress = no_progress) -> CellOutcome:
    """Compute a cell, unless its run exists or another process writes it. Never raises."""
    ledger = Ledger(store)
    try:
        if not cell.is_unchanged():
            return CellOutcome(cell, FAILED, says="its prompts changed after the plan was read.")
        from ..inference.capture.capture import environment_of

        # without weights: for a cell that has its run none are loaded
        run_id = run_id_of(cell.digest, environment_of(plan_of(cell.request, weights=False)))
        if store.has(run_id):
            return CellOutcome(cell, DONE, run_id, was_there=True)
        if cell.digest in ledger.running():
            return CellOutcome(cell, RUNNING, says=_ELSEWHERE)
        run_plan(plan_of(cell.request, loaded=_model_of(cell, say)), store, say, run_id)
        # here, so that the run is not fetched for it
        ((_, card),) = each_database([store.path_of(run_id)], read_card)
        return CellOutcome(cell, DONE, run_id, card=card if isinstance(card, CellCard) else None)
    except UlpscopeError as error:
        # another process began it in the same moment
        if cell.digest in ledger.running():
            return CellOutcome(cell, RUNNING, says=_ELSEWHERE)
        return CellOutcome(cell, FAILED, says=str(error))
    except MemoryError:
        return CellOutcome(cell, FAILED, says="its process ran out of memory.")
    except Exception as error:
        # whatever a cell raises, the other cells go on
        return CellOutcome(cell, FAILED, says=f"{type(error).__name__}: {clean(str(error), 300)}")


def _model_of(cell: Cell, say: Progress) -> LoadedModel:
    request = cell.request
    key = (request.model, request.dtype, request.device)
    if key not in _loaded:
        # the old model goes before the next one takes memory
        _loaded.clear()
        say("loading the model")
        _loaded[key] = load(request)
    return _loaded[key]
