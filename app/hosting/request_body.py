"""The body of a request on its way in: it may not stall, and whoever sends it must be let in still when its last byte
has come.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.hosting import authentication, client_address
from app.hosting.audit_async import tell
from app.hosting.authentication import Recognition, UnseenError
from app.hosting.live_settings import AuthStore, now_in_force
from core.errors import ConfigurationError

IDLE_SECONDS = 130.0  # without a byte; the routes that take files wait for 60 and 120, and have more to say
FORM_SECONDS = 60.0  # for all of a body that anybody may send
LOOK_SECONDS = 1.0  # between two looks at whether the sender is let in still
UNSEEN_SECONDS = 60.0  # for which a body goes on arriving while nobody can look; it does not come to its end
SAFE = ("GET", "HEAD", "OPTIONS")
_STALLED = "The rest of this request did not come in time, so it was not carried out."
_ENDED = (
    "What this request came with lets nobody in any more (revoked, signed out, changed), so it was not carried out."
)
_UNREADABLE = "The server's configuration cannot be used."
_GONE: Message = {"type": "http.disconnect"}


async def passed_on(
    app: ASGIApp,
    scope: Scope,
    receive: Receive,
    send: Send,
    refusal: Callable[[Scope, str, int], Response],
    at: Recognition | None = None,
    place: AuthStore | None = None,
) -> None:
    """Pass a request on, and answer it with a refusal instead where its body stalls or its sender is not let in any
    more: to the route that is a sender who has gone. `at`: who sends it, None for a route that is anybody's.
    """
    body = _Body(scope, receive, send, at, place)
    try:
        await app(scope, body.receive, body.send)
    except ClientDisconnect:
        if body.refused is None:
            raise
    if body.refused is None or body.is_answered:
        return
    sentence, status = body.refused
    if status == 401 and at is not None and at.identity is not None and place is not None:
        await tell(
            place.directory,
            at.identity.name,
            "refused at its end",
            method=scope["method"],
            path=scope["path"],
            way=at.identity.way,
            address=client_address.client_of(scope, now_in_force().hosting),
        )
    answer = refusal(scope, sentence, status)
    if status == 401:
        answer.headers["www-authenticate"] = 'Bearer realm="ULPscope"'
    if status == 503:
        answer.headers["retry-after"] = "2"
    await answer(scope, receive, send)


class _Body:
    """`receive` and `send` of one request. refused: the sentence and status of its end, once there is one."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, at: Recognition | None, place: AuthStore | None
    ) -> None:
        self._scope, self._receive, self._send, self._at, self._place = scope, receive, send, at, place
        self._changes = scope["method"] not in SAFE
        self._looked = time.monotonic()
        self._ends = math.inf if at is not None else self._looked + FORM_SECONDS
        self._is_whole = False
        self.refused: tuple[str, int] | None = None
        self.is_answered = False

    async def receive(self) -> Message:
        """The next part of the body; a disconnect in place of one that is late, or of an ended sender's."""
        if self.refused is not None:
            return _GONE
        if self._is_whole:  # nothing but the sender's going is still to come
            return await self._receive()
        message = await self._in_time()
        if message is None:
            self.refused = _STALLED, 408
            return _GONE
        if message["type"] != "http.request":
            return message
        self._is_whole = not message.get("more_body", False)
        is_due = self._is_whole or time.monotonic() - self._looked >= LOOK_SECONDS
        return _GONE if self._changes and is_due and not await self._stands() else message

    async def _in_time(self) -> Message | None:
        left = self._ends - time.monotonic()
        if left <= 0:  # a part that is there already comes before any timeout
            return None
        try:
            async with asyncio.timeout(min(IDLE_SECONDS, left)):
                return await self._receive()
        except TimeoutError:
            return None

    async def send(self, message: Message) -> None:
        """Send a part of the answer, unless the request was refused, or an answer took so long that its reader has no
        right to it any more.
        """
        if message["type"] == "http.response.start":
            is_late = not self._changes and time.monotonic() - self._looked >= LOOK_SECONDS
            if self.refused is not None or (is_late and not await self._stands()):
                raise ClientDisconnect
            self.is_answered = True
        await self._send(message)

    async def _stands(self) -> bool:
        """Return whether the sender is let in as before; what follows from it otherwise is noted."""
        if self._at is None:
            return True
        try:
            found = now_in_force()
            if self._place is None:  # nobody was asked when it began
                is_in = not found.sign_in.is_configured
            else:
                is_in = self._at.identity == await authentication.still(
                    self._at, self._scope, found, self._place, at_once=self._is_whole
                )
        except (ConfigurationError, UnseenError) as error:
            if not self._changes or (not self._is_whole and time.monotonic() - self._looked < UNSEEN_SECONDS):
                return True
            self.refused = str(error) if isinstance(error, UnseenError) else _UNREADABLE, 503
            return False
        self._looked = time.monotonic()
        if not is_in:
            self.refused = _ENDED, 401
        return is_in
