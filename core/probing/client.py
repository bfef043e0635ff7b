"""HTTP for a probe: bounded JSON answers, retries with backoff, a limit of requests,
cancellation.
"""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx2 as httpx

from ..errors import DumpError, UlpscopeError
from ..responses.bounded_json import error_in, parse
from ..text import clean
from .plan import base_of

MOST_BYTES = 128 << 20  # of one answer
_CONNECTIONS = 80  # at once
_ANSWER_SECONDS = 300.0  # for one answer
_TRIES = 6  # of a request that a server defers
# seconds between two tries, even if a server asks for more
_LONGEST_PAUSE = 30.0
_AGAIN = (429, 503)
_SHOWN = 200  # characters of a server's error message


class ProbeError(UlpscopeError):
    """A server that cannot be probed, or an unusable answer."""


class StoppedError(UlpscopeError):
    """The early end of a probe: it was cancelled, or its budget is spent."""


@dataclass
class Budget:
    """Limit of a probe in requests; for any thread. cancelled: ends it."""

    requests: int = 2000
    cancelled: threading.Event = field(default_factory=threading.Event)
    requests_sent: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self) -> None:
        """Count a request. StoppedError if it exceeds the budget."""
        with self._lock:
            self.check()
            if self.requests_sent >= self.requests:
                raise StoppedError(f"the {self.requests:,} requests of --max-requests are spent")
            self.requests_sent += 1

    def check(self) -> None:
        """Raise StoppedError once the probe is cancelled."""
        if self.cancelled.is_set():
            raise StoppedError("it was cancelled")

    def pause(self, seconds: float) -> None:
        """Wait this long, or until the probe is cancelled."""
        self.cancelled.wait(seconds)
        self.check()


class Client:
    """A server over HTTP, for any thread. key: sent as Bearer, in no message."""

    def __init__(self, url: str, *, key: str = "", budget: Budget | None = None) -> None:
        self.url = base_of(url)
        self.budget = budget or Budget()
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        limits = httpx.Limits(max_connections=_CONNECTIONS, max_keepalive_connections=_CONNECTIONS)
        self._http = httpx.Client(
            base_url=self.url,
            headers=headers,
            limits=limits,
            # else the key would pass through a proxy that HTTP_PROXY names
            trust_env=False,
        )

    def close(self) -> None:
        self._http.close()

    def get(self, path: str) -> Any:
        """Return the JSON at a path, None if there is none.

        ProbeError if the server cannot be reached.
        """
        status, body = self._send("GET", path, None)
        try:
            return parse(body, path) if status == 200 else None
        except DumpError:
            return None

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Return the JSON of the answer. ProbeError for anything else."""
        answer = self.post_bytes(path, body)
        try:
            return parse(answer, path)
        except DumpError as error:
            is_html = answer.lstrip()[:1] == b"<"
            page = f"{path}: the server sends an HTML page; is this the address of the engine?"
            raise ProbeError(page if is_html else str(error)) from None

    def post_bytes(self, path: str, body: Mapping[str, Any]) -> bytes:
        """Return the answer's bytes."""
        status, answer = self._send("POST", path, body)
        if status == 200:
            return answer
        if 300 <= status < 400:
            reason = f"the server redirects ({status}); give the address that it redirects to."
        elif status in (401, 403):
            reason = f"the server needs a key ({status}); set ULPSCOPE_PROBE_KEY."
        else:
            reason = f"the server answers {status}: {error_text(answer)}"
        raise ProbeError(f"{path}: {reason}")

    def drop_stream(self, path: str, body: Mapping[str, Any]) -> None:
        """Ask for a stream, and close the connection at its first bytes."""
        body = {**body, "stream": True}
        try:
            with self._http.stream("POST", path, json=body, timeout=60.0) as answer:
                next(answer.iter_bytes(), b"")
        except httpx.RequestError as error:
            raise ProbeError(f"{path}: no stream ({type(error).__name__}).") from None
        if answer.status_code != 200:
            raise ProbeError(f"{path}: the server answers {answer.status_code} to a stream.")

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None) -> tuple[int, bytes]:
        """Return status and body.

        Retry if the server defers the request, and once after a broken connection.
        """
        for attempt in range(_TRIES):
            self.budget.check()
            pause = 0.5 * 2**attempt
            try:
                status, answer, retry_after = self._once(method, path, body)
                if status not in _AGAIN or attempt == _TRIES - 1:
                    return status, answer
                pause = pause if retry_after is None else retry_after
            except httpx.RequestError as error:
                self.budget.check()
                if attempt or not isinstance(error, httpx.ConnectError | httpx.RemoteProtocolError):
                    reason = f"{path}: the connection broke"
                    if isinstance(error, httpx.ConnectError):
                        reason = f"{self.url} cannot be reached"
                    elif isinstance(error, httpx.TimeoutException):
                        reason = f"{path}: the server does not answer in time"
                    raise ProbeError(
                        f"{reason} ({clean(error, _SHOWN) or type(error).__name__}).",
                    ) from None
            self.budget.pause(min(_LONGEST_PAUSE, pause))
        raise AssertionError("the last try returns or raises")

    def _once(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
    ) -> tuple[int, bytes, float | None]:
        # the timeout of httpx is for one read: a slow stream would never reach it
        deadline = time.monotonic() + _ANSWER_SECONDS
        content = bytearray()
        timeout = httpx.Timeout(_ANSWER_SECONDS, connect=10.0, write=60.0)
        with self._http.stream(method, path, json=body, timeout=timeout) as answer:
            for piece in answer.iter_bytes():
                content += piece
                if len(content) > MOST_BYTES:
                    raise ProbeError(
                        f"{path}: the server sends more than {MOST_BYTES:,} bytes; request fewer"
                        " tokens.",
                    )
                if time.monotonic() > deadline:
                    raise ProbeError(
                        f"{path}: no complete answer within {_ANSWER_SECONDS:g} seconds.",
                    )
                self.budget.check()
            delay = answer.headers.get("retry-after", "")
            # a date is not read
            return answer.status_code, bytes(content), float(delay) if delay.isdecimal() else None


def error_text(answer: bytes) -> str:
    """Return a server's error message: of its JSON, else its first characters."""
    try:
        value = parse(answer, "answer")
    except DumpError:
        return clean(answer.decode("utf-8", "replace").strip(), _SHOWN) or "nothing"
    return clean(error_in(value), _SHOWN)
