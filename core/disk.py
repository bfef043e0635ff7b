"""Files that several processes use at once: locked, written whole or not at all, and never put over
another's.
"""

import fcntl
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

# what a name begins with until all is whole; a killed writer leaves folders, and files if need be
WRITING = ".writing-"
_DESCRIPTORS = "/proc/self/fd"  # by which a file without a name gets one


def lock(path: Path, *, wait: bool = True, mode: int = 0o600) -> int:
    """Lock a file or directory until the descriptor is closed.

    BlockingIOError if another holds it and not `wait`.
    """
    flags = (
        os.O_DIRECTORY if path.is_dir() else os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK
    )
    while True:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        try:
            if stat.S_IFMT(os.fstat(descriptor).st_mode) not in (stat.S_IFREG, stat.S_IFDIR):
                raise OSError(0, "not a regular file")
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            with suppress(FileNotFoundError):
                if path.lstat().st_ino == os.fstat(descriptor).st_ino:
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        # the file was removed or renamed between opening and locking
        os.close(descriptor)


@contextmanager
def hold(path: Path) -> Iterator[None]:
    descriptor = lock(path)
    try:
        yield
    finally:
        os.close(descriptor)


@contextmanager
def writing(path: Path, *, is_new: bool = False, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Yield a file that is called `path` once it is whole and on disk. is_new: FileExistsError
    instead of replacing.

    Until then it has no name, if the file system can do that: a killed process leaves nothing.
    """
    temporary = path.with_name(f"{WRITING}{secrets.token_hex(8)}")
    flags = os.O_RDWR | os.O_CLOEXEC
    without_name = getattr(os, "O_TMPFILE", 0)  # Linux
    descriptor = -1
    if without_name and Path(_DESCRIPTORS).is_dir():
        # NFS and old file systems cannot
        with suppress(OSError):
            descriptor = os.open(path.parent, flags | without_name, mode)
    try:
        if descriptor < 0:
            descriptor = os.open(temporary, flags | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(descriptor)
            if os.fstat(descriptor).st_nlink == 0:
                # Any descriptor makes Python call linkat, which alone follows the link in /proc.
                os.link(
                    f"{_DESCRIPTORS}/{descriptor}",
                    temporary,
                    src_dir_fd=descriptor,
                    follow_symlinks=True,
                )
        if is_new:
            place_new(temporary, path)
        else:
            temporary.replace(path)
    finally:
        # the temporary file has been renamed, or was never there
        with suppress(OSError):
            temporary.unlink()


def write_atomic(path: Path, body: bytes, *, is_new: bool = False, mode: int = 0o666) -> None:
    with writing(path, is_new=is_new, mode=mode) as file:
        file.write(body)


@contextmanager
def making(path: Path) -> Iterator[Path]:
    """Yield a temporary path; the file or folder is renamed to `path` once it is whole and on
    disk.
    """
    temporary = path.with_name(f"{WRITING}{secrets.token_hex(8)}")
    try:
        yield temporary
        for each in (*temporary.rglob("*"), temporary):
            to_disk(each)
        temporary.replace(path)
    finally:
        discard(temporary)


def discard(path: Path) -> None:
    """Remove a file or a folder, if possible."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def make_room(paths: Iterable[Path], most_bytes: int, spared_seconds: float = 0.0) -> None:
    """Remove the files used longest ago until the others have at most so many bytes together, or
    were used within `spared_seconds`.
    """
    files = []
    for path in paths:
        with suppress(OSError):
            status = path.stat()
            files.append((status.st_atime, status.st_size, path))
    total = sum(size for _, size, _ in files)
    for used, size, path in sorted(files):
        if total <= most_bytes or time.time() - used < spared_seconds:
            return
        discard(path)
        total -= size


def place_new(path: Path, target: Path) -> None:
    """Rename, but FileExistsError instead of replacing."""
    try:
        # unlike a rename, a link refuses to replace a file
        os.link(path, target, follow_symlinks=False)
    except (FileExistsError, FileNotFoundError):
        raise
    # a file system without hard links: take the name first, which fails if it is taken
    except OSError:
        target.touch(exist_ok=False)
        try:
            path.rename(target)
        except OSError:
            target.unlink()
            raise
        return
    with suppress(FileNotFoundError):
        path.unlink()


def to_disk(path: Path) -> None:
    """fsync of a file or a directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
