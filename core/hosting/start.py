"""Decide whether a server may start: open to others only where somebody is asked who they are, and only with a
configuration that holds.
"""

from __future__ import annotations

import ipaddress
import re
import secrets
from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import SplitResult, urlsplit

from ..command_name import COMMAND
from ..configuration import Configuration, Hosting, SignIn, readable_secrets, variable_of
from ..errors import ConfigurationError
from ..text import shown
from . import passwords, socket_owner

UNIX = "unix"  # what a proxy on a unix socket is called in trusted_proxies
FORWARDED = "FORWARDED_ALLOW_IPS"  # uvicorn's own idea of whom to believe
_ORIGIN = re.compile(r"https?://(\*\.)?[A-Za-z0-9.-]+(:\d{1,5})?")
_HEADER = re.compile(r"(?!x-ulpscope-)[A-Za-z][A-Za-z0-9-]{0,63}", re.IGNORECASE)  # ours are the gate's own
PROXY_SECRET = "X-ULPscope-Proxy-Secret"  # the header in which a proxy sends [hosting] proxy_secret
_PROXY_SECRET = re.compile(r"[A-Za-z0-9._~+/=-]{16,256}")  # means the same within any proxy's quotes
# Headers in which proxies name who is signed in. deploy/nginx.conf passes none of them on from a client.
IDENTITY_HEADERS = (
    "X-Forwarded-User",
    "X-Forwarded-Email",
    "X-Forwarded-Preferred-Username",
    "X-Forwarded-Groups",
    "X-Forwarded-Access-Token",
    "X-Remote-User",
    "X-Remote-Email",
    "Remote-User",
    "Remote-Name",
    "Remote-Email",
    "Remote-Groups",
    "X-User",
    "X-User-Email",
    "X-Authenticated-User",
    "X-Auth-User",
    "X-Auth-Email",
    "X-Auth-Request-User",
    "X-Auth-Request-Email",
    "X-Auth-Request-Preferred-Username",
    "X-WEBAUTH-USER",
    "X-WEBAUTH-EMAIL",
    "X-Authentik-Username",
    "X-Authentik-Email",
    "X-Pomerium-Claim-Email",
    "X-Pomerium-Jwt-Assertion",
    "X-Goog-Authenticated-User-Email",
    "X-Goog-Authenticated-User-Id",
    "X-MS-Client-Principal",
    "X-MS-Client-Principal-Id",
    "X-MS-Client-Principal-Name",
    "X-Amzn-Oidc-Identity",
    "X-Amzn-Oidc-Data",
    "Cf-Access-Authenticated-User-Email",
    "Cf-Access-Jwt-Assertion",
    "Tailscale-User-Login",
    "Tailscale-User-Name",
)
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


def warnings(found: Configuration, environment: Mapping[str, str]) -> list[str]:
    """Warnings to whoever starts the server, one sentence each: what is no reason to refuse the start."""
    said = []
    readable = readable_secrets(found, environment)
    if readable:
        said.append(f"every user of this machine can read {', '.join(readable)} in {found.source}: chmod 600 it.")
    if not found.sign_in.is_configured and not socket_owner.can_be_asked():
        said.append(
            "the kernel does not say here whose connection comes in, so every user of this machine is let in, and what"
            " any proxy passes on that does not show: set a sign-in or [hosting] local_token (docs/hosting.md)."
        )
    return said


def proxy_lines(header: str, secret: str) -> tuple[str, str]:
    """Lines of nginx.conf by which a proxy proves that it is one, and names the user whatever the client says."""
    return f'proxy_set_header {PROXY_SECRET} "{secret}";', f"proxy_set_header {header} $remote_user;"


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
    if not (sign_in.session_hours and sign_in.attempts and sign_in.attempt_minutes and sign_in.sign_ins):
        raise ConfigurationError("[sign_in] session_hours, attempts, attempt_minutes and sign_ins must be more than 0.")


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
    if hosting.proxy_secret and not _PROXY_SECRET.fullmatch(hosting.proxy_secret):
        raise ConfigurationError(
            f"[hosting] proxy_secret has {len(hosting.proxy_secret)} characters; expected 16 to 256, of A to Z, a to z,"
            " 0 to 9 and . _ ~ + / = -."
        )
    if sign_in.header and not hosting.trusted_proxies:
        raise ConfigurationError(
            "[sign_in] header is set, but [hosting] trusted_proxies is empty; only a proxy that is named there is"
            " believed."
        )
    if sign_in.header and not hosting.proxy_secret:
        offered = _offered_secret()
        raise ConfigurationError(
            f"[sign_in] header is set, but [hosting] proxy_secret is not, so whatever program reaches this port from"
            f' the proxy\'s address could say who it is; set proxy_secret = "{offered}" (or'
            f" {variable_of('hosting', 'proxy_secret')}), and in nginx:"
            f" {' '.join(proxy_lines(sign_in.header, offered))}"
        )


@lru_cache(maxsize=1)
def _offered_secret() -> str:
    """A secret that nobody has used: the same one whenever the sentence is said, for it is logged once."""
    return secrets.token_urlsafe(24)


def _is_loopback_address(text: str) -> bool:
    try:
        return ipaddress.ip_address(text.strip("[]")).is_loopback
    except ValueError:
        return False
