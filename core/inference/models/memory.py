"""Free memory, in bytes: asked before anything large is allocated, because Linux grants first and kills later."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import torch

_CGROUP = Path("/sys/fs/cgroup")
# (limit, usage, statistics, name of the page cache that the kernel gives back under pressure), cgroup v2 and v1
_LIMIT_FILES = (
    (_CGROUP / "memory.max", _CGROUP / "memory.current", _CGROUP / "memory.stat", "inactive_file"),
    (
        _CGROUP / "memory/memory.limit_in_bytes",
        _CGROUP / "memory/memory.usage_in_bytes",
        _CGROUP / "memory/memory.stat",
        "total_inactive_file",
    ),
)


def free_host_bytes() -> int | None:
    """Bytes of host memory this process may still take, a container's limit respected; None if unknown."""
    known = [free for free in (_free_in_machine(), _free_in_container()) if free is not None]
    return min(known) if known else None


def free_bytes(device: torch.device) -> int | None:
    """Bytes free on the device, what torch holds but does not use included; None if unknown."""
    if device.type != "cuda":
        return free_host_bytes()
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def _free_in_machine() -> int | None:
    with suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    with suppress(OSError, ValueError):  # not every system counts its pages
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _free_in_container() -> int | None:
    for limit_file, usage_file, statistics_file, reclaimable in _LIMIT_FILES:
        with suppress(OSError, ValueError):  # no such file, or the word "max"
            limit, usage = int(limit_file.read_text()), int(usage_file.read_text())
            statistics = dict(line.split(maxsplit=1) for line in statistics_file.read_text().splitlines())
            return max(0, limit - usage + int(statistics.get(reclaimable, "0")))
    return None
