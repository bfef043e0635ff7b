"""Push a file to a server in parts, resumed after a broken connection (docs/reference/api.md)."""

import base64
import hashlib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import httpx2 as httpx
import msgspec

from .errors import UlpscopeError, os_errors
from .progress import Progress
from .subprocess_json import object_of
from .text import printable

PART_BYTES = 16 << 20
_WAIT_SECONDS = 5  # that the server may hold a status request
_STARTING_SECONDS = 20.0  # that a server may take to accept its first connection
_AGAIN = (408, 409, 429, 500, 502, 503, 504)


class PushError(UlpscopeError):
    """A push failed, in one sentence."""


class _TryAgainError(Exception):
    """The server cannot accept this now."""


@dataclass(frozen=True)
class PushRequest:
    """A file and where to push it. url: of the server, without a slash at the end; options: of a
    dump.
    """

    path: Path
    name: str
    url: str
    token: str = field(default="", repr=False)
    patience_seconds: float = 300.0
    options: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PushResult:
    """The run on the server. resumed: how often the connection broke."""

    run_id: str
    url: str
    bytes: int
    resumed: int


class _Upload(msgspec.Struct, frozen=True):
    """What the server says of an upload."""

    state: Literal["receiving", "received", "importing", "done", "failed"]
    # a place that a file may have
    received: Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
    run_id: str
    url: str
    stage: str
    rows_done: int
    rows_total: int
    message: str


_NEW = _Upload("receiving", 0, "", "", "", 0, 0, "")


def push_file(
    request: PushRequest,
    tell: Progress,
    note: Callable[[str], None],
) -> PushResult:
    """Send a file and wait until it is a run. A stopped push resumes: its id is a digest."""
    headers = {"Authorization": f"Bearer {request.token}"} if request.token else {}
    with os_errors(PushError, f"{request.path.name}: cannot be read"):
        file = request.path.open("rb")
    timeout = httpx.Timeout(90, connect=15)
    with file, httpx.Client(base_url=request.url, headers=headers, timeout=timeout) as client:
        digest = hashlib.file_digest(file, "sha256")
        size = file.tell()
        options = {"name": request.name, "file": request.path.name, **request.options}
        key = hashlib.sha256(f"{digest.hexdigest()} {options}".encode())
        address = f"/api/uploads/{key.hexdigest()[:32]}"
        checksum = f"sha-256=:{base64.b64encode(digest.digest()).decode()}:"
        state = None
        is_first = True
        resumed = 0
        pause = 0.5
        last_success = time.monotonic()
        while True:
            try:
                if state is None:
                    state = _state(request, client.get(address))
                    # an earlier push; to push twice makes two runs
                    if is_first and state.state == "done":
                        client.delete(address)
                        state = _NEW
                    elif is_first and state.state == "failed":
                        state = msgspec.structs.replace(state, state="received")
                    elif is_first and state.received:
                        note(
                            f"resuming at {state.received:,} of {size:,} bytes, which an earlier"
                            " push sent.",
                        )
                is_first = False
                if state.state == "done":
                    return PushResult(
                        printable(state.run_id),
                        printable(state.url),
                        size,
                        resumed,
                    )
                if state.state == "failed":
                    raise PushError(f"the server rejected the file: {_sentence(state.message)}")
                if state.state == "importing":
                    stage = printable(state.stage) or "importing"
                    _tell_percent(tell, stage, state.rows_done, state.rows_total)
                    state = _state(request, client.get(address, params={"wait": _WAIT_SECONDS}))
                else:
                    first = state.received
                    file.seek(first)
                    part = file.read(PART_BYTES)
                    # of a whole file: import it
                    span = f"{first}-{first + len(part) - 1}" if part else "*"
                    headers = {"Content-Range": f"bytes {span}/{size}", "Repr-Digest": checksum}
                    state = _state(
                        request,
                        client.put(address, params=options, headers=headers, content=part),
                    )
                    is_waiting = state.state in ("receiving", "received")
                    if is_waiting and state.received <= first:
                        raise _not_ulpscope(request)
                    _tell_percent(tell, "sending", state.received, size)
                pause = 0.5
                last_success = time.monotonic()
            except (httpx.RequestError, _TryAgainError) as error:
                sentence = str(error)
                if not isinstance(error, _TryAgainError):
                    sentence = _reason(error, request.url)
                patience = request.patience_seconds
                if is_first and isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
                    patience = min(patience, _STARTING_SECONDS)
                is_late = time.monotonic() + pause > last_success + patience
                is_hopeless = isinstance(error, httpx.UnsupportedProtocol)
                if is_late or is_hopeless or "TLS cannot be trusted" in sentence:
                    raise PushError(sentence) from error
                note(f"{sentence.rstrip('.')}; trying again in {pause:.0f} s.")
                time.sleep(pause)
                state, resumed, pause = None, resumed + 1, min(2 * pause, 20.0)
            # fields that are not there, or of other types
            except ValueError as error:
                raise _not_ulpscope(request) from error


def _tell_percent(tell: Progress, stage: str, done: int, total: int) -> None:
    if total:
        tell(stage, 100 * done // total, 100, "percent")
    else:
        tell(stage)


def _state(request: PushRequest, answer: httpx.Response) -> _Upload:
    body = object_of(answer.content)
    code = answer.status_code
    sentence = _sentence(body.get("error", ""))
    refusal = f"the server refuses the file ({code}): {sentence or answer.reason_phrase}"
    if code in (200, 201, 202, 422) and "state" in body:
        return msgspec.convert(body, _Upload)
    if code == 404 and sentence and answer.request.method == "GET":
        return _NEW
    if code in _AGAIN:
        raise _TryAgainError(refusal)
    if code == 404:
        raise PushError(f"{request.url}: no ULPscope API at this address (404).")
    if code == 401:
        hint = "give --token-file or ULPSCOPE_TOKEN."
        if request.token:
            hint = "is the token right, and still valid?"
        raise PushError(f"the server requires a sign-in (401): {sentence.rstrip('.')}; {hint}")
    if code < 300:
        raise _not_ulpscope(request)
    raise PushError(refusal)


def _sentence(text: object) -> str:
    return printable(str(text)[:500])


def _not_ulpscope(request: PushRequest) -> PushError:
    return PushError(f"{request.url}: does not answer like a ULPscope server; check the address.")


def _reason(error: Exception, url: str) -> str:
    if re.search("certificate|ssl", str(error), re.IGNORECASE):
        return (
            f"{url}: its certificate or TLS cannot be trusted ({error}); set SSL_CERT_FILE to its"
            " authority's file."
        )
    if isinstance(error, httpx.TimeoutException):
        return f"{url}: does not answer in time."
    if isinstance(error, httpx.ConnectError):
        return f"{url}: cannot be reached ({error})."
    return f"{url}: the connection broke ({error or type(error).__name__})."
