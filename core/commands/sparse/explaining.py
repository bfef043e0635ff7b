"""`explain`: simple causes of the differences of a run, before anybody speaks of rounding or of a bug."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...errors import UsageError
from ...judging.explain.hypotheses import Explanation
from ...judging.explain.rows import PairRows, rows_of_lists, rows_of_run
from ...judging.explain.scoring import Cause
from ...judging.explain.stored import explain_lists, explain_pair
from ...judging.judge_sparse import other_weights
from ...runs.reader import RunReader
from ...runs.sparse_run import is_sparse, sparse_of
from ...runs.store.store import open_store
from ..request_options import DeviceOption, RevisionOption, TrustOption
from ..terminal.console import JsonOption, StoreOption, Tell, out, print_json, steps, stoppable

if TYPE_CHECKING:
    from ...inference.models.model import LoadedModel

Load = Callable[[str], "LoadedModel"]
"""the dtype that a run shows -> the model."""
Found = dict[tuple[str, str], Explanation]

NONE_FOUND = "no simple cause found."


def explain(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="Id of a run, or a unique beginning of it.")],
    variant: Annotated[str | None, typer.Option(help="Explain this variant only.")] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Ask this model too, by folder or hub id: are both sides what it computes on the run's tokens?"
        ),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="With --model: the dtype of the sides. Default: as it shows.")
    ] = None,
    device: DeviceOption = None,
    revision: RevisionOption = None,
    trust_remote_code: TrustOption = False,
    store: StoreOption = None,
    as_json_: JsonOption = False,
) -> None:
    """Look for a simple cause of a difference: a temperature, a shift, a penalty, a mask, a BOS, a coarser dtype.

    Each is fitted to half of the positions and scored on the other half; what is not well above the bar of
    docs/causes.md is not named, and "no simple cause found" is an answer.
    """
    if not model and any((dtype, device, revision, trust_remote_code)):
        raise UsageError("--dtype, --device, --revision and --trust-remote-code are of the model that --model names.")
    path = open_store(store).path_of(run_id)
    with stoppable(), steps() as say:
        load = None
        if model:

            def load(shown: str) -> LoadedModel:
                say("loading the model")
                from ...inference.models.model import load_model

                return load_model(
                    model, dtype=dtype or shown, device=device, revision=revision, trust_remote_code=trust_remote_code
                )

        found = _of_lists(path, variant, load, say) if is_sparse(path) else _of_run(path, variant, load, say)
    if variant is not None and not found:
        raise UsageError(f"no variant '{variant}' in run '{path.stem}'.")
    if as_json_:
        pairs = [
            {"reference": names[0], "variant": names[1], **explanation.to_json()}
            for names, explanation in found.items()
        ]
        print_json({"run_id": path.stem, "pairs": pairs})
        return
    for names, explanation in found.items():
        out.print(f"{names[1]} against {names[0]}:", markup=False)
        for cause in explanation.causes:
            out.print(f"  {cause.name}: {cause.says}", markup=False, soft_wrap=True)
        if not explanation.causes:
            out.print(f"  {NONE_FOUND} {explanation.says}".rstrip(), markup=False, soft_wrap=True)


def _of_run(path: Path, variant: str | None, load: Load | None, say: Tell) -> Found:
    found: Found = {}
    with RunReader(path) as run:
        header = run.header
        loaded = load(header.compute_dtype) if load is not None else None
        tokens = [tuple(prompt.token_ids or ()) for prompt in header.prompts]
        if loaded is not None and any(
            len(read) < prompt.positions for read, prompt in zip(tokens, header.prompts, strict=True)
        ):
            raise UsageError("this run does not say which tokens were read, so no model can read them.")
        for number, pair in enumerate(run.pairs):
            say("looking for causes", number, len(run.pairs), "pairs")
            if variant not in (None, pair.variant):
                continue
            explanation = explain_pair(run, pair.index)
            if loaded is not None and not pair.summary.bit_identical:
                weights = _weights(loaded, tokens, rows_of_run(run, pair.index), say)
                explanation = replace(explanation, causes=[*weights, *explanation.causes])
            found[pair.reference, pair.variant] = explanation
    return found


def _of_lists(path: Path, variant: str | None, load: Load | None, say: Tell) -> Found:
    run = sparse_of(path)
    found: Found = {}
    dtypes = {pair.compute_dtype for pair in run.pairs} - {None}
    loaded = load((dtypes.pop() if len(dtypes) == 1 else None) or "float32") if load is not None else None
    for pair, side in zip(run.pairs, run.sides[1:], strict=True):
        if variant in (None, pair.variant):
            rows = rows_of_lists(pair, run.sides[0], side)
            tokens: list[tuple[int, ...]] = []
            if loaded is not None:
                from ...inference.controls.sparse_floor import tokens_read

                tokens = tokens_read(run, pair)
            explanation = explain_lists(pair, run.sides[0], side)
            weights = _weights(loaded, tokens, rows, say)
            causes = sorted([*weights, *explanation.causes], key=lambda cause: cause.name != "placeholders")
            found[rows.names] = replace(explanation, causes=causes)
    return found


def _weights(loaded: LoadedModel | None, tokens: list[tuple[int, ...]], rows: PairRows, say: Tell) -> list[Cause]:
    if loaded is None:
        return []
    from ...inference.controls.sparse_floor import floor_of_rows

    last = [
        max((row.position for row in rows.rows if row.prompt == prompt), default=0) for prompt in range(len(tokens))
    ]
    read = [of_prompt[: end + 1] for of_prompt, end in zip(tokens, last, strict=True)]
    cause = other_weights(rows.names, floor_of_rows(loaded, read, rows.rows, rows.values, on_progress=say))
    return [] if cause is None else [cause]
