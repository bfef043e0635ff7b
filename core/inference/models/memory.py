"""Free memory in bytes: checked before large allocations, because Linux grants first and kills later."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import torch

_CGROUP = Path("/sys/fs/cgroup")
# (limit, usage, statistics, name of the reclaimable page cache), cgroup v2 and v1
_LIMIT_FILES = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
)


def free_host_bytes() -> int | None:
    """Return the host memory that this process may still allocate, within a container's limit; None if unknown."""
    sizes = []
    with suppress(OSError, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        sizes += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    for *files, reclaimable in _LIMIT_FILES:
        with suppress(OSError, ValueError):  # no such file, or the word "max"
            limit, usage, text = ((_CGROUP / name).read_text() for name in files)
            statistics = dict(line.split(maxsplit=1) for line in text.splitlines())
            sizes.append(max(0, int(limit) - int(usage) + int(statistics.get(reclaimable, "0"))))
            break
    return min(sizes, default=None)


def free_bytes(device: torch.device) -> int | None:
    """Return the free bytes on the device, with torch's unused reserve; None if unknown."""
    if device.type != "cuda":
        return free_host_bytes()
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
