"""`explain`: simple causes of the differences of a run, before anybody speaks of rounding or of a bug."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from ...errors import UsageError
from ...judging.explain.hypotheses import Cause, causes_of
from ...judging.explain.rows import rows_of_lists, rows_of_run
from ...runs.reader import RunReader
from ...runs.sparse_run import is_sparse, sparse_of
from ...runs.store.store import open_store
from ..terminal.console import JsonOption, StoreOption, out, print_json, steps

NONE_FOUND = "no simple cause found."


def explain(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="Id of a run, or a unique beginning of it.")],
    variant: Annotated[str | None, typer.Option(help="Explain this variant only.")] = None,
    store: StoreOption = None,
    as_json_: JsonOption = False,
) -> None:
    """Look for a simple cause of a difference: a temperature, a shift, a penalty, a mask, a BOS, a coarser dtype.

    Each is fitted to half of the positions and scored on the other half; what is not well above the bar of
    docs/causes.md is not named, and "no simple cause found" is an answer.
    """
    path = open_store(store).path_of(run_id)
    with steps() as say:
        found = _of_lists(path, variant) if is_sparse(path) else _of_run(path, variant, say)
    if variant is not None and not found:
        raise UsageError(f"no variant '{variant}' in run '{path.stem}'.")
    if as_json_:
        pairs = [
            {"reference": names[0], "variant": names[1], "causes": [asdict(cause) for cause in causes]}
            for names, causes in found.items()
        ]
        print_json({"run_id": path.stem, "pairs": pairs})
        return
    for names, causes in found.items():
        out.print(f"{names[1]} against {names[0]}:", markup=False)
        for cause in causes:
            out.print(f"  {cause.name}: {cause.says}", markup=False, soft_wrap=True)
        if not causes:
            out.print(f"  {NONE_FOUND}", markup=False)


def _of_run(path: Path, variant: str | None, say: Any) -> dict[tuple[str, str], list[Cause]]:
    found = {}
    with RunReader(path) as run:
        for number, pair in enumerate(run.pairs):
            say("looking for causes", number, len(run.pairs), "pairs")
            if variant in (None, pair.variant) and not pair.summary.bit_identical:
                found[pair.reference, pair.variant] = causes_of(rows_of_run(run, pair.index))
            elif variant in (None, pair.variant):
                found[pair.reference, pair.variant] = []
    return found


def _of_lists(path: Path, variant: str | None) -> dict[tuple[str, str], list[Cause]]:
    run = sparse_of(path)
    return {
        (pair.reference, pair.variant): causes_of(rows_of_lists(pair, run.sides[0], side))
        for pair, side in zip(run.pairs, run.sides[1:], strict=True)
        if variant in (None, pair.variant)
    }
