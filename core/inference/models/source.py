"""Origin of a model: a folder, a GGUF, a package or the hub, with its facts before weights are
read.
"""

from __future__ import annotations

import hashlib
import math
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from safetensors import safe_open

from ...errors import CaptureError
from ...packaged_models import packaged_folder
from ...rl.checkpoints import weight_files
from . import gguf
from .torch_errors import first_line

_HUB_TIMEOUT_SECONDS = 10
_FLOATS = ("F64", "F32", "F16", "BF16")
_LARGEST = 8  # bytes of an element of any other type, at most
_OF_HUB: dict[type[Exception], str] = {  # the narrower ones first
    HFValidationError: ": no such folder; expected one with config.json and weights, or a hub id.",
    GatedRepoError: " is gated; accept its terms on the hub and log in with an access token.",
    RevisionNotFoundError: " has no revision '{revision}'; expected a branch, tag or commit.",
    RepositoryNotFoundError: (
        ": no such folder, and no such public model on the hub; check the name."
    ),
}


@dataclass(frozen=True)
class ModelSource:
    """Origin of a model, for from_pretrained. name: as requested; folder: None for a model on the
    hub, and for a GGUF.
    """

    name: str
    place: str
    folder: Path | None = None
    revision: str | None = None
    hub: Any = None
    gguf: gguf.GgufFile | None = None
    trust_remote_code: bool = False

    @property
    def arguments(self) -> dict[str, Any]:
        more: dict[str, Any] = {"trust_remote_code": self.trust_remote_code}
        if self.gguf is not None:
            return more | {"local_files_only": True, "gguf_file": gguf.FILE}
        if self.folder is not None:
            # a folder must never make a call to the hub
            return more | {"local_files_only": True}
        return more | {"revision": self.revision}

    @property
    def digest(self) -> str:
        """`sha256:...` of the GGUF or of the folder's weight files, in order of their names; '' if
        there are none.
        """
        if self.gguf is not None:
            return self.gguf.sha256
        total = hashlib.sha256()
        files = 0
        for path in sorted(self.folder.iterdir()) if self.folder else ():
            if path.suffix in (".safetensors", ".bin") and path.is_file():
                with path.open("rb") as file:
                    total.update(hashlib.file_digest(file, "sha256").digest())
                files += 1
        return f"sha256:{total.hexdigest()}" if files else ""


def source_of(name: str, revision: str | None) -> ModelSource:
    if packaged := packaged_folder(name):
        return ModelSource(name, str(packaged), packaged)
    path = Path(name).expanduser()
    if path.is_dir():
        return ModelSource(name, str(path), path, revision)
    if path.is_file() and gguf.is_gguf(path):
        return ModelSource(name, str(path), gguf=gguf.look(path))
    if path.exists():
        raise CaptureError(
            f"model '{name}' is a file; expected a folder with config.json and weights, a GGUF, or"
            " a hub id.",
        )
    try:
        hub = huggingface_hub.HfApi().model_info(
            name,
            revision=revision,
            timeout=_HUB_TIMEOUT_SECONDS,
            files_metadata=True,
        )
        return ModelSource(name, name, revision=hub.sha, hub=hub)
    except tuple(_OF_HUB) as error:
        reason = next(words for kind, words in _OF_HUB.items() if isinstance(error, kind))
        raise CaptureError(f"model '{name}'{reason.format(revision=revision)}") from error
    except Exception as error:
        # without a network the HTTP client raises errors of its own: use a copy in its cache
        with suppress(Exception):
            config = huggingface_hub.try_to_load_from_cache(name, "config.json", revision=revision)
            if isinstance(config, str):
                # named by the commit
                folder = Path(config).parent
                return ModelSource(name, str(folder), folder, folder.name)
        raise CaptureError(
            f"model '{name}': no such folder, and the hub cannot be reached"
            f" ({first_line(error)}); give the path of a model folder, or connect.",
        ) from error


def needed_bytes(source: ModelSource, config: Any, itemsize: int) -> int | None:
    """Return the bytes of the weights in the requested dtype; None if the hub does not report
    them.
    """
    saved = getattr(getattr(config, "dtype", None), "itemsize", 4)
    if source.gguf is not None:
        return source.gguf.elements * (4 if source.gguf.is_rounded_later else itemsize)
    if source.folder is None:
        if counts := getattr(source.hub.safetensors, "parameters", None):
            return sum(counts.values()) * itemsize
        binaries = [f.size or 0 for f in source.hub.siblings or [] if f.rfilename.endswith(".bin")]
        return sum(binaries) * itemsize // saved if binaries else None
    total = 0
    for file in weight_files(source.folder):
        if file.suffix != ".safetensors":
            total += file.stat().st_size * itemsize // saved
            continue
        try:
            with safe_open(file, framework="numpy") as tensors:
                # an open file of safetensors is no mapping: it has keys, and no iterator
                names = tensors.keys()
                for name in names:
                    tensor = tensors.get_slice(name)
                    size = itemsize if tensor.get_dtype() in _FLOATS else _LARGEST
                    total += math.prod(tensor.get_shape()) * size
        except Exception as error:
            # a git-lfs pointer, or a truncated download
            raise CaptureError(
                f"{file} is not a complete safetensors file ({error}); copy the model again.",
            ) from error
    return total
