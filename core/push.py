"""Push of a file to a server in parts, which goes on where the connection broke (docs/reference/api.md)."""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2 as httpx

from .errors import UlpscopeError
from .text import printable

PART_BYTES = 16 << 20
_WAIT_SECONDS = 5  # that the server holds a question about the import
_AGAIN = (408, 409, 429, 500, 502, 503, 504)


class PushError(UlpscopeError):
    """A push failed; one sentence that says why."""


class _TryAgainError(Exception):
    """The server answers that it cannot take this now."""


@dataclass(frozen=True)
class Pushing:
    """A file and where to push it. url: of the server, without a slash at the end; options: of a dump."""

    path: Path
    name: str
    url: str
    token: str = field(default="", repr=False)
    patience_seconds: float = 300.0
    options: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Pushed:
    """The run on the server. resumed: how often the connection broke."""

    run_id: str
    url: str
    bytes: int
    resumed: int


def push_file(asked: Pushing, tell: Callable[[str, int, int], None], note: Callable[[str], None]) -> Pushed:
    """Send a file and wait until it is a run. A push that was stopped goes on: its id is a digest."""
    headers = {"Authorization": f"Bearer {asked.token}"} if asked.token else {}
    try:
        file = asked.path.open("rb")
    except OSError as error:
        raise PushError(f"{asked.path.name}: cannot be read ({error.strerror}).") from error
    with file, httpx.Client(base_url=asked.url, headers=headers, timeout=httpx.Timeout(90, connect=15)) as client:
        digest, size = hashlib.file_digest(file, "sha256"), file.tell()
        options = {"name": asked.name, "file": asked.path.name, **asked.options}
        address = f"/api/uploads/{hashlib.sha256(f'{digest.hexdigest()} {options}'.encode()).hexdigest()[:32]}"
        checksum = f"sha-256=:{base64.b64encode(digest.digest()).decode()}:"
        state: dict[str, Any] | None = None
        is_first, resumed, pause, last_success = True, 0, 0.5, time.monotonic()
        while True:
            try:
                if state is None:
                    state = _state(asked, client.get(address))
                    if is_first and state["state"] == "done":  # an earlier push; to push twice makes two runs
                        client.delete(address)
                        state = {"state": "receiving", "received": 0}
                    elif is_first and state["state"] == "failed":
                        state["state"] = "received"
                    elif is_first and state["received"]:
                        note(f"going on at {state['received']:,} of {size:,} bytes, which an earlier push sent.")
                is_first = False
                if state["state"] == "done":
                    return Pushed(printable(state["run_id"]), printable(state["url"]), size, resumed)
                if state["state"] == "failed":
                    raise PushError(f"the server did not take it: {_sentence(state['message'])}")
                if state["state"] == "importing":
                    tell(printable(state["stage"]) or "importing", state["rows_done"], state["rows_total"])
                    state = _state(asked, client.get(address, params={"wait": _WAIT_SECONDS}))
                else:
                    first = int(state["received"])
                    file.seek(first)
                    part = file.read(PART_BYTES)
                    span = f"{first}-{first + len(part) - 1}" if part else "*"  # of a whole file: import it
                    headers = {"Content-Range": f"bytes {span}/{size}", "Repr-Digest": checksum}
                    state = _state(asked, client.put(address, params=options, headers=headers, content=part))
                    if state["state"] == "receiving" and state["received"] <= first:
                        raise _odd(asked)
                    tell("sending", state["received"], size)
                pause, last_success = 0.5, time.monotonic()
            except (httpx.TransportError, _TryAgainError) as error:
                sentence = str(error) if isinstance(error, _TryAgainError) else _why(error, asked.url)
                is_hopeless = isinstance(error, httpx.UnsupportedProtocol) or "TLS cannot be trusted" in sentence
                if is_hopeless or time.monotonic() + pause > last_success + asked.patience_seconds:
                    raise PushError(sentence) from error
                note(f"{sentence.rstrip('.')}; trying again in {pause:.0f} s.")
                time.sleep(pause)
                state, resumed, pause = None, resumed + 1, min(2 * pause, 20.0)
            except (KeyError, TypeError, ValueError) as error:  # fields that are not there, or of other types
                raise _odd(asked) from error


def _state(asked: Pushing, answer: httpx.Response) -> dict[str, Any]:
    try:
        said = answer.json()
    except (ValueError, RecursionError):
        said = None
    code, sentence = answer.status_code, _sentence(said.get("error", "")) if isinstance(said, dict) else ""
    if code in (200, 201, 202, 422) and isinstance(said, dict) and "state" in said:
        return said
    if code == 404 and sentence and answer.request.method == "GET":
        return {"state": "receiving", "received": 0}
    if code in _AGAIN:
        raise _TryAgainError(f"the server refuses it ({code}): {sentence or answer.reason_phrase}")
    if code == 404:
        raise PushError(f"{asked.url}: has no ULPscope API there (404).")
    if code == 401:
        hint = "is the token right, and still valid?" if asked.token else "give --token-file or ULPSCOPE_TOKEN."
        raise PushError(f"the server asks who you are (401): {sentence.rstrip('.')}; {hint}")
    if code < 300:
        raise _odd(asked)
    raise PushError(f"the server refuses it ({code}): {sentence or answer.reason_phrase}")


def _sentence(text: object) -> str:
    return printable(str(text)[:500])


def _odd(asked: Pushing) -> PushError:
    return PushError(f"{asked.url}: does not answer as a ULPscope server does; expected the address of one.")


def _why(error: Exception, url: str) -> str:
    if "certificate" in str(error).lower() or "ssl" in str(error).lower():
        return f"{url}: its certificate or TLS cannot be trusted ({error}); set SSL_CERT_FILE to its authority's file."
    if isinstance(error, httpx.TimeoutException):
        return f"{url}: does not answer in time."
    if isinstance(error, httpx.ConnectError):
        return f"{url}: cannot be reached ({error})."
    return f"{url}: the connection broke ({error or type(error).__name__})."
