"""`explain`: common causes of a run's differences, to rule out before rounding or a bug."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from typer import Argument, Option

from ..cause import Cause
from ..checks.from_model import FOREIGN
from ..checks.list_floor import ListFloorFigures
from ..errors import CaptureError, UsageError
from ..evidence import Evidence
from ..judging.explain.causes import Explanation, explain_lists
from ..judging.explain.rescoring import explain_rescored, floor_evidence
from ..judging.explain.rows import rows_of_lists, rows_of_rollouts, rows_of_run
from ..judging.stored import explain_pair
from ..numerics.arrays import Record
from ..progress import Progress
from ..responses.pairing import compare_sides
from ..runs.reader import RunReader
from ..runs.store.store import open_store
from . import options
from .terminal.console import print_json, print_records, print_text, steps
from .terminal.stopping import stoppable
from .verdicts import Load, check_tokens, load_for

Explanations = dict[tuple[str, str], Explanation]
# parameters of causes that are tables
_TABLES = {
    "noise_floors": "noise floors from each checkpoint",
    "by_agreement": "r by the number of layers with other experts",
}


def explain(
    run_id: options.Run,
    variant: str | None = Option(None, help="Explain this variant only."),
    more: list[str] | None = Argument(
        None, metavar="CHECKPOINT", help="More checkpoints for --trainer."
    ),
    model: list[str] | None = Option(
        None,
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
    device: options.Device = None,
    revision: options.Revision = None,
    trust_remote_code: options.Trust = False,
    store: options.Store = None,
    as_json_: options.Json = False,
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
    checkpoints = [*(model or ()), *(more or ())]
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
    lists = () if run.header.k is None or is_rollout else run.responses()
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
    shared = os.path.commonprefix([part[:-1] for part in parts])  # noqa: RUF071  # of lists
    return ["/".join(part[len(shared) :]) for part in parts]


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
