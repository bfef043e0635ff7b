"""Where a model comes from, a folder, a GGUF, a package or the hub, and what that says before the weights are read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

from ...errors import CaptureError
from ...packaged_models import packaged_folder
from . import gguf
from .torch_errors import first_line
from .weights import weight_bytes

_HUB_TIMEOUT_SECONDS = 10


@dataclass(frozen=True)
class Source:
    """Origin of a model, to be given to from_pretrained, and what is known about it. folder is None for a model still
    on the hub, and for a GGUF.
    """

    place: str
    folder: Path | None
    revision: str | None
    hub: Any = None
    gguf: gguf.GgufFile | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        if self.gguf is not None:
            return {"local_files_only": True, "gguf_file": gguf.FILE}
        if self.folder is not None:
            return {"local_files_only": True}  # a folder must never make a call to the hub
        return {"revision": self.revision}


def source_of(name: str, revision: str | None) -> Source:
    if packaged := packaged_folder(name):
        return Source(place=str(packaged), folder=packaged, revision=None)
    path = Path(name).expanduser()
    if path.is_dir():
        return Source(place=str(path), folder=path, revision=revision)
    if path.is_file() and gguf.is_gguf(path):
        return Source(place=str(path), folder=None, revision=None, gguf=gguf.look(path))
    if path.exists():
        raise CaptureError(
            f"model '{name}' is a file; expected a folder with config.json and weights, a GGUF, or a hub id."
        )
    try:
        hub = huggingface_hub.HfApi().model_info(
            name, revision=revision, timeout=_HUB_TIMEOUT_SECONDS, files_metadata=True
        )
        return Source(place=name, folder=None, revision=hub.sha, hub=hub)
    except HFValidationError as error:  # not of the form of a hub id, so it was meant as a folder
        raise CaptureError(
            f"model '{name}': no such folder; expected one with config.json and weights, or a hub id."
        ) from error
    except GatedRepoError as error:
        raise CaptureError(
            f"model '{name}' is gated; accept its terms on the hub and log in with an access token."
        ) from error
    except RevisionNotFoundError as error:
        raise CaptureError(
            f"model '{name}' has no revision '{revision}'; expected a branch, tag or commit of it."
        ) from error
    except RepositoryNotFoundError as error:
        raise CaptureError(
            f"model '{name}': no such folder here, and no such public model on the hub; check its name."
        ) from error
    except Exception as error:  # whatever the HTTP client raises without a network: a copy in the cache will do
        cached = _cached_folder(name, revision)
        if cached is None:
            raise CaptureError(
                f"model '{name}': no such folder here, and the hub cannot be reached ({first_line(error)}); "
                "give the path of a model folder, or connect."
            ) from error
        return Source(place=str(cached), folder=cached, revision=cached.name)


def _cached_folder(name: str, revision: str | None) -> Path | None:
    """The snapshot in the hub client's own cache; its folder is named by the commit."""
    try:
        config = huggingface_hub.try_to_load_from_cache(name, "config.json", revision=revision)
    except Exception:
        return None
    return Path(config).parent if isinstance(config, str) else None


@contextmanager
def placed(source: Source) -> Iterator[Source]:
    """The source as transformers is given it: a GGUF without what lies beside it."""
    if source.gguf is None:
        yield source
    else:
        with gguf.alone(source.gguf.path) as place:
            yield replace(source, place=place)


def needed_bytes(source: Source, config: Any, itemsize: int) -> int | None:
    """Bytes of the weights in the asked dtype; None where the hub does not say."""
    saved = getattr(getattr(config, "dtype", None), "itemsize", 4)
    if source.gguf is not None:
        return source.gguf.elements * (4 if source.gguf.architecture in gguf.ROUNDED_AFTERWARDS else itemsize)
    if source.folder is not None:
        return weight_bytes(source.folder, itemsize, saved)
    counts = getattr(source.hub.safetensors, "parameters", None)
    if counts:
        return sum(counts.values()) * itemsize
    binaries = [f.size or 0 for f in source.hub.siblings or [] if f.rfilename.endswith(".bin")]
    return sum(binaries) * itemsize // saved if binaries else None


def names_of(folder: Path) -> set[str] | None:
    """Names of a folder's safetensors, without reading one of them; None where it has none. Its files are known to be
    whole.
    """
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        with single.open("rb") as stream:  # not by a map of the file, which may be larger than this machine
            header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
        return set(header) - {"__metadata__"}
    if index.is_file():
        return set(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
    return None
