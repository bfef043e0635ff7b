"""Authentication of a request: by its session's cookie, by a token in Authorization, or by the header of a trusted
proxy.

What a session was begun with is looked at again at every use: a changed password, a revoked token or a name that is in
no list any more ends it, with its websockets.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.types import Scope

from app.hosting import client_address
from app.hosting.identity import LOCAL, Identity, Role
from app.hosting.live_settings import AuthStore, is_secure
from core.configuration import Configuration, SignIn
from core.errors import ConfigurationError, UlpscopeError
from core.hosting import passwords, tokens
from core.hosting.people import role_of
from core.hosting.sessions import Session

_log = logging.getLogger(__name__)
_KEPT_SECONDS = 1.0  # how long a session that was ended by another process may still be taken for one
_MOST_KEPT = 4096
_COOKIE = "the cookie of a session"
# SQLite waits for whoever holds the file: in threads of its own, so that nothing else waits with it, and no wrong token
# stops a look.
_looking, _counting = ThreadPoolExecutor(8, "sessions"), ThreadPoolExecutor(2, "attempts")
PASSWORDS: tuple[tuple[Role, str], ...] = (("editor", "editor_password"), ("viewer", "viewer_password"))


class UnseenError(UlpscopeError):
    """A session cannot be looked up: its file is locked, or the disk is gone. That is no sign-out."""


@dataclass(frozen=True)
class Recognition:
    """Result of recognising a request. by: local, cookie, token, header, or nothing; said: what the cookie says of its
    session.
    """

    identity: Identity | None
    by: str = ""
    said: str = ""
    wait: float = 0.0  # seconds for which this address is refused, after too many wrong tokens


_seen: dict[tuple[str, str], tuple[float, Session | UnseenError | None]] = {}


async def authenticate(scope: Scope, found: Configuration, place: AuthStore) -> Recognition:
    """Recognise who sent a request, where a sign-in is configured. UnseenError where that cannot be looked up."""
    headers = Headers(scope=scope)
    token = bearer(headers)
    if token is not None and found.sign_in.tokens:
        return await _by_token(token, scope, found, place)
    named = by_header(scope, found)
    if named is not None:
        return Recognition(named, "header")
    said = session_cookie(headers, found, place)
    identity = None if said is None else await of_session(said, found.sign_in, place)
    return Recognition(identity, "cookie", said or "") if identity is not None else Recognition(None)


async def still(
    at: Recognition, scope: Scope, found: Configuration, place: AuthStore, *, at_once: bool = False
) -> Identity | None:
    """Identity at this moment behind something that goes on, a websocket or a body; None for nobody. UnseenError where
    that cannot be looked up. at_once: a session that another process has ended this second is none.
    """
    if at.by == "local":
        return None if found.sign_in.is_configured else LOCAL
    if at.by == "header":
        return by_header(scope, found)
    if at.by == "cookie":
        return await of_session(at.said, found.sign_in, place, at_once=at_once)
    if at.by == "token" and found.sign_in.tokens:
        return _of_token(tokens.digest_of(bearer(Headers(scope=scope)) or ""), place)
    return None


async def of_session(said: str, sign_in: SignIn, place: AuthStore, *, at_once: bool = False) -> Identity | None:
    """Identity of a cookie's session, if what it was begun with still lets them in. UnseenError where that cannot be
    looked up.
    """
    session = await _session(said, sign_in.session_hours, place, at_once)
    if session is None:
        return None
    if session.way == "password":
        for role, setting in PASSWORDS:
            if getattr(sign_in, setting) and session.credential == credential_of(
                place, setting, getattr(sign_in, setting)
            ):
                return Identity(role, role, "password")
        return None
    if session.way == "token":
        return _of_token(session.credential, place) if sign_in.tokens else None
    if session.way == "oidc" and sign_in.oidc_issuer and session.credential == provider_of(place, sign_in):
        known = role_of(session.name, sign_in)
        return None if known is None else Identity(session.name, known, "oidc")
    return None


def with_secret(secret: str, sign_in: SignIn, place: AuthStore) -> tuple[Identity, str] | None:
    """Identity that a typed password or token lets in, and what their session keeps of it; None for a wrong one. As
    long for a wrong one as for a right one.
    """
    if sign_in.tokens and secret.startswith(tokens.PREFIX):
        digest = tokens.digest_of(secret.strip())
        identity = _of_token(digest, place)
        if identity is not None and digest is not None:
            return identity, digest
    right = [(role, setting) for role, setting in PASSWORDS if passwords.is_right(getattr(sign_in, setting), secret)]
    if not right:
        return None
    role, setting = right[0]
    return Identity(role, role, "password"), credential_of(place, setting, getattr(sign_in, setting))


def credential_of(place: AuthStore, setting: str, value: str) -> str:
    """A fingerprint of a configured password: equal as long as it is not changed."""
    return place.signature("the password of a session", f"{setting} {value}")


def provider_of(place: AuthStore, sign_in: SignIn) -> str:
    return place.signature("the provider of a session", f"{sign_in.oidc_issuer} {sign_in.oidc_client_id}")


def by_header(scope: Scope, found: Configuration) -> Identity | None:
    """Identity that the proxy names, once, if it is a trusted one and the lists know them; else None."""
    if not found.sign_in.header or not client_address.is_proxy(scope, found.hosting):
        return None
    names = Headers(scope=scope).getlist(found.sign_in.header)
    if len(names) != 1:
        return None
    try:
        name = names[0].encode("latin-1").decode("utf-8").strip()
    except UnicodeError:
        return None
    role = role_of(name, found.sign_in)
    return None if role is None else Identity(name, role, "header")


def session_cookie(headers: Headers, found: Configuration, place: AuthStore) -> str | None:
    """Text that the cookie keeps of its session, if we signed it and it is not over; else None."""
    value = cookies(headers).get(place.cookie("session", is_secure(found)), "")
    return place.unsigned(_COOKIE, value, 3600 * found.sign_in.session_hours)


def cookie_value(place: AuthStore, said: str) -> str:
    return place.signed(_COOKIE, said)


def cookies(headers: Headers) -> dict[str, str]:
    return {name: value for part in headers.getlist("cookie") for name, value in cookie_parser(part).items()}


def sign_out(said: str, place: AuthStore) -> None:
    place.sessions.end(said)
    _seen.pop((str(place.directory), said), None)


def forget() -> None:
    """Forget the sessions that were looked up, so that each is looked up again."""
    _seen.clear()


async def _session(said: str, hours: float, place: AuthStore, at_once: bool) -> Session | None:
    """Session of a cookie, looked up once a second at most, for a heatmap asks for many tiles at once."""
    kept = _seen.get((str(place.directory), said))
    if at_once or kept is None or time.monotonic() > kept[0]:
        kept = await asyncio.get_running_loop().run_in_executor(_looking, _look, said, hours, place, at_once)
    session = kept[1]
    if isinstance(session, UnseenError):
        raise UnseenError(*session.args)
    return None if session is None or session.is_over(hours) else session


def _look(said: str, hours: float, place: AuthStore, at_once: bool) -> tuple[float, Session | UnseenError | None]:
    """Look a session up, unless somebody has while this call waited for its turn."""
    key = (str(place.directory), said)
    kept = _seen.get(key)
    if not at_once and kept is not None and time.monotonic() <= kept[0]:
        return kept
    session: Session | UnseenError | None
    try:
        session = place.sessions.find(said, hours)
    except (sqlite3.Error, OSError, ConfigurationError) as error:
        _log.error("a session cannot be looked up: %s", error)
        session = UnseenError("Who is signed in cannot be looked up at this moment; try again.")
    if len(_seen) >= _MOST_KEPT:
        _seen.clear()
    _seen[key] = kept = time.monotonic() + _KEPT_SECONDS, session
    return kept


async def _by_token(text: str, scope: Scope, found: Configuration, place: AuthStore) -> Recognition:
    """Recognise a request by its token. A right one always counts: it has 256 random bits, so that nobody guesses one,
    and a colleague's faulty script locks nobody out.
    """
    identity = _of_token(tokens.digest_of(text), place)
    if identity is not None:
        return Recognition(identity, "token")
    asked = (
        client_address.client_of(scope, found.hosting),
        found.sign_in.attempts,
        60 * found.sign_in.attempt_minutes,
        "token",
    )
    try:  # a count of their own: an old script of a colleague's keeps nobody from the password
        _, wait = await asyncio.get_running_loop().run_in_executor(_counting, place.sessions.attempt, *asked)
    except (sqlite3.Error, OSError, ConfigurationError):
        wait = 0.0
    return Recognition(None, "token", wait=wait)


def _of_token(digest: str | None, place: AuthStore) -> Identity | None:
    token = None if digest is None else place.tokens.of_digest(digest)
    return None if token is None else Identity(token.name, token.role, "token")  # type: ignore[arg-type]


def bearer(headers: Headers) -> str | None:
    """Token in Authorization, if there is one such header; else None."""
    found = headers.getlist("authorization")
    scheme, _, text = found[0].partition(" ") if len(found) == 1 else ("", "", "")
    return text.strip() if scheme.lower() == "bearer" else None
