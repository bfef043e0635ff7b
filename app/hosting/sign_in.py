"""`/sign-in` and `/sign-out`, which the gate answers without a session: a form for password or
token, and OIDC.

Their pages are plain HTML with its own style, no script, nothing loaded.
"""

import asyncio
import base64
import hashlib
import logging
from concurrent.futures import ThreadPoolExecutor
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route, Router

from app.hosting.members import Access
from core.hosting.credentials import is_member

PATHS = ("/sign-in", "/sign-out", "/sign-in/oidc", "/sign-in/callback")
# Signatures that only the provider can make, even if it offers others: no "none", no shared secret.
_ALGORITHMS = (
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
    "Ed25519",
)
_LARGEST_FORM = 16 << 10  # bytes; a form comes without a session
STYLE = (Path(__file__).parent / "sign_in.css").read_text(encoding="utf-8")
_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
_POLICY = (
    f"default-src 'none'; style-src 'sha256-{_HASH}'; img-src data:; form-action 'self'; base-uri"
    " 'none'; frame-ancestors 'none'"
)
# one at a time: a hash takes 0.2 s of a core and 64 MB
_hashing = ThreadPoolExecutor(1, "passwords")
# One attempt of each address at a time, so that wrong guesses delay their sender alone, and of few
# addresses: the last of eight waits 2 s.
_MOST_WAITING = 8
_audit = logging.getLogger("ulpscope.audit")
_log = logging.getLogger(__name__)


def routes(access: Access) -> Router:
    """Return the routes of a server's sign-in."""
    config = access.config
    provider: Any = None
    if issuer := config.sign_in.oidc_issuer:
        from authlib.integrations.starlette_client import OAuth

        provider = OAuth().register(
            name="provider",
            server_metadata_url=f"{issuer.rstrip('/')}/.well-known/openid-configuration",
            client_id=config.sign_in.oidc_client_id,
            client_secret=config.sign_in.oidc_client_secret,
            client_kwargs={
                "scope": "openid email",
                "code_challenge_method": "S256",
                "timeout": 10.0,
            },
        )
    waiting: set[str] = set()  # addresses whose attempt is being checked

    def form(target: str, problem: str = "", status: int = 200) -> Response:
        words = {"password": config.sign_in.password, "token": config.sign_in.tokens}
        secret = " or ".join(word for word, is_set in words.items() if is_set).capitalize()
        host = urlsplit(issuer).hostname or ""
        if not secret and not host:
            problem = "The proxy in front of this server did not name a member."
        parts = ["<h1>ULPscope</h1>"]
        about = ""
        if problem:
            parts.append(f'<p class="wrong" role="alert" id="wrong">{escape(problem)}</p>')
            about = ' aria-describedby="wrong" aria-invalid="true"'
        else:
            parts.append("<p>Sign in to continue.</p>")
        if secret:
            parts.append(
                '<form method="post" action="/sign-in"><input type="hidden" name="next"'
                f' value="{escape(target)}"><label for="secret">{escape(secret)}</label><input'
                ' id="secret" name="secret" type="password" required autofocus'
                f' autocomplete="current-password" maxlength="1024"{about}><button'
                ' type="submit">Sign in</button></form>',
            )
        if host:
            parts.append('<span class="or">or</span>' if secret else "")
            address = f"/sign-in/oidc?{urlencode({'next': target})}"
            parts.append(
                f'<a class="button" href="{escape(address)}">Sign in with {escape(host)}</a>',
            )
        return _page("Sign in", "".join(parts), status)

    def begin(request: Request, member: str, way: str, target: str) -> Response:
        access.begin(request, member, way)
        _audit.info("%s signed in by %s from %s", member, way, _client(request))
        return RedirectResponse(target, 303)

    async def sign_in(request: Request) -> Response:
        if request.method != "POST":
            target = own_path(request.query_params.get("next", "/"))
            if access.member_of(request) is None:
                return form(target)
            return RedirectResponse(target, 303)
        fields = await _fields(request)
        target = own_path(fields.get("next", "/"))
        client, secret = _client(request), fields.get("secret", "")
        if client in waiting or len(waiting) >= _MOST_WAITING:
            return form(target, "Too many attempts at once; try again in a few seconds.", 429)
        waiting.add(client)
        try:
            loop = asyncio.get_running_loop()
            entered = await loop.run_in_executor(_hashing, access.member_with, secret)
        finally:
            waiting.remove(client)
        if entered is None:
            _audit.info("failed sign-in from %s", client)
            return form(target, "Wrong password or token.", 401)
        return begin(request, *entered, target)

    async def sign_out(request: Request) -> Response:
        member = access.member_of(request)
        if member is None:
            return RedirectResponse("/sign-in", 303)
        if request.method != "POST":
            body = (
                f"<h1>Sign out?</h1><p>You are signed in as {escape(member)}.</p><form"
                ' method="post" action="/sign-out"><button type="submit">Sign'
                ' out</button></form><p></p><a href="/">Back to ULPscope</a>'
            )
            return _page("Sign out", body, 200)
        request.session.clear()
        _audit.info("%s signed out", member)
        return sentence("Signed out", "This browser is signed out.")

    async def leave(request: Request) -> Response:
        # of attempts that were given up
        for state in [key for key in request.session if key.startswith("_state_")]:
            del request.session[state]
        request.session["next"] = own_path(request.query_params.get("next", "/"))
        try:
            back = f"{config.hosting.public_url.rstrip('/')}/sign-in/callback"
            return await provider.authorize_redirect(request, back)
        except Exception as error:
            # the libraries of HTTP, JOSE and OAuth share no base class
            _log.error("the OIDC provider cannot be used: %r", error)
            return sentence("Not signed in", "The sign-in provider cannot be reached.", 502)

    async def come_back(request: Request) -> Response:
        target = str(request.session.get("next", "/"))
        try:
            member = await _verified_address(provider, request)
        except Exception as error:
            _log.error("the OIDC provider's answer was refused: %s", ascii(repr(error))[:300])
            return sentence("Not signed in", "The provider's answer was refused; try again.", 400)
        if not is_member(member, config.sign_in.members):
            _audit.info("refused sign-in by oidc from %s", _client(request))
            return sentence("Not signed in", "You are not a member of this server.", 403)
        return begin(request, member, "oidc", target)

    both = ["GET", "POST"]
    pages = [Route("/sign-in", sign_in, methods=both), Route("/sign-out", sign_out, methods=both)]
    if provider:
        pages += [Route("/sign-in/oidc", leave), Route("/sign-in/callback", come_back)]
    return Router(pages, redirect_slashes=False)


