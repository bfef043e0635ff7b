"""`.hosting/` in the writable directory of a store: what only the server may read, shared by all its processes."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import ConfigurationError

FOLDER = ".hosting"
_SECRET = "secret"
_LARGEST = 4 << 20  # bytes


def folder_of(store: Path) -> Path:
    """The directory, made for its owner alone; ConfigurationError where that cannot be done."""
    folder = store / FOLDER
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.is_symlink():
            raise ConfigurationError(
                f"{folder}: a link, where secrets of the server are to be kept; expected a directory."
            )
        folder.chmod(0o700)
    except OSError as error:
        raise ConfigurationError(
            f"{folder}: cannot be made, and the secrets of the server are kept there ({error.strerror})."
        ) from None
    return folder


def secret(store: Path) -> bytes:
    """32 random bytes, made by the first process that asks. Without them no cookie is valid, so removing the file signs
    everybody out.
    """
    path = folder_of(store) / _SECRET
    try:
        found = read(path)
        if found is None:
            _first(path, secrets.token_hex(32).encode())
            found = read(path) or b""
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read or made ({error.strerror or error}).") from None
    if not re.fullmatch(rb"[0-9a-f]{64}", found):
        raise ConfigurationError(f"{path}: not the server's secret; remove it, and everybody signs in again.")
    return bytes.fromhex(found.decode())


def read(path: Path) -> bytes | None:
    """What a private file holds, closed to others should it be open to them; None where there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(0, "not a regular file")
        if stat.S_IMODE(status.st_mode) & 0o077:
            os.fchmod(file.fileno(), 0o600)
        return file.read(_LARGEST)


def write(path: Path, body: bytes) -> None:
    """Replace a private file: whole and on the disk before it has its name, and never open to others."""
    writing = _written(path, body)
    try:
        writing.replace(path)
    except BaseException:
        with suppress(OSError):
            writing.unlink()
        raise


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process at a time between reading and replacing a file of the directory."""
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _first(path: Path, body: bytes) -> None:
    """Make the file unless another process is faster; all of them read the same one then."""
    writing = _written(path, body)
    try:
        with locked(path.parent):
            if not path.exists():
                writing.rename(path)
    finally:
        with suppress(FileNotFoundError):
            writing.unlink()


def _written(path: Path, body: bytes) -> Path:
    writing = path.with_name(f".writing-{secrets.token_hex(8)}")
    descriptor = os.open(writing, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        with suppress(OSError):
            writing.unlink()
        raise
    return writing
