"""Headers that every answer carries for the browser: what a page may load and who may frame it, that types are not
guessed, what caches may keep.
"""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import Message, Scope, Send

from app.hosting.live_settings import is_secure
from core.configuration import Configuration

# What Streamlit's pages, our components and Plotly's figures were seen to need in Chromium; connect-src 'self' covers
# the websocket. Scripts within the page are Streamlit's own, so a script that got into it would run: but it could tell
# no other host what it read.
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' blob:; style-src 'self' 'unsafe-inline'; img-src 'self'"
    " data: blob:; font-src 'self' data:; media-src 'self' data: blob:; connect-src 'self' data: blob:; worker-src"
    " 'self' blob:; frame-src 'self' blob:; object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors"
    " {frames}"
)
_STATIC = "/static/"


def frames(found: Configuration | None) -> str:
    """Sources that may show a page within another: this server, and those that the configuration names."""
    named = found.hosting.frame_ancestors if found is not None else ()
    return " ".join(("'self'", *named))


def is_https(scope: Scope) -> bool:
    """Return whether a browser sent this request by https, as far as its connection or the proxy says; who says so
    falsely loses the cookie that they are given.
    """
    said = Headers(scope=scope).get("x-forwarded-proto", "").partition(",")[0].strip().lower()
    return scope.get("scheme") in ("https", "wss") or said == "https"


def guarded(send: Send, scope: Scope, found: Configuration | None) -> Send:
    """Wrap `send` so that it adds the headers to the answer of a request, and Secure to its cookies behind https."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            _add(headers, frames(found))
            if is_https(scope) or (found is not None and is_secure(found)):
                _secure_cookies(headers)
            if found is not None and found.sign_in.is_configured and not scope["path"].startswith(_STATIC):
                _keep_private(headers)
        await send(message)

    return sending


def _secure_cookies(headers: MutableHeaders) -> None:
    """Make every cookie Secure, Streamlit's own too, which knows of no proxy's https."""
    for index, (name, value) in enumerate(headers.raw):
        attributes = {part.strip().lower() for part in value.split(b";")[1:]}
        if name.lower() == b"set-cookie" and b"secure" not in attributes:
            headers.raw[index] = name, value + b"; Secure"


def _add(headers: MutableHeaders, allowed: str) -> None:
    headers.setdefault("content-security-policy", POLICY.format(frames=allowed))
    headers.setdefault("x-content-type-options", "nosniff")
    headers.setdefault("referrer-policy", "same-origin")  # a link in a note does not tell its host which run was read
    headers.setdefault("cross-origin-opener-policy", "same-origin")
    headers.setdefault("cross-origin-resource-policy", "same-origin")


def _keep_private(headers: MutableHeaders) -> None:
    """Forbid shared caches: none keeps what only some may see, and Back after a sign-out asks the server again."""
    headers.add_vary_header("Cookie")
    if headers.get("content-type", "").startswith("text/html"):
        headers["cache-control"] = "no-store"
        return
    kept = [part.strip() for part in headers.get("cache-control", "").split(",") if part.strip()]
    kept = [part for part in kept if part.lower() != "public" and not part.lower().startswith("s-maxage")]
    headers["cache-control"] = ", ".join(kept if {"private", "no-store"} & set(kept) else [*kept, "private"])
