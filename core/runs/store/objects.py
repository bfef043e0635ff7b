"""The edge to fsspec, which only this module imports: objects under a URL, listed, put, read by range and removed.

What a backend raises becomes one `StoreError` after `TRIES` attempts. Its messages are left out: they may quote an
address with a key in it. Credentials are the backend's own, from the environment; a URL that brings some is refused.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from ...disk import WRITING, place_new
from ...errors import ExtraError, StoreError, UsageError
from ...text import shown

TRIES = 3  # of every request; with the pauses between them and the time-outs below, a dead endpoint is known in 30 s
PAUSES = (0.2, 1.0)  # seconds before the second and the third
CONNECT_SECONDS, READ_SECONDS = 4, 20
_ABANDONED_SECONDS = 24 * 3600
_URL = re.compile(r"[a-z][a-z0-9+.-]*://.*", re.DOTALL)
_WHOLE = ("s3", "s3a", "gs", "gcs")  # whose put shows nothing before it is whole, and can be told not to replace
_TAGS = ("ETag", "etag", "md5Hash", "content_md5", "LastModified", "updated", "mtime", "created")
_NOT_WORTH_IT = (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError, NotImplementedError)
_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError", "NoAuthTokenError", "TokenRetrievalError")

Done = TypeVar("Done")


@dataclass(frozen=True)
class Object:
    """An object under the URL. tag: what the backend says of its contents, another where they are others."""

    name: str
    bytes: int
    tag: str

    @property
    def md5(self) -> str | None:
        """MD5 of the contents, where the tag is one: S3's of what was put in one piece."""
        return self.tag if re.fullmatch(r"[0-9a-f]{32}", self.tag) else None


def is_url(text: str) -> bool:
    """Return whether a store's name is a URL and no directory."""
    return _URL.fullmatch(text) is not None


class Objects:
    """The objects directly under a URL, and in the folders that are named."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        parts = urlsplit(url)
        if "@" in parts.netloc or parts.query or parts.fragment:
            raise UsageError(
                "a store's URL is scheme://bucket/prefix and nothing more; credentials belong in the environment of"
                " its backend (docs/object_storage.md)."
            )
        self._scheme = parts.scheme
        self._fs = _filesystem(parts.scheme)
        self._root = str(self._fs._strip_protocol(self.url)).rstrip("/")
        if not (parts.netloc + parts.path).strip("/"):
            raise UsageError(f"{shown(self.url)}: names no place to keep runs in; expected scheme://bucket/prefix.")

    def list(self, folder: str = "") -> dict[str, Object]:
        """Objects of a folder by name, as the backend lists them now; none where there is no such folder."""
        place = f"{self._root}/{folder}".rstrip("/")

        def ask() -> list[dict[str, Any]]:
            self._fs.invalidate_cache()
            try:
                return self._fs.ls(place, detail=True)
            except FileNotFoundError:
                if not self._fs.exists(self._root.split("/")[0]) and self._scheme in _WHOLE:
                    raise
                return []

        found = (self._object(info) for info in self._tried("list", ask) if info.get("type") == "file")
        return {each.name: each for each in found}

    def find(self, name: str) -> Object | None:
        """One object, asked for by its name, which a list may not have yet; None where there is none."""

        def ask() -> dict[str, Any] | None:
            self._fs.invalidate_cache()
            try:
                return self._fs.info(self._at(name))
            except FileNotFoundError:
                return None

        info = self._tried("look at", ask)
        return None if info is None or info.get("type") != "file" else self._object(info)

    def read(self, name: str, start: int | None = None, end: int | None = None) -> bytes | None:
        """Bytes [start, end) of an object; None where there is none any more."""

        def ask() -> bytes | None:
            try:
                return self._fs.cat_file(self._at(name), start=start, end=end)
            except FileNotFoundError:
                return None

        return self._tried("read", ask)

    def write(self, name: str, body: bytes) -> None:
        """Put a small object, over what is there."""
        self._make_folder(name)
        self._tried("write", lambda: self._fs.pipe_file(self._at(name), body))

    def put_new(self, path: Path, name: str) -> Object:
        """Put a file under a name that nobody has, whole; FileExistsError where somebody has it.

        An object store shows a put when it is whole, and makes it fail where the name is taken. Elsewhere what is put
        has another name first: half of it is never seen under its own.
        """
        size, digest = path.stat().st_size, _md5(path)
        self._make_folder(name)
        if self._scheme in _WHOLE:
            self._tried("write", lambda: self._create(path, name, size, digest))
        else:
            beside = f"{WRITING}{secrets.token_hex(8)}"
            try:
                self._tried("write", lambda: self._fs.put_file(str(path), self._at(beside)))
                self._check(beside, size, digest)
                self._tried("write", lambda: self._rename_new(beside, name))
            finally:
                with suppress(Exception):  # renamed, or as dead as what failed before
                    self._fs.rm_file(self._at(beside))
        return self._check(name, size, digest)

    def remove(self, name: str) -> bool:
        """Remove an object; False where there is none."""

        def ask() -> bool:
            try:
                if self._fs.info(self._at(name)).get("type") == "file":
                    self._fs.rm_file(self._at(name))
                    return True
            except FileNotFoundError:
                pass
            return False

        return self._tried("remove", ask)

    def tidy(self) -> None:
        """Remove what killed writers left behind a day ago or earlier."""
        for name in self.list():
            if name.startswith(WRITING) and self._age(name) > _ABANDONED_SECONDS:
                self.remove(name)

    def _age(self, name: str) -> float:
        try:
            return time.time() - self._fs.modified(self._at(name)).timestamp()
        except Exception:  # gone, or a backend without times
            return 0.0

    def _create(self, path: Path, name: str, size: int, digest: str) -> None:
        """A put that is answered too late has happened: what is there then is looked at, and may be ours."""
        try:
            self._fs.put_file(str(path), self._at(name), mode="create")
        except Exception as error:
            if not (isinstance(error, FileExistsError) or _code(error) in ("PreconditionFailed", "412")):
                raise
            found = self.find(name)
            if found is None or found.bytes != size or found.md5 != digest:
                raise FileExistsError(errno.EEXIST, "exists", name) from None

    def _rename_new(self, beside: str, name: str) -> None:
        if self._scheme in ("file", "local"):
            place_new(Path(self._at(beside)), Path(self._at(name)))
            return
        if self._fs.exists(self._at(name)):
            raise FileExistsError(errno.EEXIST, "exists", name)
        self._fs.mv(self._at(beside), self._at(name))

    def _check(self, name: str, size: int, digest: str) -> Object:
        """StoreError where what arrived is not what was put."""
        found = self.find(name)
        if found is None or found.bytes != size or found.md5 not in (None, digest):
            arrived = "nothing" if found is None else f"{found.bytes:,} bytes"
            raise StoreError(f"{shown(self.url)}: {size:,} bytes were put there and {arrived} arrived.")
        return found

    def _make_folder(self, name: str) -> None:
        if self._scheme not in _WHOLE:  # which have no folders
            folder = self._at(name).rpartition("/")[0]
            self._tried("write", lambda: self._fs.makedirs(folder, exist_ok=True))

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _object(self, info: dict[str, Any]) -> Object:
        name = str(info["name"]).rstrip("/").rpartition("/")[2]
        tag = next((_told(info[key]) for key in _TAGS if info.get(key) not in (None, "")), "")
        return Object(name, int(info.get("size") or 0), tag)

    def _tried(self, what: str, ask: Callable[[], Done]) -> Done:
        for attempt in range(TRIES):
            try:
                return ask()
            except (StoreError, FileExistsError):
                raise
            except Exception as error:
                is_last = attempt == TRIES - 1 or isinstance(error, _NOT_WORTH_IT) or _is_refused(error)
                if is_last:
                    raise StoreError(f"{shown(self.url)}: cannot {what} objects there ({_why(error)}).") from None
                time.sleep(PAUSES[attempt])
        raise AssertionError("unreachable")


def _filesystem(scheme: str) -> Any:
    """fsspec's file system of a scheme, which keeps no lists. ExtraError where its package is not installed."""
    try:
        import fsspec

        options: dict[str, Any] = {"use_listings_cache": False}
        if scheme in ("s3", "s3a"):
            # Attempts are counted here, for every backend alike; botocore and s3fs would multiply theirs.
            limits = {"connect_timeout": CONNECT_SECONDS, "read_timeout": READ_SECONDS, "retries": {"max_attempts": 0}}
            found = fsspec.filesystem(
                scheme, config_kwargs=limits, session=_session(), skip_instance_cache=True, **options
            )
            found.retries = 1
            return found
        return fsspec.filesystem(scheme, **options)
    except ImportError as error:
        brings = (
            "the package's extra 's3' brings them (pip install '.[s3]' in a clone)"
            if scheme in ("s3", "s3a")
            else "install those"
        )
        missing = "fsspec" if error.name == "fsspec" else "fsspec and the package that it names for this scheme"
        needed = "fsspec and s3fs" if scheme in ("s3", "s3a") else missing
        raise ExtraError(f"a store on {scheme}:// takes {needed}, not installed here; {brings}.") from None
    except ValueError:
        raise UsageError(
            f"a store's URL begins with a scheme that fsspec knows, such as s3:// or gs://; '{shown(scheme, 40)}' is"
            " none."
        ) from None


