"""An uploaded run judged with controls: a new run of the same bits, beside the old one."""

from __future__ import annotations

from core.errors import UsageError
from core.runs.figures import Figures
from core.runs.reader import RunReader
from core.runs.revision import Revision
from core.runs.store import Store
from core.uploads.controls import Controls
from core.uploads.filling import Filling
from core.uploads.judging import judge_upload
from core.uploads.validity import validity

_CHUNK_BYTES = 32 << 20


def check_upload(run: RunReader) -> None:
    """UsageError for a capture, which is judged with its model."""
    if run.header.provenance.kind != "upload":
        raise UsageError(f"run '{run.run_id}' is a capture; `python -m core judge` captures its paths again with every control.")


def judge_stored(store: Store, run: RunReader, controls: Controls, *, name: str | None = None, note: str = "") -> str:
    """Store `run` once more with the verdict that its controls come to; returns the new run's id. The old run stays as it is."""
    check_upload(run)
    figures = run.figures
    fillings = [_filling(figures, side) for side in range(len(run.sides))]
    checks = [validity(figures, pair.index, (fillings[0], fillings[pair.index + 1])) for pair in run.pairs]
    generations = [run.generations[index] for index in sorted(run.generations)]
    with Revision(store, run, name or f"{run.header.name}, judged") as revision:
        found = judge_upload(figures, checks, generations, revision.run_id, controls)
        return revision.finish(found, " ".join(part for part in (f"Judged from run {run.run_id}.", note) if part))


def _filling(figures: Figures, side: int) -> Filling:
    header = figures.header
    filling = Filling(header.format)
    at_once = max(1, _CHUNK_BYTES // (header.vocab * header.format.itemsize))
    for start in range(0, header.rows, at_once):
        filling.see(figures.read_rows(side, start, min(start + at_once, header.rows)))
    return filling
