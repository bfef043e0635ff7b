"""The weight files of a local model folder, measured from their headers, and told apart by their digest; which weights
a conversion rounds.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path

import torch

from ...errors import CaptureError

_FORMS = (("model.safetensors", "model.safetensors.index.json"), ("pytorch_model.bin", "pytorch_model.bin.index.json"))
_FLOAT_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_HEADER_LIMIT = 100_000_000  # bytes; the limit of the safetensors format itself


def weight_bytes(folder: Path, itemsize: int, saved_itemsize: int) -> int:
    """Bytes the weights of `folder` take once every float is `itemsize` bytes wide.

    `saved_itemsize` (bytes an element, from the config) is used where a file does not say it itself
    (pytorch_model.bin).
    """
    total = 0.0
    for file in _weight_files(folder):
        if file.suffix == ".safetensors":
            total += _safetensors_bytes(file, itemsize)
        else:
            total += file.stat().st_size * itemsize / saved_itemsize
    return int(total)


def _weight_files(folder: Path) -> list[Path]:
    """The files transformers would load, in its order of preference."""
    for single, index in _FORMS:
        if (folder / single).is_file():
            return [folder / single]
        if (folder / index).is_file():
            try:
                shards = sorted(set(json.loads((folder / index).read_text())["weight_map"].values()))
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                raise CaptureError(
                    f"{folder / index} is not an index of weight files; copy the model again."
                ) from error
            for shard in shards:
                if not (folder / shard).is_file():
                    raise CaptureError(f"{folder} has no '{shard}', which its {index} lists; copy the model again.")
            return [folder / shard for shard in shards]
    raise CaptureError(
        f"{folder} holds no weights; expected model.safetensors or pytorch_model.bin, whole or in shards."
    )


def _safetensors_bytes(file: Path, itemsize: int) -> int:
    size = file.stat().st_size
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if not 2 <= length <= min(_HEADER_LIMIT, size - 8):
                raise ValueError("header length")
            header = json.loads(stream.read(length))
        tensors = [entry for name, entry in header.items() if name != "__metadata__"]
        end = 8 + length + max((entry["data_offsets"][1] for entry in tensors), default=0)
        total = 0
        for entry in tensors:
            begin, stop = entry["data_offsets"]
            is_float = entry["dtype"] in _FLOAT_BYTES
            total += math.prod(entry["shape"]) * itemsize if is_float else stop - begin
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise CaptureError(
            f"{file} is no safetensors file (a git-lfs pointer, or cut short?); copy the model again."
        ) from error
    if size < end:
        raise CaptureError(f"{file} has {size} bytes where its header announces {end}; copy the model again.")
    return total


def digest(folder: Path) -> str:
    """`sha256:...` of a folder's weight files, in order of their names: which weights a run was made with. '' if there
    are none.
    """
    total = hashlib.sha256()
    files = sorted(path for path in folder.iterdir() if path.suffix in (".safetensors", ".bin") and path.is_file())
    for path in files:
        with path.open("rb") as file:
            total.update(hashlib.file_digest(file, "sha256").digest())
    return f"sha256:{total.hexdigest()}" if files else ""


def rounded_parameters(
    model: torch.nn.Module, source: torch.dtype, target: torch.dtype
) -> Iterator[torch.nn.Parameter]:
    """Parameters in `source` that are rounded where a model is converted to `target`, each once: all but those that
    transformers itself would load in float32.
    """
    kept = set(getattr(model, "_keep_in_fp32_modules_strict", None) or ())
    if target is torch.float16:  # modeling_utils: the other list exists only because float16 overflows
        kept |= set(getattr(model, "_keep_in_fp32_modules", None) or ())
    for name, parameter in model.named_parameters():
        is_kept = any(re.search(rf"(^|\.){re.escape(part)}(\.|$)", name) for part in kept)
        if parameter.dtype == source and not is_kept and target != source:
            yield parameter
