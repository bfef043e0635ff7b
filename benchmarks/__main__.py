"""Runs the benchmarks named on the command line, or all, and prints one table."""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType

from benchmarks.timing import table

_MODULES = {
    "kernel": "kernel",
    "ingest": "ingest",
    "position": "position",
    "capture": "capture",
    "capture_memory": "capture_memory",
    "session": "judging_session",
    "pages": "serving.pages",
    "heatmap": "serving.heatmap",
    "memory": "memory",
    "tokens": "tokens",
}
ALL = tuple(_MODULES)


def module_of(name: str) -> ModuleType:
    """Module of a benchmark, whose `run()` returns its lines."""
    return importlib.import_module(f"benchmarks.{_MODULES[name]}")


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in ALL]
    if unknown:
        print(f"no benchmark '{unknown[0]}'; there are {', '.join(ALL)}.", file=sys.stderr)
        return 2
    lines = []
    for name in names or ALL:
        print(f"{name} ...", file=sys.stderr, flush=True)
        lines += module_of(name).run()
    print(
        f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f} at the end (other"
        " work lowers every figure)",
    )
    print(table(lines))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
