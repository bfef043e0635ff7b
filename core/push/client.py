"""Push of a file to a server: small ones in one request, larger ones in pieces with a checksum each, which go on where
the connection broke.

The protocol of the pieces is tus 1.0.0 (tus.io/protocols/resumable-upload); a server without it gets one request. A
push that was stopped and is begun again goes on too: the server knows the file by its name, size and time of change.
"""

from __future__ import annotations

import base64
import hashlib
import io
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2 as httpx

from ..errors import UlpscopeError
from ..text import printable

PIECE_BYTES = 16 << 20  # below what proxies take for a body by default, where they were told of uploads at all
_WHOLE_BYTES = 4 << 20  # a file up to this size goes in one request
_READ_BYTES = 1 << 20
_WAIT_SECONDS = 20  # that the server keeps a question after the ingest open
_LONGEST_PAUSE = 20.0
_LONGEST_SENTENCE = 500  # characters of what a server says
_TUS = {"Tus-Resumable": "1.0.0"}

Tell = Callable[[str, int, int], None]


class PushError(UlpscopeError):
    """A push that did not come to its end; one sentence that says why."""


@dataclass(frozen=True)
class Pushing:
    """Order to push a file: what to send where. url: of the server, without a slash at the end; options: those of a
    dump.
    """

    path: Path
    name: str
    url: str
    token: str = field(default="", repr=False)
    patience_seconds: float = 300.0
    options: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Pushed:
    """The run as the server has it. resumed: how often the connection broke."""

    run_id: str
    url: str
    bytes: int
    resumed: int


def push_file(pushing: Pushing, tell: Tell, note: Callable[[str], None]) -> Pushed:
    """Send the file, wait until it is a run. PushError for everything that stands in the way."""
    headers = {"Authorization": f"Bearer {pushing.token}"} if pushing.token else {}
    timeout = httpx.Timeout(connect=15.0, read=90.0, write=90.0, pool=15.0)
    with httpx.Client(base_url=pushing.url, headers=headers, timeout=timeout, follow_redirects=False) as client:
        return _Push(pushing, client, tell, note).done()


