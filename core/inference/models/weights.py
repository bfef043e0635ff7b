"""The weight files of a local model folder: their size by headers, their digest; which weights a conversion rounds."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import safe_open

from ...errors import CaptureError
from ...weights import weight_files

_FLOATS = ("F64", "F32", "F16", "BF16")
_LARGEST = 8  # bytes of an element of any other type, at most


def weight_bytes(folder: Path, itemsize: int, saved_itemsize: int) -> int:
    """Return the bytes of a folder's weights in floats of `itemsize`. saved_itemsize: for pytorch_model.bin."""
    total = 0.0
    for file in weight_files(folder):
        if file.suffix != ".safetensors":
            total += file.stat().st_size * itemsize / saved_itemsize
            continue
        try:
            with safe_open(file, framework="numpy") as tensors:
                slices = [tensors.get_slice(name) for name in tensors.keys()]  # noqa: SIM118 - it is no mapping
                sizes = [itemsize if each.get_dtype() in _FLOATS else _LARGEST for each in slices]
                total += sum(math.prod(each.get_shape()) * size for each, size in zip(slices, sizes, strict=True))
        except Exception as error:  # a git-lfs pointer, or a truncated download
            raise CaptureError(f"{file} is not a complete safetensors file ({error}); copy the model again.") from error
    return int(total)


def digest(folder: Path) -> str:
    """Return `sha256:...` of a folder's weight files, in order of their names; '' if there are none."""
    total = hashlib.sha256()
    files = sorted(path for path in folder.iterdir() if path.suffix in (".safetensors", ".bin") and path.is_file())
    for path in files:
        with path.open("rb") as file:
            total.update(hashlib.file_digest(file, "sha256").digest())
    return f"sha256:{total.hexdigest()}" if files else ""


def rounded_parameters(
    model: torch.nn.Module, source: torch.dtype, target: torch.dtype
) -> Iterator[torch.nn.Parameter]:
    """Yield the parameters that a conversion rounds: all but those that transformers loads in float32."""
    float32_names = set(getattr(model, "_keep_in_fp32_modules_strict", None) or ())
    if target is torch.float16:  # modeling_utils: the second list is for overflows of float16
        float32_names |= set(getattr(model, "_keep_in_fp32_modules", None) or ())
    for name, parameter in model.named_parameters():
        is_kept = any(re.search(rf"(^|\.){re.escape(part)}(\.|$)", name) for part in float32_names)
        if parameter.dtype == source and not is_kept and target != source:
            yield parameter
