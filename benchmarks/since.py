"""What the kernels cost now over what they cost at another commit: `python -m benchmarks.since COMMIT`.

Both are imported in processes of their own, take turns, and run in one thread on few rows; the thread's own processor
time counts, and the least of many tries, so that other work on the machine hardly shows. Prints nanoseconds an element
and the ratio.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROUNDS, TRIES, ROWS, WIDTHS = 3, 200, 2, (64, 576, 49_152)


def measured() -> dict[str, float]:
    """Least nanoseconds an element of `compare` at a vocabulary of 128256, and of `differences` by width."""
    import numpy as np

    from benchmarks.logits import pair
    from core.numerics import divergence
    from core.numerics.differences import differences
    from core.numerics.formats import BFLOAT16, FLOAT16, FLOAT32

    pool = ThreadPoolExecutor(1)
    divergence._threads = lambda: pool
    found = {}
    for fmt in (BFLOAT16, FLOAT16, FLOAT32):
        a, b = pair(fmt, ROWS)
        found[f"compare, {fmt.name}"] = _least(lambda: divergence.compare(a, b, fmt), a.size)  # noqa: B023
        for width in WIDTHS:
            x, y = (
                np.ascontiguousarray(side.ravel()[: (1 << 17) // width * width].reshape(-1, width)) for side in (a, b)
            )
            name = f"differences, {fmt.name}, {width} wide"
            found[name] = _least(lambda: differences(x, y, fmt), x.size)  # noqa: B023
    return found


def _least(run, elements: int) -> float:
    run()  # compiles
    seconds = []
    for _ in range(TRIES):
        began = time.thread_time()
        run()
        seconds.append(time.thread_time() - began)
    return min(seconds) / elements * 1e9


def main(commit: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        packed = subprocess.run(["git", "archive", commit, "core"], cwd=ROOT, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(directory, filter="data")
        found: dict[str, list[dict[str, float]]] = {"then": [], "now": []}
        for _ in range(ROUNDS):
            for name, first in (("then", directory), ("now", str(ROOT))):
                command = f"import sys, json; sys.path[:0] = [{first!r}]; sys.path.append({str(ROOT)!r})\n"
                command += "from benchmarks.since import measured; print(json.dumps(measured()))"
                child = [sys.executable, "-P", "-c", command]
                found[name].append(
                    json.loads(subprocess.run(child, cwd=directory, check=True, stdout=subprocess.PIPE).stdout)
                )
    print(f"ns an element, the least of {ROUNDS} x {TRIES} tries on one thread, load {os.getloadavg()[0]:.1f}")
    for what in found["now"][0]:
        then, now = (min(of_round[what] for of_round in found[name]) for name in ("then", "now"))
        print(f"{what:36} {commit[:10]} {then:6.2f}   now {now:6.2f}   ratio {now / then:.2f}")


if __name__ == "__main__":
    main(sys.argv[1])
