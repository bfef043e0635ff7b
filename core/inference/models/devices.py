"""Devices that a model can be loaded on: those of this machine, their chips, and what is free."""

from __future__ import annotations

import platform
from contextlib import suppress
from pathlib import Path

import torch

from ...errors import CaptureError
from . import memory


def devices_here() -> list[tuple[str, str, int | None]]:
    """(name, chip, bytes free) of every device a model can be loaded on; None where nobody says what is free."""
    cards = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    devices = [torch.device("cpu"), *(torch.device("cuda", index) for index in cards)]
    return [(str(device), name_of_device(device), memory.free_bytes(device)) for device in devices]


def usable_device(asked: str | None) -> torch.device:
    """The device asked for, or CUDA if there is one; CaptureError where it is not here."""
    if asked is None:
        asked = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(asked)
    except (RuntimeError, TypeError) as error:
        raise CaptureError(f"device '{asked}' is not known; expected cpu, cuda or cuda:N.") from error
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type != "cuda":
        raise CaptureError(f"device '{asked}' is not supported; expected cpu, cuda or cuda:N.")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0:
        raise CaptureError(f"device '{asked}': torch {torch.__version__} sees no CUDA device here; choose cpu.")
    index = device.index or 0
    if index >= count:
        raise CaptureError(f"device '{asked}': the highest CUDA device here is cuda:{count - 1}; choose one up to it.")
    return torch.device("cuda", index)


def name_of_device(device: torch.device) -> str:
    """The processor's or GPU's own name."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
