"""Address that a request comes from: the other end of the connection, and through proxies that are trusted the
client's.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
import secrets
from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope

from core.configuration import Hosting
from core.hosting.sessions import EITHER
from core.hosting.start import IDENTITY_HEADERS, PROXY_SECRET, UNIX, is_loopback, networks

UNKNOWN = ""  # a peer that may have been talked out of us; nobody trusts it
_PROOF = "ulpscope_proxy_proof"  # where a scope's state has the SHA-256 of the secret that came with the request
_LOOPBACK = "127.0.0.1"
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{0,5})?")  # RFC 3986, without escapes
# Headers that proxies add: by these a server without a sign-in knows one.
_FORWARDED = frozenset(
    (
        "forwarded",
        "via",
        "cdn-loop",
        "client-ip",
        "true-client-ip",
        "x-client-ip",
        "x-cluster-client-ip",
        "x-original-forwarded-for",
        "x-original-host",
        "x-real-ip",
        *map(str.lower, IDENTITY_HEADERS),
    )
)
_FORWARDED_PREFIXES = ("x-forwarded-", "cf-", "fastly-", "tailscale-", "x-envoy-")


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
    named = (part.strip() for part in _forwarded_for(scope))
    return UNKNOWN if any(part != host and _address(part) == host for part in named) else host


def is_trusted(peer: str, hosting: Hosting) -> bool:
    """Return whether this peer has the address of a trusted proxy."""
    if peer == UNIX:
        return UNIX in hosting.trusted_proxies
    return _is_in(peer, networks(hosting))


def is_proxy(scope: Scope, hosting: Hosting) -> bool:
    """Return whether a request comes from a trusted proxy, so that what it says of others counts: by its address, and
    by the secret where one is set.
    """
    return _has_secret(scope, hosting) and is_trusted(peer_of(scope), hosting)


def with_proof(scope: Scope) -> Scope:
    """Scope that says by a digest which secret came with the request, if exactly one did, once its header is gone."""
    sent = [value for name, value in scope["headers"] if name.lower() == PROXY_SECRET.lower().encode()]
    proof = _sha256(sent[0]) if len(sent) == 1 else b""
    return {**scope, "state": {**scope.get("state", {}), _PROOF: proof}}


def client_of(scope: Scope, hosting: Hosting) -> str:
    """Address whose failed attempts are counted together: the peer's, or the client's that trusted proxies name.

    X-Forwarded-For is read from its end, where the nearest proxy wrote. A trusted proxy's address there is stepped
    over, once, and only where `trusted_proxies` names it by itself: others of a trusted network may be clients. The
    first that is not is the client, if it is a plain address of another machine. Whatever else stands there leaves a
    doubt (nothing, a name, an address with a port, in brackets, with a zone or blanks in it, of this machine, of a
    proxy that was passed before), and then the peer is counted: a proxy that appends writes a plain address, so
    anything else may be the client's own invention, and so may all that stands before it.

    This machine is one address, whichever of its own a program of it comes from. A peer that the header names itself
    may be it, or such a program that talked uvicorn into it: then both are counted, and the address has both.
    """
    peer = peer_of(scope)
    if peer != UNKNOWN:
        return _counted(scope, hosting, peer)
    said = _plain(scope["client"][0])  # what is no address is none that a connection has
    address = _LOOPBACK if said is None else _counted(scope, hosting, str(said))
    return address if address == _LOOPBACK else f"{address}{EITHER}{_LOOPBACK}"


def _counted(scope: Scope, hosting: Hosting, peer: str) -> str:
    own = _plain(peer.partition("%")[0])  # a link-local one has its interface there
    counted = peer if own is None else _LOOPBACK if _is_of_this_machine(own, scope) else str(own)
    if not (_has_secret(scope, hosting) and is_trusted(peer, hosting)):
        return counted
    trusted, passed = networks(hosting), {own}
    for part in reversed(_forwarded_for(scope)):
        address = _plain(part.strip(" \t"))
        if address is None or address in passed or _is_of_this_machine(address, scope):
            break
        if not _is_in(str(address), trusted):
            return str(address)
        if not any(network.num_addresses == 1 and address in network for network in trusted):
            break
        passed.add(address)
    return counted


def _has_secret(scope: Scope, hosting: Hosting) -> bool:
    proof = scope.get("state", {}).get(_PROOF, b"")
    return not hosting.proxy_secret or secrets.compare_digest(proof, _sha256(hosting.proxy_secret.encode()))


def _is_of_this_machine(address: ipaddress.IPv4Address | ipaddress.IPv6Address, scope: Scope) -> bool:
    server = scope.get("server")
    is_ours = server is not None and address == _plain(str(server[0]))
    return is_ours or address.is_loopback or address.is_unspecified


def is_local(scope: Scope) -> bool:
    """Return whether a server without a sign-in may answer: the connection came in at loopback, by no proxy as far as
    the headers and the version of HTTP say, and the request is meant for this machine by name.

    The name is looked at because a page of anybody's may have its own name point here (DNS rebinding), and would read
    all it likes.
    """
    if any(_is_forwarded(name) for name, _ in scope["headers"]) or scope.get("http_version") in ("0.9", "1.0"):
        return False
    server = scope.get("server")
    at = str(server[0]) if server else ""
    try:
        if at and not ipaddress.ip_address(at).is_loopback:
            return False
    except ValueError:
        pass  # the path of a unix socket, or the name a test gives
    hosts = Headers(scope=scope).getlist("host")
    host = hosts[0] if hosts else ""
    if len(hosts) > 1 or (host and not _HOST.fullmatch(host)):
        return False
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


def _sha256(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()


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


def _forwarded_for(scope: Scope) -> list[str]:
    return ",".join(Headers(scope=scope).getlist("x-forwarded-for")).split(",")


def _plain(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Address, an IPv4 one for its form in IPv6; None for a text that is not an address alone."""
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(found, ipaddress.IPv6Address):
        return None if found.scope_id is not None else found.ipv4_mapped or found
    return found


def _address(part: str) -> str:
    """Host before the port, if a port is there; divided as uvicorn does it."""
    if part.startswith("["):
        return part[1:].partition("]")[0]
    return part.partition(":")[0] if part.count(":") == 1 else part


def _is_forwarded(name: bytes) -> bool:
    """Return whether a header of this name is one that proxies add."""
    plain = name.decode("latin-1").lower().replace("_", "-")
    return plain in _FORWARDED or plain.startswith(_FORWARDED_PREFIXES)
