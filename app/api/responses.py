"""Answers of the API: JSON, and an error as `{"error": "one sentence"}`."""

import inspect
import json
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import wraps
from typing import Any
from urllib.parse import urlencode

import anyio
from anyio import to_thread
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from core.configuration import configuration
from core.errors import (
    AccessError,
    ConfigurationError,
    DumpError,
    StoreError,
    UlpscopeError,
    UsageError,
)
from core.text import clean

_STATUS = {
    AccessError: 403,
    UsageError: 400,
    DumpError: 422,
    StoreError: 409,
    ConfigurationError: 503,
}
_RETRY_SECONDS = {423: "2", 429: "2", 503: "30"}
_DRAINED_BYTES, _DRAINED_SECONDS = 64 << 20, 3.0


class RefusedError(UlpscopeError):
    """A request that cannot be answered; `status` is HTTP's for it."""

    def __init__(self, sentence: str, status: int = 400) -> None:
        super().__init__(sentence)
        self.status = status


def route(
    method: str,
    path: str,
    handler: Callable[[Request], Any],
    limiter: anyio.CapacityLimiter | None = None,
) -> Route:
    """Return a route whose handler is async, or runs in a thread; its errors are answers.

    limiter: how many threads at a time; a client that disconnected meanwhile is skipped.
    """

    @wraps(handler)
    async def answer_of(request: Request) -> Response:
        try:
            if inspect.iscoroutinefunction(handler):
                return await handler(request)
            # In a thread: reading a file on the event loop would stop every other viewer.
            async with limiter or nullcontext():
                if limiter is not None and await request.is_disconnected():
                    raise ClientDisconnect
                return await to_thread.run_sync(handler, request)
        except ClientDisconnect:
            return Response(status_code=499)
        except UlpscopeError as failure:
            if "expect" not in request.headers:
                await _drain(request)
            status = next((_STATUS[kind] for kind in _STATUS if isinstance(failure, kind)), 409)
            # RefusedError and LimitError say it themselves
            return error(str(failure), getattr(failure, "status", status))

    return Route(path, answer_of, methods=[method])


async def _drain(request: Request) -> None:
    """Read the rest of a refused body, within bounds: closing a connection on unread bytes loses
    the answer.
    """
    received = 0
    with anyio.move_on_after(_DRAINED_SECONDS), suppress(ClientDisconnect, RuntimeError):
        async for part in request.stream():
            received += len(part)
            if received > _DRAINED_BYTES:
                break


def answer(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return a value as JSON, which has no NaN: a damaged figure is an error."""
    try:
        # A file's name may be no text: its odd bytes become escapes that JSON has too.
        body = json.dumps(value, ensure_ascii=False, allow_nan=False, default=str).encode(
            "utf-8",
            "backslashreplace",
        )
    except ValueError:
        return error("A figure of the run is not a number; the file is damaged.", 409)
    return Response(
        body,
        status,
        {"Cache-Control": "no-store", **(headers or {})},
        media_type="application/json",
    )


def error(sentence: str, status: int) -> Response:
    retry = {"Retry-After": _RETRY_SECONDS[status]} if status in _RETRY_SECONDS else None
    return answer({"error": sentence}, status, retry)


def page_url(request: Request, run_id: str) -> str:
    """Return the link of a run's overview."""
    base = configuration().hosting.public_url or str(request.base_url)
    return f"{base.rstrip('/')}/overview?{urlencode({'run': run_id})}"


def flag(request: Request, name: str) -> bool:
    """Return the flag `?name=1`, False if it is not given."""
    text = request.query_params.get(name, "0").lower()
    if text not in ("0", "1", "true", "false", ""):
        raise RefusedError(f"{name}={clean(text, 20)} is neither 1 nor 0.")
    return text in ("1", "true")


def whole(request: Request, name: str, default: int, highest: int) -> int:
    """Return `?name=N`, a whole number from 0 to `highest`."""
    text = request.query_params.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) <= 12 and int(text) <= highest):
        raise RefusedError(f"{name}={clean(text, 20)} is not a whole number from 0 to {highest:,}.")
    return int(text)


def refuse_unknown(request: Request, *names: str) -> None:
    """Refuse parameters that are none of `known`, which may be misspelled."""
    unknown = sorted(set(request.query_params) - set(names))
    if unknown:
        raise RefusedError(
            f"'{clean(unknown[0])}' is not a parameter here; expected"
            f" {', '.join(names) or 'none'}.",
        )
