"""`explain`: simple causes of the differences of a run, before anybody speaks of rounding or of a bug."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import UsageError
from ..judging.explain.causes import Explanation, explain_lists, explain_pair
from ..judging.explain.rows import PairRows, rows_of_lists, rows_of_run
from ..judging.explain.scoring import Cause
from ..judging.judge_lists import other_weights
from ..runs.reader import RunReader
from ..runs.store.store import open_store
from ..runs.topk.pairing import compare_sides
from . import options
from .terminal.console import Tell, out, print_json, print_text, steps, stoppable
from .verdicts import Load, load_for

if TYPE_CHECKING:  # torch is for those who run a model
    from ..inference.models.model import LoadedModel

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
    docs/causes.md is not named, and "no simple cause found" is an answer.
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
    if load is not None and not lists and not all(tokens):
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
            if loaded is not None:
                from ..inference.controls.list_floor import tokens_read

                weights = _weights(loaded, tokens_read(compared, both[0]), rows_of_lists(compared, *both), say)
        else:
            explanation = explain_pair(run, pair.index)
            if loaded is not None and not pair.summary.bit_identical:
                weights = _weights(loaded, tokens, rows_of_run(run, pair.index), say)
        causes = [*weights, *explanation.causes]
        if lists:
            causes.sort(key=lambda cause: cause.name not in ("masking", "placeholders"))
        explanations[pair.reference, pair.variant] = replace(explanation, causes=causes)
    return explanations


def _weights(loaded: LoadedModel, tokens: list[tuple[int, ...]], rows: PairRows, say: Tell) -> list[Cause]:
    """Return the cause that a side has other weights than the model, if it is one."""
    from ..inference.controls.list_floor import floor_of_rows

    last = [
        max((row.position for row in rows.rows if row.prompt == prompt), default=0) for prompt in range(len(tokens))
    ]
    read = [ids[: end + 1] for ids, end in zip(tokens, last, strict=True)]
    cause = other_weights(rows.names, floor_of_rows(loaded, read, rows.rows, rows.values, on_progress=say))
    return [] if cause is None else [cause]
