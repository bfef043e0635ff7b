"""Addresses to go to once signed in: of this server, never another's."""

from __future__ import annotations

from urllib.parse import quote, urlencode, urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope

OWN = ("/sign-in", "/sign-out", "/health")
_LONGEST = 4096


def safe(text: str) -> str:
    """A path of this server with its query, or `/` for anything a browser could take for another place."""
    is_path = text.startswith("/") and not text.startswith("//") and len(text) <= _LONGEST
    if not is_path or "\\" in text or not text.isprintable():  # browsers drop tabs and line ends, and read \ as /
        return "/"
    try:
        parts = urlsplit(text)
    except ValueError:
        return "/"
    if parts.scheme or parts.netloc or parts.path.startswith("//") or is_own(parts.path):
        return "/"
    return quote(text, safe="/?&=%:@!$'()*+,;~-._[]")


def is_own(path: str) -> bool:
    """Return whether the gate itself answers at this path."""
    return path in OWN or path.startswith("/sign-in/")


def asked(scope: Scope) -> str:
    """The path and query of a request, for the sign-in to come back to."""
    query = scope.get("query_string", b"").decode("latin-1")
    return safe(quote(scope["path"]) + (f"?{query}" if query else ""))


def sign_in_address(scope: Scope) -> str:
    following = asked(scope)
    return "/sign-in" if following == "/" else f"/sign-in?{urlencode({'next': following})}"


def before(headers: Headers) -> str:
    """The page that the viewer comes from, where it is one of ours: a session that ended sends them here without a
    `next`.
    """
    try:
        parts = urlsplit(headers.get("referer", ""))
    except ValueError:
        return "/"
    return (
        safe(f"{parts.path}?{parts.query}" if parts.query else parts.path)
        if parts.netloc == headers.get("host")
        else "/"
    )
