"""Uploads on disk: `STORE/.uploads/ID/` holds what arrived of a file, what is known of it, and a lock. No HTTP and no Streamlit here.

How much has arrived is the size of the file, nothing else, so a server that is killed in the middle of a request loses none of it, and
every process that serves the same store can go on. The lock is flock's: who sends to an upload, or saves it, holds it, in one process or
in two, and the system drops it with the process.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.hosting.identity import Identity
from core.configuration import Limits
from core.errors import UlpscopeError
from core.runs.limits import UPLOADS, check_space
from core.runs.store import Store, to_disk

FOLDER = UPLOADS
LONGEST_NAME = 255  # characters of the sender's name for a file, as it is shown
_LONGEST_FILE_NAME = 200  # bytes of the name it has here
_LONGEST_ABOUT = 100
_ID = re.compile(r"[0-9a-f]{32}")
_ABOUT, _LOCK, _CONTENT, _UNVERIFIED = "upload.json", "lock", "file", "unverified"
_LARGEST_ABOUT = 16 << 10  # bytes
_NEW, _GOING = ".new-", ".going-"
_ABANDONED_SECONDS = 3600  # a directory that a killed process had begun to make or to remove
_AHEAD = "ahead"  # its time: when an upload was first seen that was written to by a clock that is ahead of ours
_SKEW_SECONDS = 60


class UploadError(UlpscopeError):
    """What an upload cannot do; `status` is HTTP's for it."""

    def __init__(self, sentence: str, status: int = 400) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass(frozen=True)
