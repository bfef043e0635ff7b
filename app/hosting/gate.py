"""The gate: ASGI middleware in front of pages, routes, media and the websocket."""

import logging
import sys
from pathlib import Path
from urllib.parse import quote, urlencode, urlsplit

import streamlit as st
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from streamlit import config as streamlit_config

from app.hosting import members, sign_in
from app.hosting.members import PROXY_SECRET, Access
from core.configuration import Configuration, configuration, readable_secrets
from core.errors import ConfigurationError, UlpscopeError
from core.hosting import start, tokens
from core.runs.store.store import open_store

_log = logging.getLogger(__name__)
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
# What pages, components and figures need in Chromium. Streamlit needs inline scripts, so the policy
# does not stop a script in a page, only what that could send to other hosts.
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; script-src 'self' 'unsafe-inline' blob:; style-src 'self'"
        " 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; media-src 'self'"
        " data: blob:; connect-src 'self' data: blob:; worker-src 'self' blob:; frame-src 'self'"
        " blob:; object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def protection() -> list[Middleware]:
    """Return the middleware of the dashboard as it is configured; ends the process if it must not
    start.
    """
    try:
        config = configuration()
        # A server other than Streamlit's does not say where it listens; the gate then looks at each
        # connection.
        is_streamlits = getattr(streamlit_config, "_server_mode", None) is not None
        start.check(config, st.get_option("server.address") if is_streamlits else "127.0.0.1")
        for secret in readable_secrets(config):
            sys.stderr.write(
                f"warning: every user of this machine can read {secret} in {config.source}.\n",
            )
        return middleware(config)
    except UlpscopeError as error:
        sys.stderr.write(f"error: {error}\n")
        raise SystemExit(2) from None


def middleware(config: Configuration) -> list[Middleware]:
    """Return the gate, and in front of it what it needs: sessions with a sign-in, the Host's check
    without.
    """
    # the audit log goes to stderr, unless logging is configured otherwise
    audit = logging.getLogger("ulpscope.audit")
    if not audit.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s audit %(message)s"))
        audit.addHandler(handler)
        audit.setLevel(logging.INFO)
    if not config.sign_in.is_configured:
        gate = Middleware(Gate, Access(config, store=Path(), key=""))
        return [Middleware(TrustedHostMiddleware, _LOOPBACK_NAMES, www_redirect=False), gate]
    store = open_store().directory.absolute()
    key = tokens.cookie_key(store)
    sessions = Middleware(
        SessionMiddleware,
        secret_key=key,
        # browsers send a cookie to every port of a host
        session_cookie=f"ulpscope_{tokens.digest(key)[:8]}",
        max_age=round(3600 * config.sign_in.session_hours),
        https_only=config.hosting.public_url.startswith("https://"),
    )
    return [sessions, Middleware(Gate, Access(config, store, key))]


class Gate:
    """Let members pass, answer the sign-in's own routes, and refuse everybody else."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access
        self._own = sign_in.routes(access) if access.config.sign_in.is_configured else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        connection = HTTPConnection(scope)
        own = self._own if scope["type"] == "http" and scope["path"] in sign_in.PATHS else None
        try:
            member = None if own else self._access.member_of(connection)
            refusal = self._refusal(connection, member, own is not None)
            if refusal:
                await refusal(scope, receive, sending)
                return
            if own:
                # Without "app": the router would raise what only the application turns into a 404.
                await own({key: scope[key] for key in scope if key != "app"}, receive, sending)
                return
        # of the file of tokens, whose path is for the log alone
        except ConfigurationError as failure:
            _log.error("no sign-in by token: %s", failure)
            sentence = (
                "The server cannot read its list of tokens, so no token signs in. Its log says why."
            )
            await _error_response(scope, sentence, 503)(scope, receive, sending)
            return
        assert member is not None
        # routes and scripts get the member's name, and no secret of the proxy's
        removed = {
            name.encode()
            for name in (members.HEADER, PROXY_SECRET, self._access.config.sign_in.header.lower())
        }
        headers = [(name, value) for name, value in scope["headers"] if name.lower() not in removed]
        headers.append((members.HEADER.encode(), quote(member).encode()))
        await self._app({**scope, "headers": headers}, receive, sending)

    def _refusal(
        self,
        connection: HTTPConnection,
        member: str | None,
        is_own: bool,
    ) -> Response | None:
        """Return the answer to a request that may not pass, None if it may."""
        scope, config = connection.scope, self._access.config
        is_changing = scope["type"] == "http" and scope["method"] not in ("GET", "HEAD", "OPTIONS")
        # A script run may change anything, and a browser opens a websocket to any site unasked.
        may_change = is_changing or scope["type"] == "websocket"
        if may_change and _is_cross_site(connection, config.hosting.public_url):
            sentence = "This request came from a page of another site, so nothing was changed."
            return _error_response(scope, sentence, 403)
        if is_own:
            return None
        client = connection.client
        if not config.sign_in.is_configured and not (client and start.is_loopback(client.host)):
            sentence = "This server has no sign-in, so it answers its own machine only."
            return _error_response(scope, sentence, 403)
        if member is None:
            # A browser is led to the form, a program gets a status.
            if scope.get("method") == "GET" and "text/html" in connection.headers.get("accept", ""):
                path, query = quote(scope["path"]), connection.url.query
                if query:
                    path += f"?{query}"
                return RedirectResponse(
                    f"/sign-in?{urlencode({'next': path})}", 303, {"Cache-Control": "no-store"}
                )
            sentence = (
                "Sign in first: a browser at /sign-in, a program with 'Authorization: Bearer"
                " TOKEN'."
            )
            return _error_response(scope, sentence, 401)
        if is_changing and config.hosting.read_only:
            return _error_response(scope, members.READ_ONLY, 403)
        return None


def _is_cross_site(connection: HTTPConnection, public_url: str) -> bool:
    """Return whether a page of another origin sent a request; programs send no Origin."""
    origin = connection.headers.get("origin")
    if origin is None:
        return False
    own = {connection.headers.get("host", "").lower(), urlsplit(public_url).netloc.lower()} - {""}
    return origin.partition("://")[2].lower() not in own


def _error_response(scope: Scope, sentence: str, status: int) -> Response:
    headers = {"Cache-Control": "no-store"}
    if scope["path"].startswith("/api/"):
        return JSONResponse({"error": sentence}, status, headers)
    return PlainTextResponse(f"{sentence}\n", status, headers)
