"""Ten million chosen tokens in 100,000 sequences, as JSON lines and as Parquet: ingested, then
their Overview and the gallery opened. Each in a process of its own, because a peak never falls.
TOKENS=1000000 is a tenth of it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.scratch import figures_of_child, scratch
from benchmarks.timing import Line

LENGTH = 100  # tokens of a sequence
AT_ONCE = 1000  # sequences written at a time

_STATUS = """
import sys, time
from pathlib import Path

def peak():  # VmHWM, not ru_maxrss: a child inherits its parent's
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
"""
_INGEST = f"""{_STATUS}
from core.judging.ingest import ingest
from core.runs.store.store import Store
began = time.perf_counter()
ingest(Store(Path(sys.argv[2])), [Path(sys.argv[1])], run_id="tokens")
print(time.perf_counter() - began, peak())
"""
_PAGES = f"""{_STATUS}
from tests.app.opening import open_page
open_page("overview", run="fresh-against-cached")  # imports and compiles
for page, link in (("overview", {{"run": "tokens"}}), ("runs", {{}})):
    began = time.perf_counter()
    open_page(page, **link)
    print(time.perf_counter() - began)
print(peak())
"""


def write_files(jsonl: Path, parquet: Path, sequences: int) -> None:
    """Write the same sequences in both forms: half of the values differ by rounding."""
    rng = np.random.default_rng(0)
    offsets = np.arange(0, AT_ONCE * LENGTH + 1, LENGTH, dtype=np.int32)
    writer = None
    with jsonl.open("w") as file:
        for _ in range(sequences // AT_ONCE):
            size = AT_ONCE * LENGTH
            reference = -rng.exponential(1.0, size).astype(np.float32)
            noisy = np.where(
                rng.random(size) < 0.5,
                reference,
                reference * (1 + rng.normal(0, 0.004, size)),
            )
            values = [
                rng.integers(0, 150_000, size, dtype=np.int32),
                reference,
                noisy.astype(np.float32),
                -reference,
            ]
            columns = dict(
                zip(("token_ids", "reference", "variant", "entropy"), values, strict=True),
            )
            table = pa.table(
                {
                    name: pa.ListArray.from_arrays(offsets, pa.array(each))
                    for name, each in columns.items()
                },
            )
            file.writelines(json.dumps(row) + "\n" for row in table.to_pylist())
            # the schema is known with the first table
            writer = writer or pq.ParquetWriter(parquet, table.schema)
            writer.write_table(table)
    if writer is not None:
        writer.close()


def run() -> list[Line]:
    tokens = int(os.environ.get("TOKENS", "10000000"))
    lines = []
    with scratch() as folder:
        files = {"JSON lines": folder / "tokens.jsonl", "Parquet": folder / "tokens.parquet"}
        write_files(*files.values(), tokens // LENGTH)
        for form, path in files.items():
            store = folder / f"store{path.suffix}"
            seconds, peak = figures_of_child(_INGEST, path, store)
            size = sum(each.stat().st_size for each in store.glob("*.duckdb")) / 1e6
            what, method = (
                f"{tokens:,} chosen tokens of both sides, {form}",
                f"{path.stat().st_size / 1e6:.0f} MB file",
            )
            lines.append(
                Line(
                    what,
                    "<= 120 s",
                    f"{seconds:.0f} s",
                    f"{method}, run file {size:.0f} MB; one run",
                ),
            )
            lines.append(
                Line("memory of that", "<= 1000 MB", f"{peak:.0f} MB", "VmHWM of the process"),
            )
        overview, gallery, peak = figures_of_child(_PAGES, ULPSCOPE_STORE=str(store))
        first = "the script of a server that has imported its pages, the run not yet open"
        lines.append(Line("Overview of that run", "<= 1 s", f"{overview:.2f} s", first))
        lines.append(
            Line(
                "gallery with that run",
                "<= 1 s",
                f"{gallery:.2f} s",
                f"peak of the server {peak:.0f} MB",
            ),
        )
    return lines