def own_path(text: str) -> str:
    """Return a path of this server with its query, `/` for anything that a browser could take for
    another place.
    """
    is_own = text.startswith("/") and not text.startswith("//") and not text.startswith("/sign-")
    return text if is_own and "\\" not in text and text.isprintable() and len(text) <= 4096 else "/"


async def _verified_address(provider: Any, request: Request) -> str:
    """Return the email address in the provider's answer, '' unless it says that it is verified."""
    metadata = await provider.load_server_metadata()
    metadata["id_token_signing_alg_values_supported"] = list(_ALGORITHMS)
    token = await provider.authorize_access_token(request)
    claims = dict(token["userinfo"])
    if "email" not in claims and "userinfo_endpoint" in provider.server_metadata:
        more = dict(await provider.userinfo(token=token))
        # claims of another subject must not be used (OpenID Connect Core 5.3.2)
        claims |= more if more.get("sub") == claims["sub"] else {}
    return str(claims.get("email", "")) if claims.get("email_verified") is True else ""


async def _fields(request: Request) -> dict[str, str]:
    """Return the fields of a small form; none of a longer one."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _LARGEST_FORM:
            return {}
    fields = parse_qsl(body.decode("latin-1"), keep_blank_values=True)
    # of several fields of a name the first counts
    return dict(reversed(fields))


def _client(request: Request) -> str:
    return request.client.host if request.client else "unknown"


def sentence(title: str, text: str, status: int = 200) -> HTMLResponse:
    """Return a page of one sentence with a link to the sign-in."""
    return _page(
        title,
        f'<h1>{escape(title)}</h1><p>{escape(text)}</p><a href="/sign-in">Sign in</a>',
        status,
    )


def _page(title: str, body: str, status: int) -> HTMLResponse:
    return HTMLResponse(
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport"'
        ' content="width=device-width, initial-scale=1"><meta name="robots"'
        f' content="noindex"><title>{escape(title)} · ULPscope</title><link rel="icon"'
        f' href="data:,"><style>{STYLE}</style></head><body><main>{body}</main></body></html>',
        status_code=status,
        headers={"Content-Security-Policy": _POLICY, "Cache-Control": "no-store"},
    )
