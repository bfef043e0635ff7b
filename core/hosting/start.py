"""Decide whether a server may start: open to others only where somebody is asked who they are, and only with a
configuration that holds.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from urllib.parse import SplitResult, urlsplit

from ..command_name import COMMAND
from ..configuration import Configuration, Hosting, SignIn
from ..errors import ConfigurationError
from ..text import shown
from . import passwords

UNIX = "unix"  # what a proxy on a unix socket is called in trusted_proxies
FORWARDED = "FORWARDED_ALLOW_IPS"  # uvicorn's own idea of whom to believe
_ORIGIN = re.compile(r"https?://(\*\.)?[A-Za-z0-9.-]+(:\d{1,5})?")
_HEADER = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,63}")
HOW = (
    f"a password (ULPSCOPE_SIGN_IN_EDITOR_PASSWORD), tokens (ULPSCOPE_SIGN_IN_TOKENS=1 and `{COMMAND} tokens add`),"
    " a proxy's header or OIDC, all in docs/hosting.md"
)


def check(found: Configuration, environment: Mapping[str, str], address: str | None = "127.0.0.1") -> None:
    """ConfigurationError, one sentence, where a server on `address` must not start. None or empty: it listens on every
    address.
    """
    for each in found.hosting.frame_ancestors:
        if not _ORIGIN.fullmatch(each):
            raise ConfigurationError(f"[hosting] frame_ancestors: '{shown(each)}' is no origin; expected https://HOST.")
    networks(found.hosting)
    if not found.sign_in.is_configured:
        _check_closed(found.hosting, address or "")
        return
    _check_passwords(found.sign_in)
    _check_lists(found.sign_in)
    _check_oidc(found.sign_in, found.hosting)
    _check_proxies(found.sign_in, found.hosting)
    believed = [part.strip() for part in environment.get(FORWARDED, "").split(",") if part.strip()]
    if not all(_is_loopback_address(part) for part in believed):
        raise ConfigurationError(
            f"{FORWARDED} is set; unset it, and name the proxies in [hosting] trusted_proxies instead."
        )


def is_loopback(address: str) -> bool:
    """Return whether a server on an address is reached from this machine alone: a loopback address, localhost, or a
    unix socket.
    """
    return address.startswith("unix:") or address.lower() == "localhost" or _is_loopback_address(address)


def networks(hosting: Hosting) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    """trusted_proxies as networks, `unix` left out; ConfigurationError for what is none."""
    found = []
    for each in hosting.trusted_proxies:
        if each != UNIX:
            try:
                found.append(ipaddress.ip_network(each.strip()))
            except ValueError:
                raise ConfigurationError(
                    f"[hosting] trusted_proxies: '{shown(each)}' is neither an address nor a network such as"
                    " 10.0.0.0/8."
                ) from None
    return found


def ways(sign_in: SignIn) -> list[str]:
    """Ways to sign in, in words."""
    return [
        words
        for is_set, words in (
            (sign_in.viewer_password or sign_in.editor_password, "password"),
            (sign_in.tokens, "tokens"),
            (sign_in.header, f"the proxy's header {sign_in.header}"),
            (sign_in.oidc_issuer, f"OIDC at {sign_in.oidc_issuer}"),
        )
        if is_set
    ]


def _check_closed(hosting: Hosting, address: str) -> None:
    if not is_loopback(address):
        where = address or "every address"
        raise ConfigurationError(
            f"no sign-in is configured, so the server does not listen on {where}: set {HOW}, or listen on 127.0.0.1."
        )
    if hosting.public_url:
        raise ConfigurationError(
            f"[hosting] public_url is set but no sign-in is configured, so anybody would get in: set {HOW}."
        )


def _check_passwords(sign_in: SignIn) -> None:
    for name in ("viewer_password", "editor_password"):
        wrong = passwords.complaint(getattr(sign_in, name))
        if wrong:
            raise ConfigurationError(f"[sign_in] {name} {wrong}.")
    if sign_in.viewer_password and sign_in.viewer_password == sign_in.editor_password:
        raise ConfigurationError(
            "[sign_in] viewer_password and editor_password are the same; one password cannot give two roles."
        )
    if not (sign_in.session_hours and sign_in.attempts and sign_in.attempt_minutes):
        raise ConfigurationError("[sign_in] session_hours, attempts and attempt_minutes must be more than 0.")


def _check_lists(sign_in: SignIn) -> None:
    way = "header" if sign_in.header else "oidc_issuer" if sign_in.oidc_issuer else ""
    if way and not (sign_in.viewers or sign_in.editors):
        raise ConfigurationError(
            f'[sign_in] {way} is set, but viewers and editors are empty, so nobody would get in; name them, or "*".'
        )


def _check_oidc(sign_in: SignIn, hosting: Hosting) -> None:
    if not sign_in.oidc_issuer:
        return
    for name in ("oidc_client_id", "oidc_client_secret"):
        if not getattr(sign_in, name):
            raise ConfigurationError(f"[sign_in] oidc_issuer is set, but {name} is not; the provider gives both.")
    if not hosting.public_url:
        raise ConfigurationError(
            "[sign_in] oidc_issuer needs [hosting] public_url, to which the provider sends people back."
        )
    for name, url in (("[sign_in] oidc_issuer", sign_in.oidc_issuer), ("[hosting] public_url", hosting.public_url)):
        parts = _parts(name, url)
        if not (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))):
            raise ConfigurationError(f"{name} is '{shown(url, 120)}'; OIDC needs an address that begins with https://.")


def _parts(name: str, url: str) -> SplitResult:
    try:
        found = urlsplit(url)
        if found.port != 0 and url.isprintable():
            return found
    except ValueError:
        pass
    raise ConfigurationError(f"{name} is '{shown(url, 120)}', which is no address.")


def _check_proxies(sign_in: SignIn, hosting: Hosting) -> None:
    parts = _parts("[hosting] public_url", hosting.public_url)
    if hosting.public_url and not (
        parts.scheme in ("http", "https") and parts.hostname and parts.path in ("", "/") and not parts.query
    ):
        raise ConfigurationError(
            f"[hosting] public_url is '{shown(hosting.public_url, 120)}'; expected https://HOST or https://HOST:PORT."
        )
    if sign_in.header and not _HEADER.fullmatch(sign_in.header):
        raise ConfigurationError(
            f"[sign_in] header is '{shown(sign_in.header)}'; expected the name of a header, X-Forwarded-User."
        )
    if sign_in.header and not hosting.trusted_proxies:
        raise ConfigurationError(
            "[sign_in] header is set, but [hosting] trusted_proxies is empty; only a proxy that is named there is"
            " believed."
        )


def _is_loopback_address(text: str) -> bool:
    try:
        return ipaddress.ip_address(text.strip("[]")).is_loopback
    except ValueError:
        return False