class Upload:
    """One file on its way in, as it was announced. length: bytes; created: seconds since 1970; owner: who may see it.

    name: the sender's name for it, untrusted; path: where it lies, under a name that is safe. modified and browser are the sender's words
    about the file and itself, by which it finds the upload again.
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
            marker = self.directory / _UNVERIFIED
            return min(size, _number(marker)) if marker.exists() else size
        except OSError:
            raise _gone() from None

    @property
    def is_there(self) -> bool:
        """Whether the file is where it was announced to be; it is not in a damaged entry."""
        return self.path.is_file()

    @property
    def is_complete(self) -> bool:
        return self.offset == self.length

    def expires(self, hours: float) -> float:
        """When it is removed if nothing more arrives, in seconds since 1970."""
        try:
            return _last_change(self.directory, self.path.stat().st_mtime) + hours * 3600
        except OSError:
            raise _gone() from None


class Spool:
    """All uploads of a store. Any number of processes may use one directory."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.directory = store.directory / FOLDER

    def create(
        self, owner: str, name: str, length: int, limits: Limits, *, modified: str = "", browser: str = ""
    ) -> Upload:  # fmt: skip
        """Announce a file of `length` bytes. UploadError or LimitError where it is too large, there are too many, or the disk is full."""
        if limits.file_bytes and length > limits.file_bytes:
            raise UploadError(f"the file has {length:,} bytes; this server takes files of at most {limits.file_bytes:,}.", 413)
        with self._writing():
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _locked(self.directory / _LOCK, wait=True):  # so that two that come at once do not both take the last place
                self.expire(limits.upload_hours)
                others = self._all()
                if limits.uploads and len(others) >= limits.uploads:
                    raise UploadError(
                        f"{len(others)} uploads are unfinished or not saved, as many as this server keeps; remove one, or try again later.", 429
                    )  # fmt: skip
                check_space(self._store, length + sum(_missing(other) for other in others), limits)  # what arrived lies there
                return self._made(secrets.token_hex(16), owner, name, length, modified, browser)

    def _made(self, upload_id: str, owner: str, name: str, length: int, modified: str, browser: str) -> Upload:
        """Whole or not at all: made under another name, then renamed."""
        new, file = self.directory / f"{_NEW}{upload_id}", safe_name(name)
        try:
            (new / _CONTENT).mkdir(mode=0o700, parents=True)
            new.chmod(0o700)
            about = {
                "owner": owner, "name": name[:LONGEST_NAME], "length": length, "created": time.time(),
                "modified": modified[:_LONGEST_ABOUT], "browser": browser[:_LONGEST_ABOUT], "file": file,
            }  # fmt: skip
            _write_whole(new / _CONTENT / file, b"")
            _write_whole(new / _ABOUT, json.dumps(about).encode())
            place = self.directory / upload_id
            new.rename(place)
            to_disk(self.directory)
        except OSError:
            shutil.rmtree(new, ignore_errors=True)
            raise
        return self._read(upload_id)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise _refused(error, self.directory) from error

    def find(self, upload_id: str, owner: str) -> Upload:
        """An upload of `owner`; UploadError (404) for any other."""
        upload = self._read(upload_id)
        if upload.owner != owner:
            raise _gone()
        return upload

    def listed(self, owner: str) -> list[Upload]:
        """The uploads of `owner` that nobody has saved yet, the oldest first."""
        return sorted((upload for upload in self._all() if upload.owner == owner), key=lambda upload: upload.created)

    def finished(self, upload_id: str, owner: str) -> Path:
        """Where a file lies that has arrived whole; UploadError where it has not."""
        upload = self.find(upload_id, owner)
        if not upload.is_complete:
            raise UploadError(f"{upload.offset:,} of {upload.length:,} bytes have arrived; the upload is not finished.", 409)
        return upload.path

    def remove(self, upload: Upload) -> None:
        """Remove what arrived; UploadError (409) while it is being saved. A sender that is still at work writes into nothing."""
        if upload.is_there and upload.is_complete and self.is_held(upload):
            raise UploadError("this upload is being saved as a run; cancel that first.", 409)
        self._remove(upload.directory)

    def _remove(self, place: Path) -> None:
        going = self.directory / f"{_GOING}{place.name}"
        with self._writing():
            try:
                place.rename(going)
            except FileNotFoundError:
                raise _gone() from None
        shutil.rmtree(going, ignore_errors=True)

    def is_held(self, upload: Upload) -> bool:
        """Whether somebody sends to the upload, or saves it, at this moment."""
        return _is_held(upload.directory)

    def expire(self, hours: float) -> list[str]:
        """Remove uploads that nobody has continued for so long (0: never); returns their ids. Those that are held stay."""
        removed = []
        for place in self._places() if hours else ():
            with suppress(UlpscopeError, OSError):
                if self._expires(place, hours) < time.time() and not _is_held(place):
                    self._remove(place)
                    removed.append(place.name)
        for passing in [*self.directory.glob(f"{_NEW}*"), *self.directory.glob(f"{_GOING}*")]:
            with suppress(OSError):
                if abs(time.time() - passing.stat().st_mtime) > _ABANDONED_SECONDS:
                    shutil.rmtree(passing, ignore_errors=True)
        return removed

    def _expires(self, place: Path, hours: float) -> float:
        """Of a damaged entry too, which nobody can continue: by the last change of anything in it."""
        try:
            return self._read(place.name).expires(hours)
        except UploadError:
            return _last_change(place, max(path.lstat().st_mtime for path in (place, *place.rglob("*")))) + hours * 3600

    def _places(self) -> list[Path]:
        try:
            return [place for place in self.directory.iterdir() if _ID.fullmatch(place.name)]
        except OSError:
            return []

    def _all(self) -> list[Upload]:
        """Those that can be continued or saved; a damaged entry takes nobody's place, and expires."""
        found = []
        for place in self._places():
            with suppress(UploadError):
                found.append(self._read(place.name))
        return [upload for upload in found if upload.is_there]

    def _read(self, upload_id: str) -> Upload:
        if not _ID.fullmatch(upload_id):
            raise _gone()
        place = self.directory / upload_id
        try:
            descriptor = os.open(place / _ABOUT, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with os.fdopen(descriptor, "rb") as file:
                about = json.loads(file.read(_LARGEST_ABOUT))
            return _upload(upload_id, place, about)
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            raise _gone() from None


def _upload(upload_id: str, place: Path, about: Mapping[str, Any]) -> Upload:
    file = str(about["file"])
    if file in ("", ".", "..") or "/" in file or "\0" in file:
        raise ValueError(f"{file!r} is no name of a file")
    return Upload(
        upload_id=upload_id, owner=str(about["owner"]), name=str(about["name"]), length=int(about["length"]),
        created=float(about["created"]), modified=str(about["modified"]), browser=str(about["browser"]), directory=place,
        path=place / _CONTENT / file,
    )  # fmt: skip


class Writing:
    """The open end of an upload, for one writer at a time in any process. May be used from several threads."""

    def __init__(self, upload: Upload, *, is_verified_later: bool = False) -> None:
        """`is_verified_later`: what is written counts only once `verify` was called, also if this process is killed before."""
        self._upload = upload
        self._mutex = threading.Lock()
        self._hold = _locked(upload.directory / _LOCK)
        self._hold.__enter__()
        try:
            self._file = os.open(upload.path, os.O_WRONLY | os.O_NOFOLLOW)
            self._settle_unverified()
            self.offset = upload.offset
            if is_verified_later:
                beside = self._marker.with_suffix(".new")
                _write_whole(beside, str(self.offset).encode())
                beside.rename(self._marker)
        except BaseException as error:
            self._hold.__exit__(None, None, None)
            if isinstance(error, OSError):
                raise _refused(error, upload.directory) from error
            raise

    @property
    def _marker(self) -> Path:
        return self._upload.directory / _UNVERIFIED

    def _settle_unverified(self) -> None:
        """Bytes whose checksum an earlier writer did not live to compare are cut off."""
        if self._marker.exists():
            os.ftruncate(self._file, min(self._upload.offset, os.fstat(self._file).st_size))
            self._marker.unlink()

    def write(self, place: int, data: bytes | bytearray) -> None:
        """Write at `place`; the same again changes nothing. UploadError for more than was announced (413), or a full disk (507)."""
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
                raise _refused(error, self._upload.directory) from error
            finally:
                self.offset = max(self.offset, place + written)

    def verify(self) -> None:
        """What was written counts."""
        self._marker.unlink(missing_ok=True)

    def settle(self) -> None:
        """Onto the disk: what the sender is told to have arrived survives a power failure."""
        try:
            os.fsync(self._file)
        except OSError as error:
            raise _refused(error, self._upload.directory) from error

    def close(self) -> None:
        """Let the next one write. What was to be verified and was not is cut off."""
        with self._mutex:
            try:
                with suppress(OSError, UploadError):
                    self._settle_unverified()
                os.close(self._file)
            finally:
                self._hold.__exit__(None, None, None)


@contextmanager
def held(upload: Upload) -> Iterator[None]:
    """Nobody else sends to the upload or saves it meanwhile; UploadError (423) where somebody does."""
    with _locked(upload.directory / _LOCK):
        yield


@contextmanager
def _locked(path: Path, *, wait: bool = False) -> Iterator[None]:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _refused(error, path.parent) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise UploadError("somebody else is sending to this upload; try again in a moment.", 423) from None
        yield
    finally:
        os.close(descriptor)


def owner_of(who: Identity) -> str:
    """Whose uploads somebody may see: their own, told apart by how they signed in and as whom."""
    return f"{who.way}:{who.name}"


def safe_name(name: str) -> str:
    """A sender's name for a file without anything that means something to a file system; its ending stays. Never empty."""
    last = name.replace("\\", "/").rsplit("/", 1)[-1]
    safe = "".join(c if c.isalnum() or c in "._- +" else "_" for c in last).strip(" .")
    stem, _, ending = safe.rpartition(".")
    if not stem or len(ending) > 20:
        stem, ending = safe, ""
    room = _LONGEST_FILE_NAME - len(f".{ending}".encode())
    stem = stem.encode()[:room].decode(errors="ignore").rstrip(" .") or "dump"
    return f"{stem}.{ending}" if ending else stem


def _last_change(place: Path, moment: float) -> float:
    """`moment`, seconds since 1970. Of one that is yet to come nobody can say how long ago it was: it counts from when that was first seen.

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


def _is_held(place: Path) -> bool:
    try:
        with _locked(place / _LOCK):
            return False
    except UploadError as error:
        return error.status == 423


def _missing(upload: Upload) -> int:
    """Bytes that are still to come."""
    try:
        return max(0, upload.length - upload.offset)
    except UploadError:
        return 0


def _gone() -> UploadError:
    return UploadError("there is no such upload (any more); send the file again.", 404)


def _refused(error: OSError, place: Path) -> UploadError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return UploadError("the server's disk is full; what has arrived is kept.", 507)
    if error.errno in (errno.ENOENT, errno.ELOOP):
        return _gone()
    return UploadError(f"{place.name}: the upload cannot be written ({error.strerror}).", 500)


def _number(path: Path) -> int:
    """What a marker says; 0, so that nothing is trusted, where it says nothing."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0


def _write_whole(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
