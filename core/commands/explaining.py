"""`explain`: common causes of a run's differences, to rule out before rounding or a bug."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated

import typer

from ..errors import UsageError
from ..judging.explain.causes import Explanation, explain_lists, explain_pair
from ..judging.explain.rollouts import rescored
from ..judging.explain.rows import rows_of_lists, rows_of_rollouts, rows_of_run
from ..judging.explain.scoring import Cause
from ..judging.judge import FOREIGN
from ..runs.file.evidence import Evidence, ListFloorFigures
from ..runs.queries.mismatch import has_rollouts
from ..runs.reader import RunReader
from ..runs.store.store import open_store
from ..runs.topk.pairing import compare_sides
from . import options
from .terminal.console import Tell, out, print_json, print_text, steps
from .terminal.stopping import stoppable
from .verdicts import Load, load_for

Explanations = dict[tuple[str, str], Explanation]

_DTYPES = ("bfloat16", "float32")  # in which a checkpoint rescores the tokens of a rollout
NONE_FOUND = "no common cause found."


def explain(
    run_id: options.Run,
    variant: Annotated[str | None, typer.Option(help="Explain this variant only.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Rescore with this checkpoint: does a side use other weights, and which?")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="With --model: dtype of the sides. Default: as detected.")] = None,
    device: options.Device = None,
    revision: options.Revision = None,
    trust_remote_code: options.Trust = False,
    store: options.Store = None,
    as_json_: options.Json = False,
) -> None:
    """Check a difference for well-known causes: temperature, shifted rows, a penalty, a mask, placeholders.

    Each is fitted to half of the positions and scored on the other half. Causes below the thresholds of
    docs/explanation/causes.md are not reported.
    """
    if not model and any((dtype, device, revision, trust_remote_code)):
        raise UsageError("--dtype, --device, --revision and --trust-remote-code need --model.")
    path = open_store(store).path_of(run_id)
    load = partial(load_for, model, device, revision, trust_remote_code) if model else None
    with stoppable(), steps() as say, RunReader(path) as run:
        explanations = _explain(run, variant, dtype, load, say)
    if variant is not None and not explanations:
        raise UsageError(f"no variant '{variant}' in run '{path.stem}'.")
    if as_json_:
        pairs = [
            {"reference": reference, "variant": name, **explanation.to_json()}
            for (reference, name), explanation in explanations.items()
        ]
        print_json({"run_id": path.stem, "pairs": pairs})
        return
    for (reference, name), explanation in explanations.items():
        out.print(f"{name} vs {reference}:", markup=False)
        for cause in explanation.causes:
            print_text(f"  {cause.name}: {cause.text}")
        if not explanation.causes:
            print_text(f"  {NONE_FOUND} {explanation.says}".rstrip())


def _explain(run: RunReader, variant: str | None, dtype: str | None, load: Load | None, say: Tell) -> Explanations:
    tokens = [prompt.token_ids for prompt in run.header.prompts]
    is_rollout = has_rollouts(run)
    lists = () if run.header.k is None or is_rollout else run.lists()
    if load is not None and not is_rollout and not all(tokens):
        raise UsageError("--model needs the prompts' token ids, which this run does not have.")
    if load is not None and is_rollout:
        names = run.pairs[0].reference, run.pairs[0].variant
        return {names: _explain_rollout(run, (dtype,) if dtype else _DTYPES, load, say)}
    loaded = load(dtype or run.header.compute_dtype or "float32") if load is not None else None
    explanations: Explanations = {}
    for number, pair in enumerate(run.pairs):
        say("looking for causes", number, len(run.pairs), "pairs")
        if variant not in (None, pair.variant):
            continue
        weights: list[Cause] = []
        if lists:
            both = lists[0], lists[pair.index + 1]
            pairing = compare_sides(*both)
            explanation = explain_lists(pairing, *both)
        else:
            explanation = explain_pair(run, pair.index)
        if loaded is not None and (pair.summary.finite if lists else not pair.summary.bit_identical):
            from ..inference.controls.list_floor import floor_of_rows

            rows = rows_of_lists(pairing, *both) if lists else rows_of_run(run, pair.index)
            weights = _weights(floor_of_rows(loaded, tokens, rows, say))
        causes = [*weights, *explanation.causes]
        if lists:
            causes.sort(key=lambda cause: cause.name not in ("masking", "placeholders"))
        explanations[pair.reference, pair.variant] = replace(explanation, causes=causes)
    return explanations


def _explain_rollout(run: RunReader, dtypes: Sequence[str], load: Load, say: Tell) -> Explanation:
    """Compare a rollout and a trainer with a checkpoint in these dtypes, each in its own noise floors."""
    from ..inference.controls.list_floor import floor_of_rows

    sequences, rows = rows_of_rollouts(run)
    floors = {}
    for dtype in dtypes:
        floor = floor_of_rows(load(dtype), sequences, rows, say)
        if isinstance(floor.figures, ListFloorFigures):
            floors[dtype], model = floor.figures, floor.control
    explanation = explain_pair(run, 0)
    if not floors:
        return explanation
    return replace(explanation, causes=[*explanation.causes, rescored(floors, rows.names, model)])


def _weights(floor: Evidence) -> list[Cause]:
    """Return the cause that a side has other weights, if it applies. floor: the model's noise floor check."""
    figures = floor.figures
    if not isinstance(figures, ListFloorFigures):
        return []
    distances = figures.reference_noise_ratio, figures.variant_noise_ratio
    if max(distances) <= FOREIGN:
        return []
    name = "another model" if min(distances) > FOREIGN else "other weights"
    parameters = {"floors_of_reference": distances[0], "floors_of_variant": distances[1]}
    return [Cause(name, floor.says, parameters)]
