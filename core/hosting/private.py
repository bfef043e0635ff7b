"""`.hosting/` in the writable directory of a store: what only the server may read, shared by all its processes."""

from __future__ import annotations

import re
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from ..disk import read_regular, write_atomic
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
            with suppress(FileExistsError):  # another process was faster: all of them read the same one
                write_atomic(path, secrets.token_hex(32).encode(), is_new=True, mode=0o600)
            found = read(path) or b""
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read or made ({error.strerror or error}).") from None
    if not re.fullmatch(rb"[0-9a-f]{64}", found):
        raise ConfigurationError(f"{path}: not the server's secret; remove it, and everybody signs in again.")
    return bytes.fromhex(found.decode())


def read(path: Path) -> bytes | None:
    """Read a private file, closing it to others should it be open to them; None where there is none."""
    try:
        found = read_regular(path, _LARGEST)
    except FileNotFoundError:
        return None
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        path.chmod(0o600)
    return found


def write(path: Path, body: bytes) -> None:
    """Replace a private file: whole and on the disk before it has its name, and never open to others."""
    write_atomic(path, body, mode=0o600)
