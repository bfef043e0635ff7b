"""When a server must not start: open to others without a sign-in, or with a sign-in that cannot
work.
"""

import ipaddress
from urllib.parse import urlsplit

from ..configuration import Configuration, SignIn
from ..errors import ConfigurationError
from ..text import clean
from . import credentials

HOW = (
    "set [sign_in] password (ULPSCOPE_SIGN_IN_PASSWORD), tokens, a proxy's header or OIDC as"
    " docs/guides/hosting.md says, or listen on 127.0.0.1"
)


def check(config: Configuration, address: str | None = "127.0.0.1") -> None:
    """ConfigurationError if a server on `address` must not start.

    None or empty: it listens on every address.
    """
    sign_in, hosting = config.sign_in, config.hosting
    if not sign_in.is_configured:
        if not is_loopback(address or ""):
            raise ConfigurationError(
                "No sign-in is configured, so the server does not listen on"
                f" {address or 'every address'}: {HOW}.",
            )
        # an address for others means a proxy in front, which loopback does not keep out
        if hosting.public_url:
            raise ConfigurationError(
                f"[hosting] public_url is set, but no sign-in is configured: {HOW}.",
            )
        return
    password_problem = credentials.password_problem(sign_in.password) if sign_in.password else None
    url, issuer = urlsplit(hosting.public_url), urlsplit(sign_in.oidc_issuer)
    is_private = issuer.scheme == "https" or is_loopback(issuer.hostname or "")
    names_people = bool(sign_in.header or sign_in.oidc_issuer)
    problems = {
        f"[sign_in] password {password_problem}": password_problem,
        "[sign_in] session_hours is 0; expected more": not sign_in.session_hours,
        f"[hosting] public_url is '{clean(hosting.public_url, 120)}'; expected https://HOST or"
        " https://HOST:PORT": (
            hosting.public_url
            and not (
                url.scheme in ("http", "https")
                and url.hostname
                and url.path in ("", "/")
                and not url.query
            )
        ),
        '[sign_in] members is empty, so no member could sign in; name them, or "*"': (
            names_people and not sign_in.members
        ),
        "[sign_in] header needs [hosting] proxy_secret, at least 16 characters that the proxy"
        " sends as X-ULPscope-Proxy-Secret": (sign_in.header and len(hosting.proxy_secret) < 16),
        "[sign_in] oidc_issuer needs oidc_client_id, oidc_client_secret and [hosting] public_url": (
            sign_in.oidc_issuer
            and not (sign_in.oidc_client_id and sign_in.oidc_client_secret and hosting.public_url)
        ),
        "[sign_in] oidc_issuer must begin with https://": (sign_in.oidc_issuer and not is_private),
    }
    for problem, applies in problems.items():
        if applies:
            raise ConfigurationError(f"{problem}.")


def is_loopback(address: str) -> bool:
    """Return whether an address is reached from this machine alone."""
    try:
        return (
            address.lower() == "localhost" or ipaddress.ip_address(address.strip("[]")).is_loopback
        )
    except ValueError:
        return False


def ways(sign_in: SignIn) -> str:
    """Return the configured ways to sign in, in words."""
    settings = {
        "password": sign_in.password,
        "tokens": sign_in.tokens,
        f"the proxy's header {sign_in.header}": sign_in.header,
        f"OIDC at {sign_in.oidc_issuer}": sign_in.oidc_issuer,
    }
    configured = [words for words, is_set in settings.items() if is_set]
    return ", ".join(configured) or "none, this machine only"
