"""`verdict`: print a stored run's verdict, or judge an upload or server responses with controls.

`explain`: common causes of a run's differences, to rule out before rounding or a bug.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer import Argument, Exit, Option

from ..capture_request import DECLARE, part_and_format
from ..cause import Cause
from ..checks.from_model import FOREIGN
from ..checks.list_floor import ListFloorFigures
from ..errors import CaptureError, UsageError
from ..evidence import Evidence
from ..judging.explain.causes import Explanation, explain_lists
from ..judging.explain.rescoring import explain_rescored, floor_evidence
from ..judging.explain.rows import rows_of_lists, rows_of_rollouts, rows_of_run
from ..judging.lists import judge_with_floor
from ..judging.stored import check_upload, explain_pair, judge_stored, stored_verdict
from ..judging.uploaded_controls import measure_controls
from ..numerics.arrays import Record
from ..progress import Progress
from ..responses.pairing import compare_sides
from ..runs.file.records import StoredPair
from ..runs.new_run import revise
from ..runs.queries.verdicts import answer_of, next_command
from ..runs.reader import RunReader
from ..runs.reports.report_json import plain_number
from ..runs.store.store import Store, open_store
from ..verdict import UNDECIDED, exit_code
from .options import (
    DeviceOption,
    ExactOption,
    JsonOption,
    MixtureOfExpertsOption,
    RevisionOption,
    RunArgument,
    StoreOption,
    TrustOption,
)
from .tables import print_answer, print_checks
from .terminal.console import print_json, print_records, print_text, steps
from .terminal.stopping import stoppable

if TYPE_CHECKING:  # torch is for those who run a model
    from ..inference.models.model import LoadedModel

Files = list[Path]
Load = Callable[[str], "LoadedModel"]
"""dtype -> the model."""
Explanations = dict[tuple[str, str], Explanation]
# parameters of causes that are tables
_TABLES = {
    "noise_floors": "noise floors from each checkpoint",
    "by_agreement": "r by the number of layers with other experts",
}


def verdict(
    run_id: RunArgument,
    rerun: Files = Option([], help="A dump of the same sides, rerun; twice for one file per side."),
    neighbours: Files = Option(
        [],
        "--neighbors",
        "--neighbours",
        help="A dump of the same sides in a batch with other requests.",
    ),
    float32: Files = Option([], "--float32", help="A dump of the same sides, computed in float32."),
    exact: ExactOption = None,
    floor: Files = Option([], help="A float32 dump of three or more equal paths: the noise floor."),
    model: str | None = Option(None, help="Folder, hub id or GGUF: measures the noise floor."),
    declare: list[str] = Option([], help=f"With --model: {DECLARE}"),
    dtype: str | None = Option(None, help="With --model, for server responses: their dtype."),
    mixture_of_experts: MixtureOfExpertsOption = False,
    device: DeviceOption = None,
    revision: RevisionOption = None,
    trust_remote_code: TrustOption = False,
    name: str | None = Option(
        None, help="Name of the judged run. Default: the run's, and 'judged'."
    ),
    store: StoreOption = None,
    as_json_: JsonOption = False,
) -> None:
    """Print a run's verdict and checks; with controls, judge an uploaded run and store it with the
    new verdict.

    Exit code 1: a pair is `bug suspected`, `nondeterministic` or `invalid dump`, as with `compare
    --fail-on verdict`. The old run stays; the new one has the same bits and a new id.

    For example:  ulpscope verdict 20261121-1200-dump --float32 pair_in_float32.npz
    """
    target = open_store(store)
    path = target.path_of(run_id)
    load = partial(load_for, model or "", device, revision, trust_remote_code)
    files = {
        "rerun": rerun,
        "neighbours": neighbours,
        "float32": float32,
        "exact": [exact] if exact else [],
        "floor": floor,
    }
    dumps = {what: paths for what, paths in files.items() if paths}
    for text in declare:
        part_and_format(text)
    if declare and not model:
        raise UsageError("--declare needs --model, which tries the precision.")
    with RunReader(path) as run:
        is_list = run.header.is_list
        if is_list and (dumps or mixture_of_experts or declare):
            raise UsageError(
                "--rerun, --neighbors, --float32, --exact, --floor and --declare are for dumps of"
                " complete logits; for server responses, use --model.",
            )
        if dtype is not None and not is_list:
            raise UsageError("--dtype is for server responses; a dump has its compute dtype.")
        if model:
            check_tokens(run)
        new_id = run.run_id
        # for lists of top tokens a model measures the noise floor, its only control
        if is_list and model:
            new_id = _judge_by_model(target, run, model, load, dtype, name)
        elif dumps or model or mixture_of_experts:
            check_upload(run)
            if model and floor:
                raise UsageError(
                    "Give --floor or --model, not both: the model measures its own noise floor.",
                )
            with stoppable(), steps() as say:
                make_controls = None
                if model:
                    say("loading the model")
                    from ..inference.controls.dump_of_model import model_of_dump
                    from ..inference.controls.precisions.catalogue import parse_precisions

                    make_controls = model_of_dump(
                        load(run.header.compute_dtype),
                        run,
                        float32=float32,
                        precisions=parse_precisions(declare),
                        on_progress=say,
                    )
                controls = measure_controls(
                    run,
                    **dumps,
                    has_experts=mixture_of_experts,
                    with_model=bool(model),
                    on_progress=say,
                )
                names = []
                for what, paths in dumps.items():
                    names.append(f"{what} {' and '.join(path.name for path in paths)}")
                if model:
                    names.append(f"model {model}")
                if mixture_of_experts:
                    names.append("a mixture of experts")
                new_id = judge_stored(
                    target,
                    run,
                    controls,
                    make_controls=make_controls,
                    name=name,
                    note=f"Controls: {', '.join(names)}.",
                )
    if not as_json_:
        print_text(new_id)
    if code := tell_verdicts(target, new_id, as_json_):
        raise Exit(code)


def explain(
    run_id: RunArgument,
    variant: str | None = Option(None, help="Explain this variant only."),
    more: list[str] = Argument([], metavar="CHECKPOINT", help="More checkpoints for --trainer."),
    model: list[str] = Option(
        [],
        "--model",
        "--trainer",
        metavar="CHECKPOINT",
        help=(
            "Score the tokens by this checkpoint, or several of trainer vs. rollout: which side"
            " is off?"
        ),
    ),
    dtype: str | None = Option(
        None,
        help=(
            "With --model: dtype of the sides. Default: as detected; of a rollout bfloat16, and"
            " float32."
        ),
    ),
    device: DeviceOption = None,
    revision: RevisionOption = None,
    trust_remote_code: TrustOption = False,
    store: StoreOption = None,
    as_json_: JsonOption = False,
) -> None:
    """Check a difference for well-known causes: temperature, shifted rows, a penalty, a mask,
    placeholders.

    Each is fitted to half of the positions and scored on the other half. Causes below the
    thresholds of docs/explanation/causes.md are not reported.
    """
    if not model and any((more, dtype, device, revision, trust_remote_code)):
        raise UsageError(
            "Checkpoints, --dtype, --device, --revision and --trust-remote-code need --model or"
            " --trainer.",
        )
    # Threads of torch that wait for each other spin otherwise: half of the time of short responses.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    path = open_store(store).path_of(run_id)
    checkpoints = [*model, *more]
    # each is looked for before the first is loaded, which may take minutes
    if len(checkpoints) > 1:
        from ..inference.models.source import source_of

        for name in checkpoints:
            source_of(name, revision)
    about = (device, revision, trust_remote_code)
    loads = {name: partial(load_for, name, *about) for name in checkpoints}
    with stoppable(), steps() as say, RunReader(path) as run:
        explanations = explanations_of(run, say, variant, dtype, loads)
    if variant is not None and not explanations:
        raise UsageError(f"no variant '{variant}' in run '{path.stem}'.")
    if as_json_:
        print_json(explanations_json(path.stem, explanations))
        return
    for (reference, name), explanation in explanations.items():
        print_text(f"{name} vs {reference}:")
        for cause in explanation.causes:
            print_text(f"  {cause.name}: {cause.text}")
            for key, title in _TABLES.items():
                print_records(cause.parameters.get(key, ()), title)
        if not explanation.causes:
            print_text(f"  no common cause found. {explanation.says}".rstrip())


def check_tokens(run: RunReader) -> None:
    """UsageError if no model can compute the logits of a run."""
    if not run.header.has_tokens:
        raise UsageError("--model computes logits, and this run holds other values.")
    if not all(prompt.token_ids for prompt in run.header.prompts):
        raise UsageError(
            "This run has no token_ids, so no model can run on its tokens; save them with the"
            " logits.",
        )


def load_for(
    model: str,
    device: str | None,
    revision: str | None,
    trust_remote_code: bool,
    dtype: str,
) -> LoadedModel:
    from ..inference.models.model import load_model

    return load_model(
        model,
        dtype=dtype,
        device=device,
        revision=revision,
        trust_remote_code=trust_remote_code,
    )


def _judge_by_model(
    store: Store,
    run: RunReader,
    model: str,
    load: Load,
    dtype: str | None,
    name: str | None,
) -> str:
    """Measure a model's noise floor on a run of lists, and store the run judged.

    Return the new run's id.
    """
    prompts = [prompt.token_ids for prompt in run.header.prompts]
    with stoppable(), steps() as say:
        say("loading the model")
        from ..inference.controls.list_floor import rescore

        loaded = load(dtype or run.header.compute_dtype or "float32")
        sides, verdicts = run.responses(), []
        for pair in run.pairs:
            verdict = stored_verdict(run, pair)
            if verdict.name == UNDECIDED and pair.summary.neq:
                both = sides[0], sides[pair.index + 1]
                pairing = compare_sides(*both)
                rows = rows_of_lists(pairing, *both, most=len(pairing.positions))
                floor = floor_evidence(rescore(loaded, prompts, rows, say))
                verdict = judge_with_floor(verdict, pairing, both, floor)
            verdicts.append(verdict)
        return revise(
            store,
            run,
            name or f"{run.header.name}, judged",
            verdicts,
            f"Floor: model {model}.",
        )


def tell_verdicts(store: Store, run_id: str, as_json_: bool) -> int:
    """Print the verdict, simple causes and checks of every pair of a run. Return the exit code."""
    with RunReader(store.path_of(run_id)) as run:
        if as_json_:
            print_json({"run_id": run.run_id, "pairs": verdicts_as_json(run)})
        else:
            for pair, causes in _with_causes(run):
                answer = answer_of(run, pair)
                print_answer(answer, pair)
                for cause in causes or ():
                    # the sentence of the verdict may name the cause already
                    if cause.says not in answer.sentence:
                        print_text(f"{cause.name}: {cause.text}")
                print_checks(answer)
        return exit_code(pair.verdict for pair in run.pairs)


def verdicts_as_json(run: RunReader) -> list[Record]:
    """Return the verdicts as JSON: one object per pair, with its checks and common causes."""
    return [
        {
            "reference": pair.reference,
            "variant": pair.variant,
            "verdict": pair.verdict,
            "because": pair.because,
            "first_place": pair.first_place,
            "noise_ratio": plain_number(pair.noise_ratio),
            "next_command": next_command(run, pair) or None,
            "causes": None if causes is None else [cause.to_json() for cause in causes],
            "evidence": [row.to_json() for row in run.evidence(pair.index)],
        }
        for pair, causes in _with_causes(run)
    ]


def _with_causes(run: RunReader) -> Iterator[tuple[StoredPair, Sequence[Cause] | None]]:
    """Yield every pair with its common causes, None if the run does not hold its logits."""
    with steps() as say:
        for pair in run.pairs:
            say("looking for causes", pair.index, len(run.pairs), "pairs")
            yield pair, explain_pair(run, pair.index).causes if run.has_all_logits else None


def explanations_json(run_id: str, explanations: Explanations) -> Record:
    pairs = [
        {"reference": reference, "variant": name, **explanation.to_json()}
        for (reference, name), explanation in explanations.items()
    ]
    return {"run_id": run_id, "pairs": pairs}


def explanations_of(
    run: RunReader,
    say: Progress,
    variant: str | None = None,
    dtype: str | None = None,
    loads: Mapping[str, Load] | None = None,
) -> Explanations:
    """Return the causes of every pair, or of one. loads: of the checkpoints that score tokens."""
    tokens = [prompt.token_ids for prompt in run.header.prompts]
    is_rollout = run.has_rollouts
    lists = () if not run.header.is_list or is_rollout else run.responses()
    loaded = None
    if loads and is_rollout:
        pair = run.pairs[0]
        dtypes = list(dict.fromkeys((dtype or "bfloat16", "float32")))
        return {(pair.reference, pair.variant): _explain_rollout(run, dtypes, loads, say)}
    if loads:
        check_tokens(run)
        if len(loads) > 1:
            raise UsageError("Several checkpoints are for trainer vs. rollout; give one.")
        (load,) = loads.values()
        loaded = load(dtype or run.header.compute_dtype or "float32")
    explanations: Explanations = {}
    for number, pair in enumerate(run.pairs):
        say("looking for causes", number, len(run.pairs), "pairs")
        if variant not in (None, pair.variant):
            continue
        rows: Any = None
        if lists:
            both = lists[0], lists[pair.index + 1]
            pairing = compare_sides(*both)
            explanation = explain_lists(pairing, *both)
            if pair.summary.finite:
                rows = partial(rows_of_lists, pairing, *both)
        else:
            explanation = explain_pair(run, pair.index)
            if not pair.summary.bit_identical:
                rows = partial(rows_of_run, run, pair.index)
        causes = explanation.causes
        if loaded is not None and rows is not None:
            from ..inference.controls.list_floor import rescore

            scores = rescore(loaded, tokens, rows(), say)
            causes = [*_weights(floor_evidence(scores)), *causes]
        if lists:
            first = ("masking", "renormalized", "placeholders")
            causes = sorted(causes, key=lambda cause: cause.name not in first)
        explanations[pair.reference, pair.variant] = replace(explanation, causes=causes)
    return explanations


def _explain_rollout(
    run: RunReader,
    dtypes: Sequence[str],
    loads: Mapping[str, Load],
    say: Progress,
) -> Explanation:
    """Compare a rollout and a trainer with every checkpoint in these dtypes, one in memory at a
    time.
    """
    from ..inference.controls.list_floor import rescore

    sequences, rows = rows_of_rollouts(run)
    if not rows.rows:
        raise UsageError("No token of the loss has a log-probability on both sides.")
    scores, notes = [], []
    for name, label in zip(loads, _labels(list(loads)), strict=True):
        for dtype in dtypes:
            say(f"loading {label} in {dtype}")
            try:
                one = replace(rescore(loads[name](dtype), sequences, rows, say), model=label)
            except CaptureError as error:
                if dtype == dtypes[0]:
                    raise
                # a machine may have no room for the model in float32, for instance
                notes.append(f"Not in {dtype}: {error}")
                continue
            if one.has_floor:
                scores.append(one)
            else:
                notes.append(floor_evidence(one).says)
    explanation = explain_pair(run, 0)
    causes = explain_rescored(scores) if scores else []
    names = {cause.name for cause in causes}
    causes += [cause for cause in explanation.causes if cause.name not in names]
    return Explanation(causes, " ".join([explanation.says, *notes]))


def _labels(names: Sequence[str]) -> list[str]:
    """Return paths or hub ids without the folders that they share: `step_40/actor`."""
    parts = [name.rstrip("/").split("/") for name in names]
    while len({part[0] for part in parts}) == 1 and all(len(part) > 1 for part in parts):
        parts = [part[1:] for part in parts]
    return ["/".join(part) for part in parts]


def _weights(floor: Evidence) -> list[Cause]:
    """Return the cause that a side has other weights, if it applies. floor: the model's noise floor
    check.
    """
    figures = floor.figures
    if not isinstance(figures, ListFloorFigures):
        return []
    distances = figures.reference_noise_ratio, figures.variant_noise_ratio
    if max(distances) <= FOREIGN:
        return []
    name = "another model" if min(distances) > FOREIGN else "other weights"
    parameters = {"floors_of_reference": distances[0], "floors_of_variant": distances[1]}
    return [Cause(name, floor.says, parameters)]
