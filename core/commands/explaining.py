"""`explain`: simple causes of the differences of a run, before anybody speaks of rounding or of a bug."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Annotated

import typer

from ..errors import UsageError
from ..judging.explain.causes import Explanation, explain_lists, explain_pair
from ..judging.explain.rows import rows_of_lists, rows_of_run
from ..judging.explain.scoring import Cause
from ..judging.judge import FOREIGN
from ..runs.file.evidence import Evidence, ListFloorFigures
from ..runs.reader import RunReader
from ..runs.store.store import open_store
from ..runs.topk.pairing import compare_sides
from . import options
from .terminal.console import Tell, out, print_json, print_text, steps, stoppable
from .verdicts import Load, load_for

Explanations = dict[tuple[str, str], Explanation]

NONE_FOUND = "no simple cause found."


def explain(
    run_id: options.Run,
    variant: Annotated[str | None, typer.Option(help="Explain this variant only.")] = None,
    model: Annotated[str | None, typer.Option(help="Ask this model: are both sides what it computes?")] = None,
    dtype: Annotated[str | None, typer.Option(help="With --model: the dtype of the sides. Default: as shown.")] = None,
    device: options.Device = None,
    revision: options.Revision = None,
    trust_remote_code: options.Trust = False,
    store: options.Store = None,
    as_json_: options.Json = False,
) -> None:
    """Look for a simple cause of a difference: a temperature, a shift, a penalty, a mask, a BOS, a coarser dtype.

    Each is fitted to half of the positions and scored on the other half; what is not well above the bar of
    docs/explanation/causes.md is not named, and "no simple cause found" is an answer.
    """
    if not model and any((dtype, device, revision, trust_remote_code)):
        raise UsageError("--dtype, --device, --revision and --trust-remote-code need --model.")
    path = open_store(store).path_of(run_id)
    load = partial(load_for, model, device, revision, trust_remote_code) if model else None
    with stoppable(), steps() as say, RunReader(path) as run:
        explanations = _explained(run, variant, dtype, load, say)
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
        out.print(f"{name} against {reference}:", markup=False)
        for cause in explanation.causes:
            print_text(f"  {cause.name}: {cause.text}")
        if not explanation.causes:
            print_text(f"  {NONE_FOUND} {explanation.says}".rstrip())


def _explained(run: RunReader, variant: str | None, dtype: str | None, load: Load | None, say: Tell) -> Explanations:
    tokens = [prompt.token_ids for prompt in run.header.prompts]
    lists = () if run.header.k is None else run.lists()
    if load is not None and not all(tokens):
        raise UsageError("This run does not hold the tokens that were read, so no model can read them.")
    loaded = load(dtype or run.header.compute_dtype or "float32") if load is not None else None
    explanations: Explanations = {}
    for number, pair in enumerate(run.pairs):
        say("looking for causes", number, len(run.pairs), "pairs")
        if variant not in (None, pair.variant):
            continue
        weights: list[Cause] = []
        if lists:
            both = lists[0], lists[pair.index + 1]
            compared = compare_sides(*both)
            explanation = explain_lists(compared, *both)
        else:
            explanation = explain_pair(run, pair.index)
        if loaded is not None and (pair.summary.finite if lists else not pair.summary.bit_identical):
            from ..inference.controls.list_floor import floor_of_rows

            rows = rows_of_lists(compared, *both) if lists else rows_of_run(run, pair.index)
            weights = _weights(floor_of_rows(loaded, tokens, rows, say))
        causes = [*weights, *explanation.causes]
        if lists:
            causes.sort(key=lambda cause: cause.name not in ("masking", "placeholders"))
        explanations[pair.reference, pair.variant] = replace(explanation, causes=causes)
    return explanations


def _weights(floor: Evidence) -> list[Cause]:
    """Return the cause that a side is not what the model computes, if it is one. floor: row of the model's floor."""
    figures = floor.figures
    if not isinstance(figures, ListFloorFigures):
        return []
    distances = figures.reference_noise_ratio, figures.variant_noise_ratio
    if max(distances) <= FOREIGN:
        return []
    name = "another model" if min(distances) > FOREIGN else "other weights"
    parameters = {"floors_of_reference": distances[0], "floors_of_variant": distances[1]}
    return [Cause(name, floor.says, parameters)]
