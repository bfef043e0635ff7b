"""`verdict`: what a stored run's verdict is, and for an upload what its controls make of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from ..errors import UsageError
from ..judging.explain.stored import causes_of_pair
from ..judging.rejudge import check_upload, judge_stored
from ..judging.uploaded_controls import ModelControls, measure_controls
from ..runs.file.evidence import FAILED, MISSING
from ..runs.file.records import FAILING
from ..runs.reader import RunReader
from ..runs.sparse_run import is_sparse
from ..runs.store.store import Store, open_store
from .request_options import DeviceOption, RevisionOption, TrustOption
from .sparse.verdicts import verdict_of_lists
from .terminal.console import JsonOption, StoreOption, Tell, out, print_json, steps, stoppable

Files = list[Path] | None
_STYLES = {FAILED: "bold red", MISSING: "yellow"}


def verdict(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="Id of a run, or a unique beginning of it.")],
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
            help=(
                "A float32 dump of three or more ways to compute the same logits (batch sizes, kernels); the first is"
                " what the others "
                "are compared with."
            )
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
    device: DeviceOption = None,
    revision: RevisionOption = None,
    trust_remote_code: TrustOption = False,
    name: Annotated[
        str | None, typer.Option(help="What to call the judged run. Default: its name, and 'judged'.")
    ] = None,
    store: StoreOption = None,
    as_json_: JsonOption = False,
) -> None:
    """Print a run's verdict with its evidence; with controls, judge an uploaded run and store it with the new verdict.

    Exit code 1: a pair is `bug suspected`, `nondeterministic` or `invalid dump`, as with `compare --fail-on verdict`.
    The old run stays; the new one has the same bits and an id of its own.

    For example:  ulpscope verdict 20261121-1200-dump --float32 pair_in_float32.npz
    """
    target = open_store(store)
    path = target.path_of(run_id)
    if is_sparse(path):
        if rerun or neighbours or float32 or floor:
            raise UsageError(
                "--rerun, --neighbours, --float32 and --floor are dumps of complete rows; of what a server sent,"
                " --model alone decides more."
            )
        verdict_of_lists(target, path, model, dtype, device, revision, trust_remote_code, name, as_json_)
        return
    if dtype is not None:
        raise UsageError("--dtype is for runs of what a server sent; a dump has its compute dtype.")
    with RunReader(path) as run:
        if any((rerun, neighbours, float32, floor, model, mixture_of_experts)):
            check_upload(run)
            with stoppable(), steps() as say:
                told = None
                if model:
                    told = model_controls_of(run, model, device, revision, trust_remote_code, float32 or (), say)
                controls = measure_controls(
                    run,
                    rerun=rerun or (),
                    neighbours=neighbours or (),
                    float32=float32 or (),
                    floor=floor or (),
                    has_experts=mixture_of_experts,
                    model=told,
                    on_progress=lambda done, total: say("reading controls", done, total),
                )
                given = {"rerun": rerun, "neighbours": neighbours, "float32": float32, "floor": floor}
                said = [f"{what} {' and '.join(path.name for path in paths)}" for what, paths in given.items() if paths]
                said += [f"model {model}"] if model else []
                said += ["a mixture of experts"] if mixture_of_experts else []
                note = f"Controls: {', '.join(said)}."
                judged = judge_stored(target, run, controls, name=name, note=note)
            _tell(target, judged, as_json_)
        else:
            _tell(target, run.run_id, as_json_)


def model_controls_of(
    run: RunReader,
    model: str,
    device: str | None,
    revision: str | None,
    trust_remote_code: bool,
    float32: Sequence[Path],
    say: Tell,
) -> ModelControls:
    say("loading the model")
    from ..inference.controls.model_controls import model_controls
    from ..inference.models.model import load_model

    header = run.header
    if not all(prompt.token_ids for prompt in header.prompts):  # before gigabytes of weights are read
        raise UsageError("this dump has no token_ids, so no model can be run on its tokens; save them with the logits.")
    loaded = load_model(
        model, dtype=header.compute_dtype, device=device, revision=revision, trust_remote_code=trust_remote_code
    )
    return model_controls(loaded, run, float32=float32, on_progress=say)


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
    """Verdicts of the pairs as JSON: one object a pair, its evidence and what simply explains it included."""
    found = []
    with steps() as say:
        for pair in run.pairs:
            say("looking for causes", pair.index, len(run.pairs), "pairs")
            found.append(
                {
                    "reference": pair.reference,
                    "variant": pair.variant,
                    "verdict": pair.verdict,
                    "because": pair.because,
                    "noise_ratio": pair.noise_ratio,
                    "causes": (
                        [asdict(cause) for cause in causes_of_pair(run, pair.index)] if run.has_all_logits else None
                    ),
                    "evidence": [row.to_json() for row in run.evidence(pair.index)],
                }
            )
    return found


def print_verdicts(run: RunReader, told: Sequence[dict[str, Any]]) -> None:
    """Each judged pair: the verdict, the sentence for it, and a row for every piece of evidence; and of every pair what
    simply explains it. told: the pairs as JSON.
    """
    for pair, as_json_ in zip(run.pairs, told, strict=True):
        for cause in as_json_["causes"] or ():
            if cause["says"] in (pair.because or ""):
                continue
            said = f"{cause['name']}  {pair.variant} against {pair.reference}: {cause['says']}"
            out.print(said, markup=False, soft_wrap=True)
        if pair.verdict is None:
            continue
        out.print(
            f"[bold]{escape(pair.verdict)}[/bold]  {escape(pair.variant)} against {escape(pair.reference)}:"
            f" {escape(pair.because or '')}"
        )
        table = Table()
        for column in ("rung", "outcome", "what it says", "control"):
            table.add_column(column, overflow="fold")
        for row in run.evidence(pair.index):
            style = _STYLES.get(row.outcome, "")
            outcome = f"[{style}]{row.outcome}[/{style}]" if style else row.outcome
            table.add_row(row.rung, outcome, escape(row.says), escape(row.control))
        out.print(table)