class _Push:
    def __init__(self, pushing: Pushing, client: httpx.Client, tell: Tell, note: Callable[[str], None]) -> None:
        self._asked, self._client, self._tell, self._note = pushing, client, tell, note
        try:
            self._size, self._changed = pushing.path.stat().st_size, pushing.path.stat().st_mtime_ns
        except OSError as error:
            raise PushError(f"{pushing.path.name}: cannot be read ({error.strerror}).") from error
        self._resumed = 0
        self._is_all_sent = False

    def done(self) -> Pushed:
        """Send all of the file."""
        if self._size > _WHOLE_BYTES and self._is_resumable():
            upload = self._in_pieces()
            self._is_all_sent = True
            begun = self._once(lambda: self._begin({"upload": upload}))
        else:
            begun = self._patiently(lambda: self._once(self._whole))
        return self._followed(begun)

    def _is_resumable(self) -> bool:
        answer = self._patiently(lambda: self._client.options("/api/uploads"))
        if answer.status_code in (401, 403):
            self._refuse(answer)
        return answer.status_code in (200, 204) and "1.0.0" in answer.headers.get("tus-version", "")

    def _whole(self) -> dict[str, Any]:
        """Send the file in one request, with its digest, so that what was damaged on the way is not stored."""
        with self._opened() as file:
            digest = hashlib.file_digest(file, "sha256").digest()
        headers = {
            "Content-Length": str(self._size),
            "Content-Type": "application/octet-stream",
            "Repr-Digest": f"sha-256=:{base64.b64encode(digest).decode()}:",
        }
        return self._begin({}, headers, self._stream())

    def _stream(self) -> Iterator[bytes]:
        sent = 0
        with self._opened() as file:
            while part := file.read(_READ_BYTES):
                yield part
                sent += len(part)
                self._tell("sending", sent, self._size)
        self._is_all_sent = True

    def _once(self, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Run work that must not be asked twice once all has arrived, or there would be two runs."""
        try:
            return work()
        except httpx.TransportError as error:
            if not self._is_all_sent:
                raise
            raise PushError(
                f"{_why(error, self._asked.url)} All was sent by then; look whether the run is there before you push"
                " again."
            ) from error

    def _opened(self) -> io.BufferedReader:
        try:
            return self._asked.path.open("rb")
        except OSError as error:
            raise PushError(f"{self._asked.path.name}: cannot be read ({error.strerror}).") from error

    def _begin(
        self, more: dict[str, str], headers: dict[str, str] | None = None, content: Iterator[bytes] | None = None
    ) -> dict[str, Any]:
        """The request that makes the server take the file in."""
        address = f"/api/runs/{quote(_segment(self._asked.name), safe='')}"
        options = {"name": self._asked.name, **self._asked.options, **more}
        answer = self._client.put(address, params=options, headers=headers, content=content)
        return self._object(answer, (200, 201, 202))

    def _in_pieces(self) -> str:
        """The id of the upload, once all of it is there."""
        location, offset = self._patiently(self._announced)
        with self._opened() as file:
            while offset < self._size:
                file.seek(offset)
                piece = file.read(PIECE_BYTES)
                if not piece:
                    raise PushError(f"{self._asked.path.name}: has become shorter while it was sent.")
                offset = self._patiently(
                    partial(self._sent, location, offset, piece), again=partial(self._offset, location)
                )
                self._tell("sending", offset, self._size)
        return location.rstrip("/").rsplit("/", 1)[-1]

    def _announced(self) -> tuple[str, int]:
        """(address, bytes there already) of an upload of this very file that was begun before, else of a new one."""
        listed = self._client.get("/api/uploads")
        mark = str(self._changed)
        uploads = self._object(listed, (200,)).get("uploads")
        for known in uploads if isinstance(uploads, list) else ():
            if not isinstance(known, dict):
                raise self._odd()
            if (known.get("name"), known.get("bytes_total"), known.get("modified")) == (
                self._asked.path.name,
                self._size,
                mark,
            ):
                location, done = (
                    f"/api/uploads/{quote(self._text(known.get('id')), safe='')}",
                    self._arrived(known.get("bytes_done")),
                )
                self._note(f"going on at {done:,} of {self._size:,} bytes, which an earlier push sent.")
                return location, done
        about = {"filename": self._asked.path.name, "modified": mark}
        metadata = ",".join(
            f"{key} {base64.b64encode(value.encode('utf-8', 'replace')).decode()}" for key, value in about.items()
        )
        answer = self._client.post(
            "/api/uploads", headers={**_TUS, "Upload-Length": str(self._size), "Upload-Metadata": metadata}
        )
        if answer.status_code != 201:
            self._refuse(answer)
        try:
            location = httpx.URL(self._text(answer.headers.get("location"))).path
        except httpx.InvalidURL:
            raise self._odd() from None
        return location, 0

    def _sent(self, location: str, offset: int, piece: bytes) -> int:
        checksum = base64.b64encode(hashlib.sha256(piece).digest()).decode()
        answer = self._client.patch(
            location,
            content=piece,
            headers={
                **_TUS,
                "Upload-Offset": str(offset),
                "Content-Type": "application/offset+octet-stream",
                "Upload-Checksum": f"sha256 {checksum}",
            },
        )
        if answer.status_code in (
            409,
            423,
            460,
        ):  # another end than we thought, a sender not yet given up, bits changed on the way
            raise _Again(self._sentence(answer))
        if answer.status_code not in (200, 204):
            self._refuse(answer)
        arrived = self._arrived(answer.headers.get("upload-offset"))
        if arrived <= offset:  # or the same piece would be sent for ever
            raise self._odd()
        return arrived

    def _offset(self, location: str) -> int:
        answer = self._client.head(location, headers=_TUS)
        if answer.status_code == 404:
            raise PushError("the server no longer has what was sent so far; push again.")
        if answer.status_code not in (200, 204):
            self._refuse(answer)
        return self._arrived(answer.headers.get("upload-offset"))

    def _followed(self, said: dict[str, Any]) -> Pushed:
        """Follow the server's work until the run is there."""
        reserved = said.get("run_id")
        while said.get("state") not in ("done", "failed", "cancelled"):
            stage = _printable(said.get("stage") or said.get("state") or "waiting")
            self._tell(stage, self._count(said.get("rows_done") or 0), self._count(said.get("rows_total") or 0))
            said = self._patiently(partial(self._state, self._text(reserved)))
        if said["state"] != "done":
            raise PushError(f"the server did not take it: {_printable(said.get('message') or said['state'])}")
        run_id, url = (_printable(self._text(said.get(key))) for key in ("run_id", "url"))
        return Pushed(run_id, url, self._size, self._resumed)

    def _state(self, run_id: str) -> dict[str, Any]:
        address = f"/api/ingests/{quote(run_id, safe='')}"
        return self._object(self._client.get(address, params={"wait": _WAIT_SECONDS}), (200,))

    def _text(self, said: object) -> str:
        if not isinstance(said, str) or not said:
            raise self._odd()
        return said

    def _count(self, said: object) -> int:
        """A whole number, in JSON or in a header."""
        text = str(said)
        if not (text.isascii() and text.isdigit() and len(text) <= 18):
            raise self._odd()
        return int(text)

    def _arrived(self, said: object) -> int:
        """Bytes of the file that the server has."""
        if (arrived := self._count(said)) > self._size:
            raise self._odd()
        return arrived

    def _odd(self) -> PushError:
        return PushError(f"{self._asked.url}: does not answer as a ULPscope server does; expected the address of one.")

    def _patiently(self, work: Callable[[], Any], again: Callable[[], Any] | None = None) -> Any:
        """`work`, tried again while the connection fails, `again` instead where a second attempt must begin by asking.
        PushError in the end.
        """
        deadline, pause, attempt = time.monotonic() + self._asked.patience_seconds, 0.5, work
        while True:
            try:
                return attempt()
            except (httpx.TransportError, _Again) as error:
                sentence = str(error) if isinstance(error, _Again) else _why(error, self._asked.url)
                is_hopeless = isinstance(error, httpx.UnsupportedProtocol | httpx.LocalProtocolError) or _is_of_tls(
                    error
                )
                if is_hopeless or time.monotonic() + pause > deadline:
                    raise PushError(sentence) from error
                self._note(f"{sentence.rstrip('.')}; trying again in {pause:.0f} s.")
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
                self._resumed += 1
                attempt = again or work

    def _object(self, answer: httpx.Response, good: tuple[int, ...]) -> dict[str, Any]:
        try:
            said = answer.json()
        except (ValueError, RecursionError):
            said = None
        if answer.status_code == 422 and isinstance(said, dict) and said.get("state") == "failed":
            return said
        if answer.status_code not in good:
            self._refuse(answer)
        if not isinstance(said, dict):
            raise self._odd()
        return said

    def _refuse(self, answer: httpx.Response) -> None:
        sentence = self._sentence(answer)
        if answer.status_code == 401:
            hint = (
                "; is the token right, and still valid?"
                if self._asked.token
                else "; give --token-file or ULPSCOPE_TOKEN."
            )
            raise PushError(f"the server asks who you are (401): {sentence.rstrip('.')}{hint}")
        if answer.status_code == 404 and not sentence:
            raise PushError(f"{self._asked.url}: has no ULPscope API there (404).")
        raise PushError(f"the server refuses it ({answer.status_code}): {sentence or answer.reason_phrase}")

    @staticmethod
    def _sentence(answer: httpx.Response) -> str:
        """Error that a server's answer states, in one line; '' where it states none."""
        try:
            said = answer.json()
        except (ValueError, RecursionError):
            return ""
        text = str(said.get("error", "")) if isinstance(said, dict) else ""
        return _printable(text)


class _Again(Exception):  # noqa: N818  (no error: a reason to ask the server anew)
    """The server wants a piece sent again."""


def _printable(said: object) -> str:
    """Make what a server says one printable line; it may be anybody's."""
    return printable(str(said)[:_LONGEST_SENTENCE])


def _segment(name: str) -> str:
    """A name as the last part of an address; the whole of it travels beside."""
    return "".join(c if c.isalnum() else "-" for c in name).strip("-")[:60] or "run"


def _is_of_tls(error: BaseException) -> bool:
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, ssl.SSLError):
            return True
        seen = seen.__cause__ or seen.__context__
    return "certificate" in str(error).lower()


def _why(error: Exception, url: str) -> str:
    if _is_of_tls(error):
        return (
            f"{url}: its certificate or TLS cannot be trusted ({error}); SSL_CERT_FILE may name the authority that"
            " signed it."
        )
    if isinstance(error, httpx.TimeoutException):
        return f"{url}: does not answer in time."
    if isinstance(error, httpx.ConnectError):
        return f"{url}: cannot be reached ({error})."
    return f"{url}: the connection broke ({error or type(error).__name__})."
