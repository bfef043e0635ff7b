"""The gate: ASGI middleware in front of everything, pages, routes, media, component files, health and websocket alike.

It says who asks and lets nobody in whom it does not know. What is behind it finds the identity in the scope's state, a
page's script in a header, and both are removed from what comes from outside first.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from streamlit import config
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

from app.hosting import (
    authentication,
    client_address,
    local_access,
    redirects,
    request_body,
    sign_in,
    websocket_messages,
)
from app.hosting.audit_async import tell
from app.hosting.authentication import Recognition, UnseenError
from app.hosting.identity import HEADER, LOCAL, NO_EDITOR, SESSION_HEADER, STATE, Identity, as_header
from app.hosting.live_settings import AuthStore, auth_store, now_in_force
from app.hosting.request_body import SAFE
from app.hosting.security_headers import guarded
from core.configuration import Configuration
from core.errors import ConfigurationError

LARGEST_HEADERS = 32 << 10  # bytes of all names and values; h11 stops at 64 KB, other parsers at nothing
LOOK_SECONDS = 1.0  # between two looks at whether a websocket's session still stands
AHEAD_SECONDS = 2.0  # for which messages are passed on while the next look takes its time
UNSEEN_SECONDS = 60.0  # for which it goes on while nobody can look
ENDED = 4401  # the close code of a websocket whose session has ended
_OURS = b"x-ulpscope-"
_NOT_IN = "Sign in first: a browser at /sign-in, a program with 'Authorization: Bearer TOKEN'."
_FORGED = "This request was begun by a page of another site, so nothing was changed."
_log = logging.getLogger(__name__)


class Gate:
    """ASGI middleware that lets in whom it knows. `routes`: those it answers itself, to anybody."""

    def __init__(self, app: ASGIApp, routes: list[Route] | None = None) -> None:
        self._app = app
        # Streamlit resumes a session by its id, for whoever says it, unless these are as they were when it began.
        config.set_option("server.trustedUserHeaders", {HEADER: "identity", SESSION_HEADER: "session"})
        self._own = Router(sign_in.ROUTES if routes is None else routes, redirect_slashes=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        try:
            found = now_in_force()
            place = auth_store() if found.sign_in.is_configured else None
        except ConfigurationError as error:
            _log.error("%s", error)
            await _answer(
                scope,
                receive,
                guarded(send, scope, None),
                _refusal(scope, "The server's configuration cannot be used.", 503),
            )
            return
        send = guarded(send, scope, found) if scope["type"] == "http" else send
        if sum(len(name) + len(value) for name, value in scope["headers"]) > LARGEST_HEADERS:
            await _answer(scope, receive, send, _refusal(scope, "The headers of this request are too large.", 431))
            return
        try:
            await self._pass(_stripped(scope, found), receive, send, found, place)
        except UnseenError as error:
            answer = _refusal(scope, str(error), 503)
            answer.headers["retry-after"] = "2"
            await _answer(scope, receive, send, answer)

    async def _pass(
        self, scope: Scope, receive: Receive, send: Send, found: Configuration, place: AuthStore | None
    ) -> None:
        """Pass a request on to whom it is for, if it may. UnseenError, with nothing answered yet, where that cannot be
        looked up.
        """
        if place is None:
            said = await local_access.refusal_of(scope)
            refusal = _refusal(scope, said, 403) if isinstance(said, str) else said
            at = Recognition(LOCAL if refusal is None else None, "local")
        elif scope["type"] == "http" and redirects.is_own(scope["path"]):
            # Without the application, or the router would raise what only that one turns into a 404.
            scope = {key: value for key, value in scope.items() if key != "app"}
            await request_body.passed_on(self._own, scope, receive, send, _refusal)
            return
        else:
            at = await authentication.authenticate(scope, found, place)
            refusal = None if at.identity else await _not_in(scope, at, found, place)
        if at.identity is not None:
            refusal = _forged(scope, at, found) or _beyond(scope, at.identity)
        if refusal is not None or at.identity is None:
            await _answer(scope, receive, send, refusal or _refusal(scope, _NOT_IN, 401))
            return
        scope = _marked(scope, at, at.identity)
        if scope["type"] == "websocket":
            guard = _Watched(scope, receive, send, at, place)
            await self._app(scope, guard.receive, guard.send)
        else:
            await request_body.passed_on(self._app, scope, receive, send, _refusal, at, place)


class _Watched:
    """A websocket of which only the messages that its role needs are passed on, and which ends when the session does
    that it was opened with: signed out, expired, revoked, or with another role.

    Whether it stands is looked up beside the messages, which do not wait for it unless it takes very long.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, at: Recognition, place: AuthStore | None) -> None:
        self._scope, self._receive, self._send, self._at, self._place = scope, receive, send, at, place
        self._waiting: asyncio.Task[Message] | None = None
        self._looking: asyncio.Task[bool] | None = None
        self._looked = self._seen = time.monotonic()
        self._is_accepted = self._is_over = False

    async def receive(self) -> Message:
        """The next message that is passed on; a disconnect once the session has ended, whatever the browser sends."""
        while not self._is_over:
            if self._waiting is None:
                self._waiting = asyncio.ensure_future(self._receive())
            age = time.monotonic() - self._looked
            if self._looking is None and age >= LOOK_SECONDS:
                self._looking = asyncio.ensure_future(self._stands())
            if self._looking is not None and self._looking.done():
                stands, self._looking, self._looked = self._looking.result(), None, time.monotonic()
                if not stands:
                    await self._end()
            elif self._waiting.done() and (self._looking is None or age < LOOK_SECONDS + AHEAD_SECONDS):
                message, self._waiting = self._waiting.result(), None
                assert self._at.identity is not None  # or the gate had not let it in
                if websocket_messages.is_passed(message, self._at.identity):
                    return message
            else:
                await self._wait(LOOK_SECONDS - age if self._looking is None else None)
        return {"type": "websocket.disconnect", "code": ENDED}

    async def _wait(self, seconds: float | None) -> None:
        """Wait for whichever is first of a message and the look's end."""
        tasks = [task for task in (self._waiting, self._looking) if task is not None]
        try:
            await asyncio.wait(
                [task for task in tasks if not task.done()], timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            raise

    async def send(self, message: Message) -> None:
        if self._is_over:
            return
        self._is_accepted |= message["type"] == "websocket.accept"
        await self._send(message)

    async def _stands(self) -> bool:
        try:
            found = now_in_force()
            stands = (
                await authentication.still(self._at, self._scope, found, self._place or auth_store())
                == self._at.identity
            )
        except (ConfigurationError, UnseenError):
            return time.monotonic() - self._seen < UNSEEN_SECONDS
        self._seen = time.monotonic()
        return stands

    async def _end(self) -> None:
        """End the websocket. Streamlit's page goes to the sign-in when it is told to; without that it would try to
        connect for ever.
        """
        self._is_over = True
        if self._waiting is not None:
            self._waiting.cancel()
        try:
            if self._is_accepted:
                message = ForwardMsg()
                message.auth_redirect.url = "/sign-in"
                await self._send({"type": "websocket.send", "bytes": message.SerializeToString()})
            await self._send({"type": "websocket.close", "code": ENDED, "reason": "the session has ended"})
        except (OSError, RuntimeError):  # it is gone already
            pass


def _stripped(scope: Scope, found: Configuration) -> Scope:
    """Scope without the headers that only we write, and without the proxy's where it did not come from the proxy."""
    named = found.sign_in.header.lower().encode()
    scope = client_address.with_proof(scope)  # before the header goes that has the secret
    is_believed = bool(named) and client_address.is_proxy(scope, found.hosting)

    def is_kept(name: bytes) -> bool:
        plain = name.lower().replace(b"_", b"-")  # which some software behind would take for the same
        if plain == named:
            return is_believed and b"_" not in name
        return not plain.startswith(_OURS)

    kept = [(name, value) for name, value in scope["headers"] if is_kept(name)]
    return {**scope, "headers": kept, "state": {k: v for k, v in scope.get("state", {}).items() if k != STATE}}


def _marked(scope: Scope, at: Recognition, identity: Identity) -> Scope:
    session = hashlib.sha256(at.said.encode()).hexdigest().encode()  # of two people with one password, each has one
    headers = [*scope["headers"], (HEADER.encode(), as_header(identity)), (SESSION_HEADER.encode(), session)]
    return {**scope, "headers": headers, "state": {**scope.get("state", {}), STATE: identity}}


def _forged(scope: Scope, at: Recognition, found: Configuration) -> Response | None:
    """Refusal of a request that a page of another site makes the browser send, with the cookies or from the network
    that the browser has; else None.
    """
    if at.by == "token" or (scope["type"] == "http" and scope["method"] in SAFE):
        return None
    return None if client_address.is_same_site(scope, found.hosting) else _refusal(scope, _FORGED, 403)


def _beyond(scope: Scope, identity: Identity) -> Response | None:
    """Refusal of anything but reading for a viewer, who sees and downloads, whatever the route behind forgets to ask;
    else None.
    """
    is_reading = scope["type"] == "websocket" or scope["method"] in SAFE
    return None if is_reading or identity.may_edit else _refusal(scope, NO_EDITOR, 403)


async def _not_in(scope: Scope, at: Recognition, found: Configuration, place: AuthStore) -> Response:
    """Response to who is not signed in: a redirect to the sign-in for a person on the way to a page, with the way back;
    a status for anything else.
    """
    if at.by == "token":
        if at.wait:
            answer = _refusal(scope, "Too many wrong tokens from your address; try again later.", 429)
            answer.headers["retry-after"] = str(round(at.wait))
            return answer
        await tell(
            place.directory,
            "nobody",
            "failed sign-in",
            way="token",
            address=client_address.client_of(scope, found.hosting),
        )
    elif (
        scope["type"] == "http"
        and scope["method"] in ("GET", "HEAD")
        and _is_navigation(Headers(scope=scope), scope["path"])
    ):
        return RedirectResponse(redirects.sign_in_address(scope), 303, {"cache-control": "no-store"})
    answer = _refusal(scope, _NOT_IN, 401)
    answer.headers["www-authenticate"] = 'Bearer realm="ULPscope"'
    return answer


def _is_navigation(headers: Headers, path: str) -> bool:
    if path.startswith(("/api/", "/_stcore/")):
        return False
    mode = headers.get("sec-fetch-mode")
    return mode == "navigate" if mode else "text/html" in headers.get("accept", "")


def _refusal(scope: Scope, sentence: str, status: int) -> Response:
    headers = {"cache-control": "no-store"}
    if scope["path"].startswith("/api/"):
        return JSONResponse({"error": sentence}, status, headers)
    return PlainTextResponse(f"{sentence}\n", status, headers)


async def _answer(scope: Scope, receive: Receive, send: Send, answer: Response) -> None:
    """Send a response. A websocket is refused before it is accepted, which the browser sees as a 403."""
    if scope["type"] == "websocket":
        await receive()
        closing: dict[str, Any] = {"type": "websocket.close", "code": ENDED, "reason": ""}
        await send(closing)
    else:
        await answer(scope, receive, send)
