"""Address that a request comes from: the other end of the connection, and through proxies that are trusted the
client's.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope

from core.configuration import Hosting
from core.hosting.start import UNIX, is_loopback, networks

UNKNOWN = ""  # a peer that may have been talked out of us; nobody trusts it
_LOOPBACK = "127.0.0.1"


def peer_of(scope: Scope) -> str:
    """The address at the other end of the connection itself.

    uvicorn believes X-Forwarded-For from loopback and writes what it says over the peer, with port 0 where none is
    named; no connection has port 0. With a port it cannot be told from a real one, so a peer that the header names with
    any port is nobody's.
    """
    client = scope.get("client")
    if client is None:
        return UNIX
    host, port = client[0], client[1]
    if port == 0:
        return _LOOPBACK
    named = ",".join(Headers(scope=scope).getlist("x-forwarded-for")).split(",")
    return UNKNOWN if any(part.strip() != host and _address(part.strip()) == host for part in named) else host


def is_trusted(peer: str, hosting: Hosting) -> bool:
    """Return whether this peer is a trusted proxy, so that what it says of others counts."""
    if peer == UNIX:
        return UNIX in hosting.trusted_proxies
    return _is_in(peer, networks(hosting))


def client_of(scope: Scope, hosting: Hosting) -> str:
    """Address whose failed attempts are counted together: the peer, or the last one before the trusted proxies."""
    peer = peer_of(scope)
    if not is_trusted(peer, hosting):
        return peer or "unknown"
    trusted = networks(hosting)
    for part in reversed(",".join(Headers(scope=scope).getlist("x-forwarded-for")).split(",")):
        address = _bare(part.strip())
        if address and not _is_in(address, trusted):
            return address
    return peer


def is_local(scope: Scope) -> bool:
    """Return whether a server without a sign-in may answer: the connection came in at loopback, by no proxy, and the
    request is meant for this machine by name.

    The name is looked at because a page of anybody's may have its own name point here (DNS rebinding), and would read
    all it likes.
    """
    if any(_is_forwarded(name) for name, _ in scope["headers"]):
        return False
    server = scope.get("server")
    at = str(server[0]) if server else ""
    try:
        if at and not ipaddress.ip_address(at).is_loopback:
            return False
    except ValueError:
        pass  # the path of a unix socket, or the name a test gives
    host = Headers(scope=scope).get("host", "")
    name = _hostname(host)
    return name == at or is_loopback(name) or name.endswith(".localhost") or (not host and scope["type"] == "http")


def is_same_site(scope: Scope, hosting: Hosting) -> bool:
    """Return whether a request that changes something, or a websocket, was begun by a page of this server, as far as
    the browser says.

    A program sends neither header, and no cookie that it was not given.
    """
    headers = Headers(scope=scope)
    fetched = headers.get("sec-fetch-site")
    if fetched is not None and fetched not in ("same-origin", "none"):
        return False
    origins = headers.getlist("origin")
    if not origins:
        return True
    return len(origins) == 1 and _is_ours(origins[0], headers.getlist("host"), hosting)


def _is_ours(origin: str, hosts: Sequence[str], hosting: Hosting) -> bool:
    if hosting.public_url and origin.lower() == _origin_of(hosting.public_url):
        return True
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return (
        parts.scheme in ("http", "https")
        and len(hosts) == 1
        and bool(parts.netloc)
        and parts.netloc.lower() == hosts[0].lower()
    )


def _origin_of(url: str) -> str:
    parts = urlsplit(url.lower())
    return f"{parts.scheme}://{parts.netloc}"


def _hostname(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _is_in(address: str, found: Iterable[ipaddress.IPv4Network | ipaddress.IPv6Network]) -> bool:
    try:
        known = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(known, ipaddress.IPv6Address) and known.ipv4_mapped:
        known = known.ipv4_mapped
    return any(known in network for network in found)


def _bare(part: str) -> str:
    """An address out of X-Forwarded-For, without its port; empty for what is none."""
    try:
        return str(ipaddress.ip_address(_address(part)))
    except ValueError:
        return ""


def _address(part: str) -> str:
    """Host before the port, if a port is there; divided as uvicorn does it."""
    if part.startswith("["):
        return part[1:].partition("]")[0]
    return part.partition(":")[0] if part.count(":") == 1 else part


def _is_forwarded(name: bytes) -> bool:
    """Return whether a header of this name is one that proxies add."""
    plain = name.lower().replace(b"_", b"-")
    return plain in (b"forwarded", b"x-real-ip") or plain.startswith(b"x-forwarded-")
