"""Responses of the API: JSON, an error as `{"error": "one sentence"}`, and nothing else, whatever went wrong below."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import anyio
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from core.configuration import Configuration, configuration
from core.errors import AccessError, ConfigurationError, DumpError, LimitError, StoreError, UlpscopeError, UsageError
from core.text import shown

Handler = Callable[[Request], Awaitable[Response]]
_RETRY_SECONDS = {423: "2", 429: "2", 503: "30"}
_LINGER_BYTES, _LINGER_SECONDS = 64 << 20, 3.0  # of a body that is refused, read to let the sender hear why


class NotFoundError(UlpscopeError):
    """The run, deleted run or ingest that is asked for does not exist."""


class RefusedError(UlpscopeError):
    """A request that cannot be answered; `status` is HTTP's for it."""

    def __init__(self, sentence: str, status: int = 400) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass(frozen=True)
class ApiOperation:
    """One method of one path, and its handler."""

    method: str
    path: str
    handler: Handler


def answer(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """JSON response that nobody keeps. A NaN in `value`, which JSON has no word for, is an error: ours are null where
    nothing is defined.
    """
    try:
        # A file's name may be no text: its odd bytes become escapes that JSON has too.
        body = json.dumps(value, ensure_ascii=False, allow_nan=False, default=str).encode("utf-8", "backslashreplace")
    except ValueError:
        return error("a figure of it is no number; the file is damaged.", 409)
    return Response(body, status, {"Cache-Control": "no-store", **(headers or {})}, media_type="application/json")


def error(sentence: str, status: int, headers: dict[str, str] | None = None) -> Response:
    """JSON response of one sentence, which never says where anything lies on this server."""
    return answer({"error": sentence}, status, headers)


class Dispatcher:
    """The endpoint of one path: its method's handler, after its role was asked for.

    ASGI, no function: of a function's route the router answers unknown methods itself, and not in JSON.
    """

    def __init__(self, operations: Mapping[str, ApiOperation]) -> None:
        self._operations = operations
        self._allowed = ", ".join(sorted(operations))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        incoming = _Incoming(receive)
        request = Request(scope, incoming, send)
        answered = await self._answered(request)
        if answered.status_code >= 400 and not (incoming.is_untouched and "expect" in request.headers):
            await incoming.drained()  # who asks first is told before anything travels
        await answered(scope, incoming, send)

    async def _answered(self, request: Request) -> Response:
        found = self._operations.get(request.method)
        if found is None:
            sentence = f"{shown(request.method, 20)} means nothing here; there are {self._allowed}."
            return error(sentence, 405, {"Allow": self._allowed})
        return await tried(found.handler, request)


async def tried(handler: Handler, request: Request) -> Response:
    """Response of the handler, or the error response for what it raised."""
    try:
        return await handler(request)
    except ClientDisconnect:
        return Response(status_code=499)
    except UlpscopeError as failure:
        status = status_of(failure)
        return error(
            str(failure), status, {"Retry-After": _RETRY_SECONDS[status]} if status in _RETRY_SECONDS else None
        )


def status_of(failure: UlpscopeError) -> int:
    """HTTP status code of an error."""
    if isinstance(failure, RefusedError | LimitError):
        return failure.status
    kinds = {
        NotFoundError: 404,
        AccessError: 403,
        UsageError: 400,
        DumpError: 422,
        StoreError: 409,
        ConfigurationError: 503,
    }
    return next((status for kind, status in kinds.items() if isinstance(failure, kind)), 409)


class _Incoming:
    """Wrapper of a request's `receive` that knows whether its body has come to an end."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._is_over = False
        self.is_untouched = True

    async def __call__(self) -> Message:
        self.is_untouched = False
        message = await self._receive()
        self._is_over = message["type"] != "http.request" or not message.get("more_body", False)
        return message

    async def drained(self) -> None:
        """Let the rest of a refused body come, within bounds: a connection closed on unread bytes is reset, and the
        answer lost.
        """
        left = _LINGER_BYTES
        with anyio.move_on_after(_LINGER_SECONDS):
            while left > 0 and not self._is_over:
                left -= len((await self()).get("body", b""))


async def body_object(request: Request, largest: int) -> dict[str, Any]:
    """The JSON object that a request brings; RefusedError where it is none, or longer than `largest` bytes."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > largest:
            raise RefusedError(f"more than {largest:,} bytes arrive; expected a JSON object.", 413)
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        raise RefusedError("the body is no JSON; expected an object.", 400) from None
    if not isinstance(said, dict):
        raise RefusedError("the body is no JSON object.", 400)
    return said


def base_url(request: Request, found: Configuration | None = None) -> str:
    """Address of this server: as it is configured, else as this request reached it. Without a slash at the end."""
    public = (found or configuration()).hosting.public_url
    return public.rstrip("/") if public else str(request.base_url).rstrip("/")


def page_url(request: Request, run_id: str) -> str:
    """The link of a run's overview."""
    return f"{base_url(request)}/overview?{urlencode({'run': run_id})}"


def api_path(request: Request, *parts: str) -> str:
    """The address of something of the API, for a Location header."""
    return f"{request.scope.get('root_path', '')}/api/" + "/".join(quote(part, safe="") for part in parts)


def flag(request: Request, name: str) -> bool:
    """Value of the flag `?name=1`, False where it is not given; RefusedError for anything that is neither 1 nor 0."""
    text = request.query_params.get(name, "0").lower()
    if text not in ("0", "1", "true", "false", ""):
        raise RefusedError(f"{name}={shown(text, 20)} is neither 1 nor 0.", 400)
    return text in ("1", "true")


def whole(request: Request, name: str, default: int, highest: int) -> int:
    """Value of `?name=N`, a whole number from 0 to `highest`; RefusedError for anything else."""
    text = request.query_params.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) <= 12 and int(text) <= highest):
        raise RefusedError(f"{name}={shown(text, 20)} is no whole number from 0 to {highest:,}.", 400)
    return int(text)


def refuse_unknown(request: Request, *known: str) -> None:
    """Refuse parameters that are none of `known`: one that was misspelt would be one that was not given."""
    strange = sorted(set(request.query_params) - set(known))
    if strange:
        raise RefusedError(f"'{shown(strange[0])}' is no parameter here; there are {', '.join(known) or 'none'}.", 400)
