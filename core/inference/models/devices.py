"""Devices of this machine for models: names, chips and free memory."""

from __future__ import annotations

import platform
from contextlib import suppress
from pathlib import Path

import torch

from ...errors import CaptureError
from . import memory


def devices_here() -> list[tuple[str, str, int | None]]:
    """Return (name, chip, free bytes) of every device; None if the free memory is unknown."""
    cards = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    devices = [torch.device("cpu"), *(torch.device("cuda", index) for index in cards)]
    return [(str(device), name_of_device(device), memory.free_bytes(device)) for device in devices]


def usable_device(name: str | None) -> torch.device:
    """Return the named device, by default CUDA if there is one. CaptureError if it does not exist."""
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise CaptureError(f"device '{name}' is unknown; expected cpu, cuda or cuda:N.") from error
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type != "cuda":
        raise CaptureError(f"device '{name}' is not supported; expected cpu, cuda or cuda:N.")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0:
        raise CaptureError(f"device '{name}': torch {torch.__version__} sees no CUDA device; choose cpu.")
    index = device.index or 0
    if index >= count:
        raise CaptureError(f"device '{name}': expected at most cuda:{count - 1}.")
    return torch.device("cuda", index)


def name_of_device(device: torch.device) -> str:
    """Return the name of the CPU or GPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