def _session() -> Any:
    """Session of aiobotocore whose puts do not ask whether they may go on ("Expect: 100-continue"): as that is
    answered, aiohttp at times forgets to count the seconds until the real answer, and would wait for it without end.
    """
    from aiobotocore.session import AioSession  # s3fs brings both
    from botocore.handlers import add_expect_header

    session = AioSession()
    session.unregister("before-call.s3", add_expect_header)
    return session


def _told(value: object) -> str:
    """Tag as text: a list and a look at one object may have the same time in two forms."""
    if isinstance(value, datetime):
        value = value.timestamp()
    return f"{value:.6f}" if isinstance(value, float) else str(value).strip('"')


def _code(error: BaseException) -> str:
    """Code of an error that an S3 server answered; '' where it is another."""
    for each in (error, error.__cause__, error.__context__):
        response = getattr(each, "response", None)
        if isinstance(response, dict):
            return str(response.get("Error", {}).get("Code", ""))
    return ""


def _is_refused(error: BaseException) -> bool:
    return type(error).__name__ in _CREDENTIALS or _code(error) in ("PreconditionFailed", "412")


def _why(error: BaseException) -> str:
    """Cause in words of ours: a backend's own may quote keys."""
    name = type(error).__name__
    if name in _CREDENTIALS:
        return "no credentials for it are in the environment"
    if isinstance(error, PermissionError):
        return "access is denied"
    if isinstance(error, FileNotFoundError):
        return "there is no such bucket or folder"
    if isinstance(error, TimeoutError) or "Timeout" in name:
        return f"no answer in time, {TRIES} times"
    if isinstance(error, ConnectionError) or "Connect" in name:
        return f"no connection, {TRIES} times"
    code = _code(error)
    said = f"{name} {code}" if code else name
    number = getattr(error, "errno", None)
    return f"{said}: {os.strerror(number)}" if isinstance(number, int) and number > 0 else shown(said, 80)


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def has_md5(path: Path, digest: str) -> bool:
    """Return whether a file has this MD5, hexadecimal."""
    return _md5(path) == digest
