"""Signing in through an OpenID Connect provider: the code flow with PKCE, state and nonce, and the lists of who may
enter.

An address counts only where the provider says that it is verified: with some providers anybody may claim any address.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Any

import httpx2
from authlib.common.errors import AuthlibBaseError
from authlib.integrations.starlette_client import OAuth, StarletteOAuth2App
from joserfc.errors import JoseError
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import QueryParams
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from app.hosting import authentication, client_address, redirects, session_start, sign_in_page
from app.hosting.audit_async import tell
from app.hosting.identity import Identity
from app.hosting.live_settings import AuthStore, auth_store, is_secure, now_in_force
from app.hosting.security_headers import frames
from core.configuration import Configuration, SignIn
from core.errors import ConfigurationError
from core.hosting.people import role_of

_MINUTES = 10  # between leaving for the provider and coming back
_PATIENCE_SECONDS = 10.0
# Signatures that only the provider can make; a shared secret or none at all is no signature.
_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519")
_FOREIGN = (AuthlibBaseError, JoseError, httpx2.HTTPError, ValueError, KeyError, TypeError, RuntimeError)
_NOT_TAKEN = "The provider's answer could not be taken: it was late, repeated, refused, or not meant for this browser."
_log = logging.getLogger(__name__)


class ProviderError(Exception):
    """The provider's answer cannot be taken; the text is for the server's log."""


async def leave(request: Request) -> Response:
    """Redirect to the provider, with where the viewer wanted to go kept in a signed cookie."""
    found = now_in_force()
    if not found.sign_in.oidc_issuer:
        return sign_in_page.sentence("Not found", "This server has no such way to sign in.", 404, frames(found))
    request.session["next"] = redirects.safe(request.query_params.get("next", "/"))
    try:
        provider = await _provider(found.sign_in)
        return await provider.authorize_redirect(request, found.hosting.public_url.rstrip("/") + session_start.CALLBACK)
    except (*_FOREIGN, ProviderError) as error:
        _log.error("the sign-in provider cannot be used: %s", error)
        text = "The sign-in provider cannot be reached, or says something that cannot be used; try again later."
        return sign_in_page.sentence("Not signed in", text, 502, frames(found))


async def come_back(request: Request) -> Response:
    """Begin a session for who comes from the provider and is in the lists. Whoever did not leave for it from here is
    not heard, counted nor written down.
    """
    found, place = now_in_force(), auth_store()
    if not await _has_left(request, found.sign_in):
        return sign_in_page.sentence("Not signed in", _NOT_TAKEN, 400, frames(found))
    ways, address = found.sign_in, client_address.client_of(request.scope, found.hosting)
    try:
        number, wait = await run_in_threadpool(
            place.sessions.attempt, address, ways.attempts, 60 * ways.attempt_minutes
        )
        if wait:
            return _later(wait, session_start.too_many(wait), found)
        return await _come_back(request, found, place, number)
    except (sqlite3.Error, OSError, ConfigurationError) as error:
        _log.error("nobody can sign in: %s", error)
        return sign_in_page.sentence("Not signed in", session_start.NO_DISK, 503, frames(found))


async def _come_back(request: Request, found: Configuration, place: AuthStore, number: int) -> Response:
    target = redirects.safe(str(request.session.pop("next", "/")))
    try:
        claims = await _claims(request, found.sign_in)
    except (*_FOREIGN, ProviderError) as error:
        _log.error("nobody was signed in by the provider: %s", _plain(error))
        await _tell(place, request, found, "nobody", "failed sign-in")
        return sign_in_page.sentence("Not signed in", _NOT_TAKEN, 400, frames(found))
    name = str(claims.get("email") or "").strip()
    role = role_of(name, found.sign_in) if _is_verified(claims) else None
    if role is None:
        await _tell(place, request, found, name or "nobody", "refused sign-in")
        why = (
            "is not in the lists of those who may enter" if _is_verified(claims) else "is not verified by the provider"
        )
        return sign_in_page.sentence("Not signed in", f"The address {name or '(none)'} {why}.", 403, frames(found))
    identity, credential = Identity(name, role, "oidc"), authentication.provider_of(place, found.sign_in)
    if wait := await session_start.admitted(request, found, place, identity, credential):
        return _later(wait, session_start.too_many(wait, session_start.RIGHT), found)
    await run_in_threadpool(place.sessions.succeeded, number)
    return await session_start.begin(request, found, place, identity, credential, target)


def _later(seconds: float, text: str, found: Configuration) -> Response:
    return session_start.later(sign_in_page.sentence("Not signed in", text, 429, frames(found)), seconds)


async def _has_left(request: Request, ways: SignIn) -> bool:
    """Return whether the browser has the signed cookie of a way to this provider that ends with this answer."""
    if not ways.oidc_issuer:
        return False
    known = _registered(ways.oidc_issuer, ways.oidc_client_id, ways.oidc_client_secret).framework
    state = request.query_params.get("state", "")
    return bool(state) and await known.get_state_data(request.session, state) is not None


async def _claims(request: Request, ways: SignIn) -> dict[str, Any]:
    """Claims of the provider about who signed in, from a token that it signed for us and for this browser."""
    provider = await _provider(ways)
    token = await provider.authorize_access_token(request)
    claims = token.get("userinfo")
    if not claims:
        raise ProviderError("there was no ID token in the answer")
    claims = dict(claims)
    if "email" not in claims and "userinfo_endpoint" in provider.server_metadata:
        more = dict(await provider.userinfo(token=token))
        if more.get("sub") == claims.get("sub"):  # OpenID Connect Core 5.3.2
            claims |= {key: more[key] for key in ("email", "email_verified") if key in more}
    return claims


def _is_verified(claims: dict[str, Any]) -> bool:
    return claims.get("email_verified") in (True, "true")


async def _provider(ways: SignIn) -> StarletteOAuth2App:
    provider = _registered(ways.oidc_issuer, ways.oidc_client_id, ways.oidc_client_secret)
    metadata = await provider.load_server_metadata()
    if str(metadata.get("issuer", "")).rstrip("/") != ways.oidc_issuer.rstrip("/"):  # OpenID Connect Discovery 4.3
        _registered.cache_clear()
        raise ProviderError(f"it calls itself {str(metadata.get('issuer'))[:120]!a}, not {ways.oidc_issuer}")
    offered = metadata.get("id_token_signing_alg_values_supported") or ["RS256"]
    metadata["id_token_signing_alg_values_supported"] = [name for name in offered if name in _ALGORITHMS] or ["RS256"]
    return provider


@lru_cache(maxsize=2)
def _registered(issuer: str, client_id: str, client_secret: str) -> StarletteOAuth2App:
    return OAuth().register(
        name="provider",
        server_metadata_url=f"{issuer.rstrip('/')}/.well-known/openid-configuration",
        client_id=client_id,
        client_secret=client_secret,
        client_kwargs={"scope": "openid email", "code_challenge_method": "S256", "timeout": _PATIENCE_SECONDS},
    )


async def _tell(place: AuthStore, request: Request, found: Configuration, who: str, what: str) -> None:
    await tell(place.directory, who, what, way="oidc", address=client_address.client_of(request.scope, found.hosting))


def _plain(error: Exception) -> str:
    """Text of an error for the log: one of the provider's may quote what the address bar said."""
    return ascii(f"{type(error).__name__}: {error}"[:200])


def with_state(endpoint: Callable[[Request], Awaitable[Response]]) -> ASGIApp:
    """The endpoint with `request.session`: a signed cookie for the minutes between leaving and coming back."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await (await endpoint(Request(scope, receive)))(scope, receive, send)

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        found, place = now_in_force(), auth_store()
        kept = SessionMiddleware(
            answer,
            secret_key=place.key_for("the way to the provider and back").hex(),
            session_cookie=place.cookie("oidc", is_secure(found)),
            max_age=60 * _MINUTES,
            https_only=is_secure(found),
        )
        await kept({**scope, "query_string": _bounded(scope.get("query_string", b""))}, receive, send)

    return serve


def _bounded(query: bytes) -> bytes:
    return query if len(query) <= 8192 and len(QueryParams(query.decode("latin-1"))) <= 16 else b""
