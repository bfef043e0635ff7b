"""`/sign-in`, `/sign-out` and `/health`: the routes that the gate answers itself, before anything of the dashboard is
reached.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import parse_qs, urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from app.hosting import authentication, client_address, redirects, session_start, sign_in_page
from app.hosting.audit_async import tell
from app.hosting.live_settings import AuthStore, auth_store, is_secure, now_in_force
from app.hosting.security_headers import frames
from core.configuration import Configuration
from core.errors import ConfigurationError

LARGEST_FORM = 16 << 10  # bytes
_FORM, _FORM_SECONDS = "a form", 3600
_WRONG = "That is not right."
_AGAIN = "The form was out of date or came from another site; try again."
_log = logging.getLogger(__name__)
# One at a time: a look at a password takes 0.2 s of a core and 64 MB, and anybody may ask for it.
_looking = ThreadPoolExecutor(1, "passwords")


async def sign_in(request: Request) -> Response:
    """Answer with the form; whoever is signed in already goes on."""
    found, place = now_in_force(), auth_store()
    target = (
        redirects.safe(request.query_params["next"])
        if "next" in request.query_params
        else redirects.before(request.headers)
    )
    if request.method == "POST":
        return await _signing_in(request, found, place)
    if (await authentication.authenticate(request.scope, found, place)).identity is not None:
        return RedirectResponse(target, 303)
    return form(found, place, target)


def form(found: Configuration, place: AuthStore, target: str, wrong: str = "", status: int = 200) -> Response:
    """The sign-in page with a fresh token against forged forms, which its cookie has too."""
    ways = found.sign_in
    has_password = bool(ways.viewer_password or ways.editor_password)
    secret = " or ".join(
        word for word, is_set in (("password", has_password), ("token", ways.tokens)) if is_set
    ).capitalize()
    provider = urlsplit(ways.oidc_issuer).hostname or ""
    if (
        not secret and not provider
    ):  # only the proxy can say who it is, and it did not, or named somebody who is in no list
        wrong, status = (
            wrong or "This server is reached through its sign-in proxy, which did not name anybody who may enter.",
            403,
        )
    token = place.signed(_FORM, secrets.token_urlsafe(18))
    answer: Response = sign_in_page.sign_in(secret, provider, token, target, wrong, status, frames(found))
    session_start.set_cookie(answer, place, found, "form", token, _FORM_SECONDS)
    return answer


async def _signing_in(request: Request, found: Configuration, place: AuthStore) -> Response:
    said = await _form_of(request)
    if said is None:
        return PlainTextResponse("A form of this page was expected.", 400)
    target = redirects.safe(said.get("next", "/"))
    if not _is_from_us(request, said, found, place):
        return form(found, place, target, _AGAIN, 403)
    ways = found.sign_in
    address = client_address.client_of(request.scope, found.hosting)
    try:
        number, wait = await run_in_threadpool(
            place.sessions.attempt, address, ways.attempts, 60 * ways.attempt_minutes
        )
        if wait:
            return session_start.later(form(found, place, target, session_start.too_many(wait), 429), wait)
        let_in = await asyncio.get_running_loop().run_in_executor(
            _looking, authentication.with_secret, said.get("secret", ""), ways, place
        )
        if let_in is None:
            await tell(place.directory, "nobody", "failed sign-in", address=address)
            return form(found, place, target, _WRONG, 401)
        # One refused here counts as failed, so that a right password is not looked at for ever, 0.2 s each.
        if wait := await session_start.admitted(request, found, place, *let_in):
            sentence = session_start.too_many(wait, session_start.RIGHT)
            return session_start.later(form(found, place, target, sentence, 429), wait)
        await run_in_threadpool(place.sessions.succeeded, number)
        return await session_start.begin(request, found, place, let_in[0], let_in[1], target)
    except (sqlite3.Error, OSError, ConfigurationError) as error:
        _log.error("nobody can sign in: %s", error)
        return form(found, place, target, session_start.NO_DISK, 503)


async def sign_out(request: Request) -> Response:
    """End the session in every process. Asks first where the browser does not say that one of our pages sent the viewer
    here.
    """
    found, place = now_in_force(), auth_store()
    who = await authentication.authenticate(request.scope, found, place)
    if who.identity is None:
        return RedirectResponse("/sign-in?next=%2F", 303)
    if who.by == "header":
        text = "The proxy in front of this server says who you are; sign out there."
        return sign_in_page.sentence("Signed in by the proxy", text, 200, frames(found), ("/", "Back to ULPscope"))
    if request.method == "GET":
        is_prefetched = "prefetch" in request.headers.get("sec-purpose", "") or "prefetch" in request.headers.get(
            "purpose", ""
        )
        if request.headers.get("sec-fetch-site") != "same-origin" or is_prefetched:
            token = place.signature(_FORM, who.said)
            return sign_in_page.sign_out(token, who.identity.name, frames(found))
    else:
        said = await _form_of(request)
        if said is None or not place.is_signature(_FORM, who.said, said.get("form", "")):
            return sign_in_page.sentence("Not signed out", _AGAIN, 403, frames(found), ("/sign-out", "Sign out"))
    try:
        await run_in_threadpool(authentication.sign_out, who.said, place)
    except (sqlite3.Error, OSError, ConfigurationError) as error:
        _log.error("a session cannot be ended: %s", error)
        text = "The server cannot write to its disk, so the session goes on until it expires; try again."
        return sign_in_page.sentence("Not signed out", text, 503, frames(found), ("/sign-out", "Sign out"))
    await tell(place.directory, who.identity.name, "sign-out")
    answer = sign_in_page.sentence(
        "Signed out", "This browser is signed out, and its open pages with it.", 200, frames(found)
    )
    session_start.drop_cookie(answer, place, found, "session")
    return answer


async def health(_: Request) -> Response:
    """Answer that the process runs, and nothing else: for whoever watches over it."""
    return PlainTextResponse("ok", headers={"cache-control": "no-store"})


def _is_from_us(request: Request, said: dict[str, str], found: Configuration, place: AuthStore) -> bool:
    token = said.get("form", "")
    kept = authentication.cookies(request.headers).get(place.cookie("form", is_secure(found)), "")
    is_same = secrets.compare_digest(
        kept.encode("utf-8", "backslashreplace"), token.encode("utf-8", "backslashreplace")
    )
    return (
        is_same
        and place.unsigned(_FORM, token, _FORM_SECONDS) is not None
        and client_address.is_same_site(request.scope, found.hosting)
    )


async def _form_of(request: Request) -> dict[str, str] | None:
    """The fields of a form that is small and of the one type ours has; None for anything else."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/x-www-form-urlencoded":
        return None
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > LARGEST_FORM:
            return None
    try:
        fields = parse_qs(body.decode("ascii"), keep_blank_values=True, max_num_fields=8, errors="strict")
    except (UnicodeError, ValueError):
        return None
    return {name: values[0] for name, values in fields.items() if len(values) == 1}


class _Provider:
    """Endpoint of the way to an OIDC provider or back; the libraries for it are loaded when somebody goes it."""

    def __init__(self, name: str) -> None:
        self._name = name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from app.hosting import oidc

        await oidc.with_state(oidc.leave if self._name == "leave" else oidc.come_back)(scope, receive, send)


ROUTES = [
    Route("/sign-in", sign_in, methods=["GET", "POST"]),
    Route("/sign-out", sign_out, methods=["GET", "POST"]),
    Route("/sign-in/oidc", _Provider("leave"), methods=["GET"]),
    Route(session_start.CALLBACK, _Provider("come_back"), methods=["GET"]),
    Route("/health", health, methods=["GET"]),
]
