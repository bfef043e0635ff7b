"""Access to a server without a sign-in: for the user who started it, from this machine, and with a token where one is
asked for.
"""

from __future__ import annotations

import asyncio
import secrets
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from typing import Any
from urllib.parse import quote, unquote_plus

from starlette.datastructures import Headers, QueryParams
from starlette.responses import RedirectResponse, Response
from starlette.types import Scope

from app.hosting import authentication, client_address, redirects
from app.hosting.security_headers import is_https
from core.hosting import socket_owner

_ELSEWHERE = (
    "This dashboard has no sign-in, so it answers its own machine alone and no proxy; open http://127.0.0.1 with its"
    " port, or set up a sign-in (docs/hosting.md)."
)
_ANOTHERS = (
    "This dashboard has no sign-in, so it answers only programs of the user who started it, and this connection is"
    " another user's, a proxy's for instance; to let others in, set up a sign-in (docs/hosting.md)."
)
_NO_TOKEN = (
    "Open the address with ?token= that this server printed when it started; a program sends that token as"
    " 'Authorization: Bearer TOKEN'."
)
_MOST_KEPT = 4096
_looking = ThreadPoolExecutor(4, "socket-owners")


class _AccessState:
    """The token that is asked for, if one is, and the connections whose owner was looked up."""

    token = ""
    # A look takes 3 to 75 ms, so it is made once a connection, and never taken for another's: uvicorn hands all
    # requests of a connection the same tuple, every new connection another, and one that is kept here stays the only
    # one with its identity, whoever has the port meanwhile.
    connections: dict[int, tuple[Any, bool]] = {}  # noqa: RUF012


def ask_for_token() -> str:
    """Ask for a token from now on, until this process ends; the token, which is new."""
    _AccessState.token = secrets.token_urlsafe(32)
    return _AccessState.token


def forget() -> None:
    """Forget the token and the connections, as if the process had just started."""
    _AccessState.token = ""
    _AccessState.connections.clear()


async def refusal_of(scope: Scope) -> str | Response | None:
    """Answer a request that may not pass: a sentence, or a redirect from an address with the token to the one without.
    None where it may pass.
    """
    if not client_address.is_local(scope):
        return _ELSEWHERE
    if not await _is_users_own(scope):
        return _ANOTHERS
    return _without_token(scope) if _AccessState.token else None


async def _is_users_own(scope: Scope) -> bool:
    """Return whether the connection is one of the user's whom this process runs as; True where nobody can tell."""
    client: Any = scope.get("client")
    server: Any = scope.get("server")
    if not (_is_tcp(client) and _is_tcp(server) and socket_owner.can_be_asked()):
        return True
    kept = _AccessState.connections.get(id(client))
    if kept is not None and kept[0] is client:
        return kept[1]
    is_own = await asyncio.get_running_loop().run_in_executor(
        _looking, socket_owner.is_own, (client[0], client[1]), (server[0], server[1])
    )
    if len(_AccessState.connections) >= _MOST_KEPT:
        _AccessState.connections.clear()
    _AccessState.connections[id(client)] = client, is_own
    return is_own


def _is_tcp(end: Any) -> bool:
    try:
        return end is not None and bool(ip_address(end[0])) and end[1] is not None
    except ValueError:  # the path of a unix socket, or the name a test gives
        return False


def _without_token(scope: Scope) -> str | Response | None:
    """Refusal of a request without the token. Who comes with it in the address is sent on to the address without it,
    with a cookie, so that no link, history or Referer has it.
    """
    headers = Headers(scope=scope)
    server = scope.get("server")
    name = f"ulpscope_token_{server[1] if server else ''}"  # cookies do not know ports
    query = scope.get("query_string", b"").decode("latin-1")
    if (
        scope["type"] == "http"
        and scope["method"] == "GET"
        and any(_is_token(said) for said in QueryParams(query).getlist("token"))
    ):
        kept = "&".join(part for part in query.split("&") if unquote_plus(part.partition("=")[0]) != "token")
        answer = RedirectResponse(
            redirects.safe(quote(scope["path"]) + (f"?{kept}" if kept else "")), 303, {"cache-control": "no-store"}
        )
        answer.set_cookie(name, _AccessState.token, path="/", secure=is_https(scope), httponly=True, samesite="lax")
        return answer
    said = authentication.cookies(headers).get(name, ""), authentication.bearer(headers) or ""
    return None if any(map(_is_token, said)) else _NO_TOKEN


def _is_token(said: str) -> bool:
    return secrets.compare_digest(said.encode("utf-8", "backslashreplace"), _AccessState.token.encode())
