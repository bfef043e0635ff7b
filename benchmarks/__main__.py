"""Runs the benchmarks named on the command line, or all, and prints one table."""

from __future__ import annotations

import importlib
import os
import sys

from benchmarks.timing import Line, table

ALL = (
    "kernel",
    "ingest",
    "position",
    "listing",
    "capture",
    "capture_memory",
    "layers",
    "search",
    "pages",
    "visits",
    "heatmap",
    "memory",
    "invariant",
)


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in ALL]
    if unknown:
        print(f"no benchmark '{unknown[0]}'; there are {', '.join(ALL)}.", file=sys.stderr)
        return 2
    lines: list[Line] = []
    for name in names or ALL:
        print(f"{name} ...", file=sys.stderr, flush=True)
        lines += importlib.import_module(f"benchmarks.{name}").run()
    print(
        f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f} at the end (other work lowers every"
        " figure)"
    )
    print(table(lines))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
