"""Store dumps and responses as analyzed, judged runs: one pass over the file, memory bounded by its chunks."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..runs.dumps.dump import Dump, open_dump
from ..runs.file.records import Provenance
from ..runs.reader import RunReader
from ..runs.reports.report_json import PairReport, report_of_run
from ..runs.store.store import Store
from ..runs.topk.alignment import align
from ..runs.topk.files import are_payloads, read_sides
from ..runs.topk.pairing import pairs_of
from ..runs.topk.tables import About, write_lists
from ..runs.topk.tokens import are_tokens, write_tokens
from ..runs.writer import RunWriter
from .constant_rows import Filling
from .dump import judge_upload
from .lists import judge_responses, judge_tokens
from .validity import checks_of

WHOLE_ROWS_ONLY = "--compute-dtype, --reference and --holds are for whole rows of logits, not for server responses."
_Tell = Callable[[int, int], None]  # rows done, rows in all


def ingest(
    store: Store,
    paths: Sequence[Path],
    *,
    name: str | None = None,
    model: str = "",
    run_id: str | None = None,
    on_progress: _Tell = lambda *_: None,
    **taken_as: Any,
) -> str:
    """Check dump files, or responses of engines, and store them as one run; return its id.

    taken_as: compute_dtype, reference and holds of open_dump. DumpError if they cannot be taken, LimitError if there is
    no room for them: nothing is left in the store then.
    """
    title = name or " + ".join(path.stem for path in paths)
    is_tokens = are_tokens(paths)
    if not is_tokens and not are_payloads(paths):
        with open_dump(paths, **taken_as) as dump:
            return store_dump(store, dump, About(title, model), run_id, on_progress)
    if any(taken_as.values()):
        raise UsageError(WHOLE_ROWS_ONLY)
    if is_tokens:
        return write_tokens(store, paths, About(title, model), judge_tokens, run_id=run_id, on_progress=on_progress)
    sides = align(read_sides(paths))
    pairs = pairs_of(sides)
    responses = [response for side in sides for response in side.responses]
    models = {model} if model else {response.model for response in responses if response.model}
    about, rows = About(title, models.pop() if len(models) == 1 else ""), sum(len(each.rows) for each in responses)
    on_progress(rows, rows)
    return write_lists(store, about, sides, pairs, judge_responses(sides, pairs), run_id=run_id)


def store_dump(store: Store, dump: Dump, about: About, run_id: str | None, on_progress: _Tell) -> str:
    """Store an opened dump as a run, with its verdict without controls; return its id."""
    meta = f"meta {dump.meta}" if dump.meta else ""
    note = "; ".join(part for part in (f"compute dtype {dump.dtype_reason}", *dump.warnings, meta) if part)
    header = dump.header(about.name, Provenance(kind="upload", model=about.model, note=note))
    fillings = [Filling(header.format) for _ in header.sides]
    with RunWriter(store, header, run_id=run_id) as writer:
        for row, sides in dump.chunks():
            for index, bits in enumerate(sides):
                writer.write(index, row, bits)
                fillings[index].see(bits)
            on_progress(row + len(sides[0]), dump.rows)
        for generation in dump.generations:
            writer.write_generation(generation)
        figures = writer.figures()
        for verdict in judge_upload(figures, checks_of(figures, fillings), dump.generations):
            writer.write_verdict(verdict)
        return writer.finish()


def judged_report_of_dump(dump: Dump, on_progress: _Tell = lambda *_: None) -> tuple[list[PairReport], list[list[str]]]:
    """Return the report of an opened dump with the verdict that it would be stored with.

    It passes through a store that is gone afterwards; the sentences call the run RUN. StoreError if there is no room.
    """
    with tempfile.TemporaryDirectory(prefix="ulpscope-") as folder:
        store = Store(Path(folder))
        with RunReader(store.path_of(store_dump(store, dump, About("dump"), "RUN", on_progress))) as run:
            return report_of_run(run)
