"""One upload on disk: how much of it has arrived, and the open end at which one writer at a time adds to it.

How much has arrived is the size of the file, nothing else, so a server that is killed in the middle of a request loses
none of it, and every process that serves the same store can go on. The lock is flock's: who sends to an upload, or
saves it, holds it, in one process or in two, and the system drops it with the process.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from app.api.responses import RefusedError
from core.disk import lock, write_atomic

LOCK, UNVERIFIED = "lock", "unverified"
_AHEAD = "ahead"  # its time: when an upload was first seen that was written to by a clock that is ahead of ours
_TRIES, _BETWEEN_SECONDS = 25, 0.01  # at a lock that somebody holds for a moment
_SKEW_SECONDS = 60


class UploadError(RefusedError):
    """An upload cannot do what is asked of it."""


@dataclass(frozen=True)
class Upload:
    """One file on its way in, as it was announced. length: bytes; created: seconds since 1970; owner: who may see it.

    name: the sender's name for it, untrusted; path: where it lies, under a name that is safe. modified and browser are
    the sender's words about the file and itself, by which it finds the upload again.
    """

    upload_id: str
    owner: str
    name: str
    length: int
    created: float
    modified: str
    browser: str
    directory: Path
    path: Path

    @property
    def offset(self) -> int:
        """Bytes that have arrived; UploadError where the upload was removed meanwhile."""
        try:
            size = self.path.stat().st_size
            marker = self.directory / UNVERIFIED
            return min(size, _number(marker)) if marker.exists() else size
        except OSError:
            raise gone() from None

    @property
    def is_there(self) -> bool:
        """Return whether the file is where it was announced to be; it is not in a damaged entry."""
        return self.path.is_file()

    @property
    def is_complete(self) -> bool:
        return self.offset == self.length

    def expires(self, hours: float) -> float:
        """Time at which the upload is removed if nothing more arrives, in seconds since 1970."""
        try:
            return last_change(self.directory, self.path.stat().st_mtime) + hours * 3600
        except OSError:
            raise gone() from None


class Writing:
    """The open end of an upload, for one writer at a time in any process. May be used from several threads."""

    def __init__(self, upload: Upload, *, is_verified_later: bool = False) -> None:
        """`is_verified_later`: what is written counts only once `verify` was called, also if this process is killed
        before.
        """
        self._upload = upload
        self._mutex = threading.Lock()
        self._hold = ExitStack()
        self._hold.enter_context(held(upload.directory, tries=_TRIES))
        try:
            self._file = os.open(upload.path, os.O_WRONLY | os.O_NOFOLLOW)
            self._settle_unverified()
            self.offset = upload.offset
            if is_verified_later:
                write_atomic(self._marker, str(self.offset).encode(), mode=0o600)
        except BaseException as error:
            self._hold.close()
            if isinstance(error, OSError):
                raise refused(error, upload.directory) from error
            raise

    @property
    def _marker(self) -> Path:
        return self._upload.directory / UNVERIFIED

    def _settle_unverified(self) -> None:
        """Cut off bytes whose checksum an earlier writer did not live to compare."""
        if self._marker.exists():
            os.ftruncate(self._file, min(self._upload.offset, os.fstat(self._file).st_size))
            self._marker.unlink()

    def write(self, place: int, data: bytes | bytearray) -> None:
        """Write at `place`; the same again changes nothing. UploadError for more than was announced (413), or a full
        disk (507).
        """
        if place + len(data) > self._upload.length:
            raise UploadError(
                f"more arrives than the {self._upload.length:,} bytes that were announced; nothing more is taken.", 413
            )
        view = memoryview(data)
        with self._mutex:
            try:
                written = 0
                while written < len(view):
                    written += os.pwrite(self._file, view[written:], place + written)
            except OSError as error:
                raise refused(error, self._upload.directory) from error
            finally:
                self.offset = max(self.offset, place + written)

    def verify(self) -> None:
        """Let what was written count."""
        self._marker.unlink(missing_ok=True)

    def settle(self) -> None:
        """Bring what was written onto the disk: what the sender is told to have arrived survives a power failure."""
        try:
            os.fsync(self._file)
        except OSError as error:
            raise refused(error, self._upload.directory) from error

    def close(self) -> None:
        """Let the next one write. What was to be verified and was not is cut off."""
        with self._mutex:
            try:
                with suppress(OSError, UploadError):
                    self._settle_unverified()
                os.close(self._file)
            finally:
                self._hold.close()


@contextmanager
def held(place: Path, *, wait: bool = False, tries: int = 1) -> Iterator[None]:
    """Keep others from sending to the upload in this directory or saving it; UploadError (423) where somebody does, and
    nobody waits.

    tries: more than one pass over who holds it for a moment only: a look at whether it is held, or a process that this
    one has just started, which has the lock of a request that is over until it becomes another program.
    """
    for left in reversed(range(tries)):
        try:
            descriptor = lock(place / LOCK, wait=wait)
            break
        except BlockingIOError:
            if not left:
                raise UploadError("somebody else is sending to this upload; try again in a moment.", 423) from None
            time.sleep(_BETWEEN_SECONDS)
        except OSError as error:
            raise refused(error, place) from error
    try:
        yield
    finally:
        os.close(descriptor)


def last_change(place: Path, moment: float) -> float:
    """Time of the last change: `moment`, seconds since 1970. Of one that is yet to come nobody can say how long ago it
    was: it counts from when that was first seen.

    The files keep their own times, for it may be our clock that is wrong, and for a while only.
    """
    now, marker = time.time(), place / _AHEAD
    if moment <= now + _SKEW_SECONDS:
        marker.unlink(missing_ok=True)
        return moment
    if not marker.exists() or marker.stat().st_mtime > now + _SKEW_SECONDS:
        marker.touch(mode=0o600)
        os.utime(marker, (now, now))
    return marker.stat().st_mtime


def gone() -> UploadError:
    return UploadError("there is no such upload (any more); send the file again.", 404)


def refused(error: OSError, place: Path) -> UploadError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return UploadError("the server's disk is full; what has arrived is kept.", 507)
    if error.errno in (errno.ENOENT, errno.ELOOP):
        return gone()
    return UploadError(f"{place.name}: the upload cannot be written ({error.strerror}).", 500)


def _number(path: Path) -> int:
    """Number in a marker; 0, so that nothing is trusted, where there is none."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0
