"""`verdict` of a run of lists: what is stored, or with `--model` what its rounding floor makes of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ...judging.judge_sparse import judge_with_floor
from ...runs.file.records import UNDECIDED
from ...runs.sparse_run import SparseVerdict, sparse_of, write_sparse_run
from ...runs.store.store import Store
from ..terminal.console import out, print_json, steps, stoppable


def verdict_of_lists(
    store: Store,
    path: Path,
    model: str | None,
    dtype: str | None,
    device: str | None,
    revision: str | None,
    trust_remote_code: bool,
    name: str | None,
    as_json_: bool,
) -> None:
    """Print the verdicts; with a model, measure its floor on the run's tokens and store the run judged, under a new id.

    dtype: that the server computes in; None: the one that the values show, else float32.
    """
    run = sparse_of(path)
    run_id, verdicts = run.run_id, run.verdicts
    if model:
        with stoppable(), steps() as say:
            say("loading the model")
            from ...inference.controls.sparse_floor import floor_of_lists
            from ...inference.models.model import load_model

            dtypes = {pair.compute_dtype for pair in run.pairs} - {None}
            shown = dtypes.pop() if len(dtypes) == 1 else None
            loaded = load_model(
                model,
                dtype=dtype or shown or "float32",
                device=device,
                revision=revision,
                trust_remote_code=trust_remote_code,
            )
            earlier = {found.variant: found for found in verdicts}
            judged: list[SparseVerdict] = []
            for pair in run.pairs:
                before = earlier.get(pair.variant)
                if before is None or before.name != UNDECIDED or not pair.differing:
                    judged += [before] if before is not None else []
                    continue
                judged.append(judge_with_floor(before, pair, floor_of_lists(loaded, run, pair, on_progress=say)))
            header = replace(run.header, name=name or f"{run.header.name}, judged", created=None)
            note = f"{header.note} Floor: model {model}.".strip()
            run_id = write_sparse_run(store, replace(header, note=note), run.sides, pairs=run.pairs, verdicts=judged)
            store.mark_judged(run.run_id, run_id)
            verdicts = tuple(judged)
    if as_json_:
        pairs = [
            {"reference": run.sides[0].name, "variant": found.variant, "verdict": found.name, "because": found.because}
            for found in verdicts
        ]
        print_json({"run_id": run_id, "pairs": pairs})
        return
    out.print(run_id, markup=False)
    for found in verdicts:
        out.print(f"{found.variant}: {found.name}, {found.because}", markup=False, soft_wrap=True)
