"""Devices of this machine for models: names, chips, free memory, and tensors of them as bits on the
host.

Free memory is checked before large allocations, because Linux grants first and kills later.
"""

import platform
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from ...errors import CaptureError
from ...numerics.arrays import Bits, Floats

_CGROUP = Path("/sys/fs/cgroup")
# (limit, usage, statistics, name of the reclaimable page cache), cgroup v2 and v1
_LIMIT_FILES = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    (
        "memory/memory.limit_in_bytes",
        "memory/memory.usage_in_bytes",
        "memory/memory.stat",
        "total_inactive_file",
    ),
)
# of the float's width: torch hands these to numpy, and not bfloat16
_SIGNED = {2: torch.int16, 4: torch.int32}


def devices_here() -> list[tuple[str, str, int | None]]:
    """Return (name, chip, free bytes) of every device; None if the free memory is unknown."""
    devices = [torch.device("cpu")]
    devices += [torch.device("cuda", index) for index in range(_cuda_devices())]
    return [(str(device), name_of_device(device), free_bytes(device)) for device in devices]


def _cuda_devices() -> int:
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def usable_device(name: str | None) -> torch.device:
    """Return the named device, by default CUDA if there is one.

    CaptureError if it does not exist.
    """
    count = _cuda_devices()
    if name is None:
        name = "cuda" if count else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise CaptureError(f"device '{name}' is unknown; expected cpu, cuda or cuda:N.") from error
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type != "cuda":
        raise CaptureError(f"device '{name}' is not supported; expected cpu, cuda or cuda:N.")
    if count == 0:
        raise CaptureError(
            f"device '{name}': torch {torch.__version__} sees no CUDA device; choose cpu.",
        )
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


def free_host_bytes() -> int | None:
    """Return the host memory that this process may still allocate, within a container's limit; None
    if unknown.
    """
    sizes = []
    with suppress(OSError, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        sizes += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    for *files, reclaimable in _LIMIT_FILES:
        # no such file, or the word "max" in place of a number
        with suppress(OSError, ValueError):
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


def integers_of(tensor: Tensor) -> Tensor:
    """Return the bits of a float tensor as integers on the same device: NaN equals NaN, and -0 is
    not +0.
    """
    return tensor.contiguous().view(_SIGNED[tensor.dtype.itemsize])


def bits_of(tensor: Tensor) -> Bits:
    """Return the bits of a float tensor on any device.

    Same shape; on a CPU the same memory if contiguous.
    """
    return integers_of(tensor).cpu().numpy().view(f"<u{tensor.dtype.itemsize}")


def own_bits(tensor: Tensor) -> Bits:
    """Return bits like `bits_of`, copied if the tensor is a small part of larger memory."""
    if tensor.device.type == "cpu" and tensor.untyped_storage().nbytes() > 2 * tensor.nbytes:
        tensor = tensor.clone(memory_format=torch.contiguous_format)
    return bits_of(tensor)


def row_sums(values: Tensor) -> Floats:
    """Return sums of rows, [rows, n] float64 -> [rows]; on a CPU in numpy's order, the same on
    every processor.
    """
    if values.device.type == "cpu":
        return values.numpy().sum(axis=1)
    return values.sum(1).cpu().numpy()
