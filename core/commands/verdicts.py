"""`verdict`: a stored run's verdict, and of an upload or a server's responses what its controls make of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from ..errors import UsageError
from ..judging.explain.causes import explain_pair
from ..judging.judge_sparse import judge_with_floor
from ..judging.rejudge import check_upload, judge_stored
from ..judging.uploaded_controls import measure_controls
from ..runs.file.evidence import FAILED, MISSING
from ..runs.file.records import FAILING, UNDECIDED
from ..runs.reader import RunReader
from ..runs.sparse_run import SparseRun, SparseVerdict, is_sparse, sparse_of, write_sparse_run
from ..runs.store.store import Store, open_store
from . import options
from .terminal.console import out, print_json, print_text, steps, stoppable

if TYPE_CHECKING:  # torch is for those who run a model
    from ..inference.models.model import LoadedModel

Files = list[Path] | None
Load = Callable[[str], "LoadedModel"]
"""dtype -> the model."""
_STYLES = {FAILED: "bold red", MISSING: "yellow"}


def verdict(
    run_id: options.Run,
    rerun: Annotated[
        Files,
        typer.Option(
            help="A dump of the same sides, called once more; one side is enough, twice for two files of one."
        ),
    ] = None,
    neighbours: Annotated[
        Files, typer.Option(help="A dump of the same sides beside other requests, as many and as long as before.")
    ] = None,
    float32: Annotated[Files, typer.Option("--float32", help="A dump of the same sides, computed in float32.")] = None,
    floor: Annotated[
        Files,
        typer.Option(
            help="A float32 dump of three or more ways to compute the same logits (batch sizes, kernels); the others"
            " are compared with the first."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Folder, hub id, .gguf file, smollm2: it measures the rounding floor on the dump's own tokens."
        ),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(help="With --model, of what a server sent: the dtype that it computes in. Default: as it shows."),
    ] = None,
    mixture_of_experts: Annotated[
        bool,
        typer.Option(
            "--mixture-of-experts", help="The rows of a batch share experts: other neighbours may change bits."
        ),
    ] = False,
    device: options.Device = None,
    revision: options.Revision = None,
    trust_remote_code: options.Trust = False,
    name: Annotated[
        str | None, typer.Option(help="What to call the judged run. Default: its name, and 'judged'.")
    ] = None,
    store: options.Store = None,
    as_json_: options.Json = False,
) -> None:
    """Print a run's verdict with its evidence; with controls, judge an uploaded run and store it with the new verdict.

    Exit code 1: a pair is `bug suspected`, `nondeterministic` or `invalid dump`, as with `compare --fail-on verdict`.
    The old run stays; the new one has the same bits and an id of its own.

    For example:  ulpscope verdict 20261121-1200-dump --float32 pair_in_float32.npz
    """
    target = open_store(store)
    path = target.path_of(run_id)
    load = partial(load_for, model or "", device, revision, trust_remote_code)
    dumps = {"rerun": rerun, "neighbours": neighbours, "float32": float32, "floor": floor}
    if is_sparse(path):
        if any(dumps.values()):
            raise UsageError(
                "--rerun, --neighbours, --float32 and --floor are dumps of complete rows; of what a server sent,"
                " --model alone decides more."
            )
        _verdict_of_lists(target, sparse_of(path), model, dtype, load, name, as_json_)
        return
    if dtype is not None:
        raise UsageError("--dtype is for runs of what a server sent; a dump has its compute dtype.")
    with RunReader(path) as run:
        if not (any(dumps.values()) or model or mixture_of_experts):
            _tell(target, run.run_id, as_json_)
            return
        check_upload(run)
        if model and not all(prompt.token_ids for prompt in run.header.prompts):
            raise UsageError(
                "This dump has no token_ids, so no model can run on its tokens; save them with the logits."
            )
        with stoppable(), steps() as say:
            measured = None
            if model:
                say("loading the model")
                from ..inference.controls.model_controls import model_controls

                measured = model_controls(load(run.header.compute_dtype), run, float32=float32 or (), on_progress=say)
            controls = measure_controls(
                run,
                **{what: paths or () for what, paths in dumps.items()},
                has_experts=mixture_of_experts,
                model=measured,
                on_progress=partial(say, "reading controls"),
            )
            names = [f"{what} {' and '.join(path.name for path in paths)}" for what, paths in dumps.items() if paths]
            names += [f"model {model}"] if model else []
            names += ["a mixture of experts"] if mixture_of_experts else []
            judged = judge_stored(target, run, controls, name=name, note=f"Controls: {', '.join(names)}.")
        _tell(target, judged, as_json_)


def load_for(model: str, device: str | None, revision: str | None, trust_remote_code: bool, dtype: str) -> LoadedModel:
    from ..inference.models.model import load_model

    return load_model(model, dtype=dtype, device=device, revision=revision, trust_remote_code=trust_remote_code)


def dtype_of_lists(run: SparseRun) -> str:
    """Return the compute dtype that a run's values show, else float32."""
    dtypes = {pair.compute_dtype for pair in run.pairs} - {None}
    return (dtypes.pop() if len(dtypes) == 1 else None) or "float32"


