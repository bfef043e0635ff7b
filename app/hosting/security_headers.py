"""Headers that every answer carries for the browser: what a page may load and who may frame it, that types are not
guessed, what caches may keep.
"""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import Message, Scope, Send

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


def guarded(send: Send, scope: Scope, found: Configuration | None) -> Send:
    """Wrap `send` so that it adds the headers to the answer of a request."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            _add(headers, frames(found))
            if found is not None and found.sign_in.is_configured and not scope["path"].startswith(_STATIC):
                _keep_private(headers)
        await send(message)

    return sending


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
