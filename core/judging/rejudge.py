"""Judge an uploaded run with controls: a new run of the same bits; the old one stays."""

from __future__ import annotations

from ..command_name import COMMAND
from ..errors import StoreError, UsageError
from ..runs.file.evidence import VALIDITY, Verdict
from ..runs.file.records import FloorRows
from ..runs.reader import RunReader, StoredPair
from ..runs.revision import Revision
from ..runs.store.store import Store
from .dump import WithModel, judge_upload
from .uploaded_controls import UploadedControls


def check_upload(run: RunReader) -> None:
    """Raise UsageError for a capture, which is judged with its model."""
    if run.header.provenance.kind != "upload":
        raise UsageError(f"run '{run.run_id}' is a capture; judge its paths with `{COMMAND} judge`.")
    if [pair.index for pair in run.pairs] != list(range(len(run.sides) - 1)):
        raise StoreError(f"run '{run.run_id}': its list of pairs is not that of its sides; the file is damaged.")


def judge_stored(
    store: Store,
    run: RunReader,
    controls: UploadedControls,
    *,
    with_model: WithModel = lambda dump: dump,
    name: str | None = None,
    note: str = "",
) -> str:
    """Store `run` once more with the verdict by its controls, listed in its place; return the new run's id."""
    check_upload(run)
    generations = [run.generations[index] for index in sorted(run.generations)]
    with Revision(store, run, name or f"{run.header.name}, judged") as revision:
        with run.decoding("figures"):
            earlier = [stored_verdict(run, pair) for pair in run.pairs]
            checks = [[row for row in verdict.evidence if row.group == VALIDITY] for verdict in earlier]
            verdicts = judge_upload(run, checks, generations, controls, earlier, with_model)
        new_id = revision.finish(verdicts, f"Judged from run {run.run_id}. {note}".rstrip())
    store.mark_judged(run.run_id, new_id)
    return new_id


def stored_verdict(run: RunReader, pair: StoredPair) -> Verdict:
    floors = []
    for dtype, rows in run.rows("floor_position", pair=pair.index).groupby("compute_dtype", sort=False):
        if len(rows) == run.header.rows:
            floors.append(FloorRows(str(dtype), rows["pair_rms"].to_numpy(float), rows["floor_rms"].to_numpy(float)))
    evidence, ratio, place = tuple(run.evidence(pair.index)), pair.noise_ratio, pair.first_place
    return Verdict(pair.verdict or "", pair.because or "", evidence, ratio, place, tuple(floors), pair.index)