def _verdict_of_lists(
    store: Store, run: SparseRun, model: str | None, dtype: str | None, load: Load, name: str | None, as_json_: bool
) -> None:
    """Print the verdicts; with a model, measure its floor on the run's tokens and store the run judged."""
    run_id, verdicts = run.run_id, run.verdicts
    if model:
        with stoppable(), steps() as say:
            say("loading the model")
            from ..inference.controls.sparse_floor import floor_of_lists

            loaded = load(dtype or dtype_of_lists(run))
            earlier = {one.variant: one for one in verdicts}
            judged: list[SparseVerdict] = []
            for pair in run.pairs:
                before = earlier.get(pair.variant)
                if before is not None and before.name == UNDECIDED and pair.differing:
                    before = judge_with_floor(before, pair, floor_of_lists(loaded, run, pair, on_progress=say))
                judged += [before] if before is not None else []
            note = f"{run.header.note} Floor: model {model}.".strip()
            header = replace(run.header, name=name or f"{run.header.name}, judged", created=None, note=note)
            run_id = write_sparse_run(store, header, run.sides, pairs=run.pairs, verdicts=judged)
            store.mark_judged(run.run_id, run_id)
            verdicts = tuple(judged)
    if as_json_:
        reference = run.sides[0].name
        pairs = [
            {"reference": reference, "variant": one.variant, "verdict": one.name, "because": one.because}
            for one in verdicts
        ]
        print_json({"run_id": run_id, "pairs": pairs})
        return
    out.print(run_id, markup=False)
    for one in verdicts:
        print_text(f"{one.variant}: {one.name}, {one.because}")


def _tell(store: Store, run_id: str, as_json_: bool) -> None:
    with RunReader(store.path_of(run_id)) as run:
        pairs = verdicts_as_json(run)
        if as_json_:
            print_json({"run_id": run.run_id, "pairs": pairs})
        else:
            out.print(run.run_id, markup=False)
            print_verdicts(run, pairs)
            for pair in pairs:
                if pair["verdict"] is None:
                    out.print(f"not judged  {pair['variant']} against {pair['reference']}", markup=False)
    if any(pair["verdict"] in FAILING for pair in pairs):
        raise typer.Exit(1)


def verdicts_as_json(run: RunReader) -> list[dict[str, Any]]:
    """Return the verdicts as JSON: one object a pair, with its evidence and simple causes."""
    found = []
    with steps() as say:
        for pair in run.pairs:
            say("looking for causes", pair.index, len(run.pairs), "pairs")
            causes = [asdict(cause) for cause in explain_pair(run, pair.index).causes] if run.has_all_logits else None
            found.append(
                {
                    "reference": pair.reference,
                    "variant": pair.variant,
                    "verdict": pair.verdict,
                    "because": pair.because,
                    "noise_ratio": pair.noise_ratio,
                    "causes": causes,
                    "evidence": [row.to_json() for row in run.evidence(pair.index)],
                }
            )
    return found


def print_verdicts(run: RunReader, pairs_as_json: Sequence[dict[str, Any]]) -> None:
    """Print simple causes, and of each judged pair the verdict, the sentence for it and its evidence."""
    for pair, as_json_ in zip(run.pairs, pairs_as_json, strict=True):
        sides = f"{pair.variant} against {pair.reference}"
        for cause in as_json_["causes"] or ():
            if cause["says"] not in (pair.because or ""):
                print_text(f"{cause['name']}  {sides}: {cause['says']}")
        if pair.verdict is None:
            continue
        out.print(f"[bold]{escape(pair.verdict)}[/bold]  {escape(sides)}: {escape(pair.because or '')}")
        table = Table()
        for column in ("rung", "outcome", "what it says", "control"):
            table.add_column(column, overflow="fold")
        for row in run.evidence(pair.index):
            style = _STYLES.get(row.outcome, "")
            outcome = f"[{style}]{row.outcome}[/{style}]" if style else row.outcome
            table.add_row(row.rung, outcome, escape(row.says), escape(row.control))
        out.print(table)
