"""Compare dumps in memory, if they are small: no run file is written, and DuckDB and pandas, which
take longer to load than such a dump to compare, are not needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..command_name import UNSTORED
from ..numerics.constant_rows import Filling
from ..progress import STORING, Progress
from ..rl.array_files import is_batch
from ..runs.dumps.dump import CHUNK_BYTES_TOGETHER, Dump, open_dump
from ..runs.measured import MemoryRun
from .uploaded_controls import judge_dump

if TYPE_CHECKING:
    from ..runs.reader import RunReader

_LONGEST_START = 1024  # bytes: a key of a dump has up to 200 characters
# of all sides' logits; figures and what judging copies take about three times as much besides
_MOST_BYTES = CHUNK_BYTES_TOGETHER


def are_arrays(paths: Sequence[Path]) -> bool:
    """Return whether files are npy or npz, by their first bytes, and hold no sampled tokens."""
    if not all(path.is_file() and _is_array(path) for path in paths):
        return False
    return len(paths) != 1 or not is_batch(paths[0])


def _is_array(path: Path) -> bool:
    with path.open("rb") as file:
        start = file.read(_LONGEST_START)
    name = start[30 : 30 + int.from_bytes(start[26:28], "little")]  # of a zip's first file
    return start.startswith(b"\x93NUMPY") or (
        start.startswith(b"PK\x03\x04") and name.endswith(b".npy")
    )


@contextmanager
def compare_arrays(
    paths: Sequence[Path],
    *,
    on_progress: Progress,
    **taken_as: Any,
) -> Iterator[MemoryRun | RunReader]:
    """Yield the judged comparison of a dump: of a large one a run file, which is gone afterwards.

    taken_as: compute_dtype, reference, holds, exact and has_experts of open_dump.
    """
    with open_dump(paths, on_progress=on_progress, **taken_as) as dump:
        if dump.nbytes <= _MOST_BYTES:
            yield _compare(dump, on_progress)
            return
        from .ingest import store_dump, temporary_run_by

        with temporary_run_by(
            lambda store: store_dump(store, dump, UNSTORED, "", UNSTORED, on_progress),
        ) as run:
            yield run


def _compare(dump: Dump, on_progress: Progress) -> MemoryRun:
    header = dump.header(UNSTORED)
    fillings = [Filling(header.format) for _ in header.sides]
    ((_, sides),) = dump.chunks()
    for filling, bits in zip(fillings, sides, strict=True):
        filling.see(bits)
    run = MemoryRun(header, sides)
    on_progress(STORING, dump.rows, dump.rows)
    run.verdicts = judge_dump(dump, run, fillings)
    return run
