"""Uploads on disk: `STORE/.uploads/ID/` holds what arrived of a file, what is known of it, and a lock. No HTTP and no
Streamlit here.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from app.uploads.partial_file import Upload, UploadError, gone, held, last_change, refused
from core.configuration import Limits
from core.disk import read_regular, to_disk, write_atomic
from core.errors import UlpscopeError
from core.runs.store.store import Store
from core.text import file_name

FOLDER, CONTENT = ".uploads", "file"  # what arrives is FOLDER/ID/CONTENT/NAME
LONGEST_NAME = 255  # characters of the sender's name for a file, as it is shown
_LONGEST_FILE_NAME = 200  # bytes of the name it has here
_LONGEST_ABOUT = 100
_ID = re.compile(r"[0-9a-f]{32}")
_ABOUT = "upload.json"
_LARGEST_ABOUT = 16 << 10  # bytes
_NEW, _GOING = ".new-", ".going-"
_ABANDONED_SECONDS = 3600  # a directory that a killed process had begun to make or to remove


class Spool:
    """All uploads of a store. Any number of processes may use one directory."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.directory = store.directory / FOLDER

    def create(
        self, owner: str, name: str, length: int, limits: Limits, *, modified: str = "", browser: str = ""
    ) -> Upload:
        """Announce a file of `length` bytes. UploadError or LimitError where it is too large, there are too many, or
        the disk is full.
        """
        if limits.file_bytes and length > limits.file_bytes:
            raise UploadError(
                f"the file has {length:,} bytes; this server takes files of at most {limits.file_bytes:,}.", 413
            )
        with self._writing():
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with held(self.directory, wait=True):  # so that two that come at once do not both take the last place
                self.expire(limits.upload_hours)
                others = self._all()
                if limits.uploads and len(others) >= limits.uploads:
                    raise UploadError(
                        f"{len(others)} uploads are unfinished or not saved, as many as this server keeps; remove one,"
                        " or try again later.",
                        429,
                    )
                self._store.check_space(length)
                return self._made(secrets.token_hex(16), owner, name, length, modified, browser)

    def _made(self, upload_id: str, owner: str, name: str, length: int, modified: str, browser: str) -> Upload:
        """Make an upload whole or not at all: under another name, then renamed."""
        new, file = self.directory / f"{_NEW}{upload_id}", file_name(name, _LONGEST_FILE_NAME) or "dump"
        try:
            (new / CONTENT).mkdir(mode=0o700, parents=True)
            new.chmod(0o700)
            about = {
                "owner": owner,
                "name": name[:LONGEST_NAME],
                "length": length,
                "created": time.time(),
                "modified": modified[:_LONGEST_ABOUT],
                "browser": browser[:_LONGEST_ABOUT],
                "file": file,
            }
            write_atomic(new / CONTENT / file, b"", mode=0o600)
            write_atomic(new / _ABOUT, json.dumps(about).encode(), mode=0o600)
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
            raise refused(error, self.directory) from error

    def find(self, upload_id: str, owner: str) -> Upload:
        """An upload of `owner`; UploadError (404) for any other."""
        upload = self._read(upload_id)
        if upload.owner != owner:
            raise gone()
        return upload

    def listed(self, owner: str) -> list[Upload]:
        """The uploads of `owner` that nobody has saved yet, the oldest first."""
        return sorted((upload for upload in self._all() if upload.owner == owner), key=lambda upload: upload.created)

    def finished(self, upload_id: str, owner: str) -> Path:
        """Path of a file that has arrived whole; UploadError where it has not."""
        upload = self.find(upload_id, owner)
        if not upload.is_complete:
            raise UploadError(
                f"{upload.offset:,} of {upload.length:,} bytes have arrived; the upload is not finished.", 409
            )
        return upload.path

    def remove(self, upload: Upload) -> None:
        """Remove what arrived; UploadError (409) while it is being saved. A sender that is still at work writes into
        nothing.
        """
        if upload.is_there and upload.is_complete and self.is_held(upload):
            raise UploadError("this upload is being saved as a run; cancel that first.", 409)
        self._remove(upload.directory)

    def _remove(self, place: Path) -> None:
        going = self.directory / f"{_GOING}{place.name}"
        with self._writing():
            try:
                place.rename(going)
            except FileNotFoundError:
                raise gone() from None
        shutil.rmtree(going, ignore_errors=True)

    def is_held(self, upload: Upload) -> bool:
        """Return whether somebody sends to the upload, or saves it, at this moment."""
        return _is_held(upload.directory)

    def expire(self, hours: float) -> list[str]:
        """Remove uploads that nobody has continued for so long (0: never); returns their ids. Those that are held
        stay.
        """
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
        """Time at which an upload expires, a damaged entry too, which nobody can continue: by the last change of
        anything in it.
        """
        try:
            return self._read(place.name).expires(hours)
        except UploadError:
            return last_change(place, max(path.lstat().st_mtime for path in (place, *place.rglob("*")))) + hours * 3600

    def _places(self) -> list[Path]:
        try:
            return [place for place in self.directory.iterdir() if _ID.fullmatch(place.name)]
        except OSError:
            return []

    def _all(self) -> list[Upload]:
        """Uploads that can be continued or saved; a damaged entry takes nobody's place, and expires."""
        found = []
        for place in self._places():
            with suppress(UploadError):
                found.append(self._read(place.name))
        return [upload for upload in found if upload.is_there]

    def _read(self, upload_id: str) -> Upload:
        if not _ID.fullmatch(upload_id):
            raise gone()
        place = self.directory / upload_id
        try:
            return _upload(upload_id, place, json.loads(read_regular(place / _ABOUT, _LARGEST_ABOUT)))
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            raise gone() from None


def _upload(upload_id: str, place: Path, about: Mapping[str, Any]) -> Upload:
    file = str(about["file"])
    if file in ("", ".", "..") or "/" in file or "\0" in file:
        raise ValueError(f"{file!r} is no name of a file")
    return Upload(
        upload_id=upload_id,
        owner=str(about["owner"]),
        name=str(about["name"]),
        length=int(about["length"]),
        created=float(about["created"]),
        modified=str(about["modified"]),
        browser=str(about["browser"]),
        directory=place,
        path=place / CONTENT / file,
    )


def owner_of(who: str) -> str:
    """Owner of a member's uploads."""
    return who


def _is_held(place: Path) -> bool:
    try:
        with held(place):
            return False
    except UploadError as error:
        return error.status == 423
