"""Addresses that a probe begun on a hosted dashboard may ask: never the server's own network unless the
configuration names it.
"""

from __future__ import annotations

import ipaddress
import socket

import httpx2 as httpx

from ..configuration import configuration
from ..text import shown
from .client import ProbeError
from .plan import check_allowed, is_named


def transport_for(url: str) -> httpx.BaseTransport | None:
    """The transport by which a probe from a hosted dashboard may ask `url`: None, the plain one, where the
    configuration names the address. UsageError where it allows none of the kind.
    """
    allowed = configuration().probing.servers
    check_allowed(url, allowed)
    return None if is_named(url, allowed) else PublicOnly()


class PublicOnly(httpx.BaseTransport):
    """A transport that looks a name up once, refuses it unless all of its addresses are public, and connects to the
    address that it looked at: a name that answers otherwise the second time leads nowhere else.
    """

    def __init__(self) -> None:
        self._plain = httpx.HTTPTransport(trust_env=False)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        host = request.url.host
        address = public_address(host, request.url.port or (443 if request.url.scheme == "https" else 80))
        request.extensions = {**request.extensions, "sni_hostname": host}
        request.headers["Host"] = request.url.netloc.decode("ascii")
        request.url = request.url.copy_with(host=address)
        return self._plain.handle_request(request)

    def close(self) -> None:
        self._plain.close()


def public_address(host: str, port: int) -> str:
    """The first address of a name. ProbeError where any of its addresses is none of the public internet."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ProbeError(f"{shown(host, 200)} cannot be looked up ({shown(error, 100)}).") from None
    addresses = [str(entry[4][0]) for entry in found]
    for text in addresses:
        if not is_public(text):
            raise ProbeError(
                f"{shown(host, 200)} is an address of a private network or of this machine; whoever runs this server"
                " names such addresses in [probing] servers."
            )
    return addresses[0]


def is_public(text: str) -> bool:
    """Return whether an address belongs to the public internet: no loopback, private, link-local, shared or reserved
    one, nor one of IPv4 in the clothes of IPv6.
    """
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
        if inner is not None:
            return is_public(str(inner))
        if address in ipaddress.ip_network("64:ff9b::/96"):  # NAT64
            return is_public(str(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)))
    return address.is_global and not address.is_multicast
