"""Peak memory of ingesting a 4 GB dump, over the same process idle. In a process of its own,
because a peak never falls.
"""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import numpy as np
from numpy.lib import format as npy_format

from benchmarks.scratch import figures_of_child, scratch
from benchmarks.timing import Line

ROWS, VOCAB = 8192, 128256  # 2.1 GB per side of bfloat16
NEEDED = int(9.5e9)

_CHILD = """
import sys, time
from pathlib import Path
import numpy as np
from core.numerics.divergence import compare
from core.numerics.formats import BFLOAT16
from core.judging.ingest import ingest
from core.runs.store.store import Store

def status(key):  # VmHWM, not ru_maxrss: a child inherits its parent's
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key))

bits = np.zeros((2, 64), np.uint16)
compare(bits, bits, BFLOAT16)  # the compiled kernel belongs to an idle process
idle = status("VmRSS")
began = time.perf_counter()
ingest(Store(Path(sys.argv[2])), [Path(sys.argv[1])])
print(idle, status("VmHWM"), time.perf_counter() - began)
"""


def write_dump(path: Path, rows: int, vocab: int) -> None:
    """An npz of two sides of finite random bfloat16 bits, written without holding more than a few
    rows.
    """
    rng = np.random.default_rng(0)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for side in ("reference", "variant"):
            with archive.open(f"{side}.npy", "w", force_zip64=True) as member:
                npy_format.write_array_header_2_0(
                    member,
                    {"descr": "<u2", "fortran_order": False, "shape": (rows, vocab)},
                )
                for _ in range(0, rows, 64):
                    bits = rng.integers(0, 1 << 16, 64 * vocab, dtype=np.uint16)
                    member.write(
                        (bits & np.uint16(0xBFFF)).tobytes(),
                    )  # one exponent bit off: finite, below 2 in magnitude
        with archive.open("compute_dtype.npy", "w") as member:
            npy_format.write_array(member, np.array("bfloat16"))


def run() -> list[Line]:
    # the dump and the run file are on the disk at the same time
    free = shutil.disk_usage(Path.cwd()).free
    if free < NEEDED:
        return [
            Line(
                "memory, 4.2 GB dump",
                "<= 600 MB",
                "not run",
                f"needs {NEEDED / 1e9:.1f} GB of disk, {free / 1e9:.1f} are free",
            ),
        ]
    with scratch() as name:
        dump = name / "dump.npz"
        write_dump(dump, ROWS, VOCAB)
        idle, peak, seconds = figures_of_child(_CHILD, dump, name / "store")
        size = dump.stat().st_size
    return [
        Line(
            f"memory, {size / 1e9:.1f} GB dump",
            "<= 600 MB",
            f"{(peak - idle) / 1024:.0f} MB",
            f"peak {peak / 1024:.0f} MB over {idle / 1024:.0f} MB idle (VmHWM, one run);"
            f" {size / seconds / 1e6:.0f} MB/s",
        ),
    ]
