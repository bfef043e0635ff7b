"""Who a request is from: a session's cookie, a token, or the header of a trusted proxy; whether it
may change anything.

A session is tied to what it began with (the password, a token, a name in the list of members). If
that changes, the session ends at its next request.
"""

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import streamlit as st
from starlette.requests import HTTPConnection, Request

from core.configuration import Configuration, configuration
from core.errors import AccessError
from core.hosting import credentials, tokens

LOCAL = "local"  # the member of a server without a sign-in
PROXY_SECRET = "x-ulpscope-proxy-secret"
# in which the gate passes the name on; removed from what comes from outside
HEADER = "x-ulpscope-member"
READ_ONLY = "This server is read-only."
# Streamlit's own links open another tab
_SIGN_OUT = '<a href="/sign-out" target="_self">Sign out</a>'


@dataclass(frozen=True)
class Access:
    """The configuration of a server as it started, and the store that has its tokens."""

    config: Configuration
    store: Path
    key: str  # signs cookies

    def member_of(self, connection: HTTPConnection) -> str | None:
        """Return the name of the member that a request or websocket is from, None if there is
        none.
        """
        sign_in, headers = self.config.sign_in, connection.headers
        if not sign_in.is_configured:
            return LOCAL
        scheme, _, token = headers.get("authorization", "").partition(" ")
        # others are a proxy's own
        is_ours = scheme.lower() == "bearer" and token.startswith(tokens.PREFIX)
        if sign_in.tokens and is_ours:
            return tokens.name_of(self.store, token.strip())
        if sign_in.header and _is_same(
            headers.get(PROXY_SECRET, ""),
            self.config.hosting.proxy_secret,
        ):
            # Of two headers a proxy may have checked the other one.
            names = headers.getlist(sign_in.header)
            if len(names) == 1 and credentials.is_member(names[0], sign_in.members):
                return names[0].strip()
        # Signed, not encrypted: it holds nothing secret.
        session = connection.session
        if not {"member", "way", "proof"} <= set(session):
            return None
        proof = self._proof(session["way"], session["member"])
        is_valid = proof is not None and _is_same(session["proof"], proof)
        return session["member"] if is_valid else None

    def member_with(self, secret: str) -> tuple[str, str] | None:
        """Return (member, way) for a typed password or token, None for a wrong one."""
        sign_in = self.config.sign_in
        if sign_in.tokens and secret.startswith(tokens.PREFIX):
            name = tokens.name_of(self.store, secret.strip())
            return None if name is None else (name, "token")
        is_right = bool(sign_in.password) and credentials.is_password(sign_in.password, secret)
        return ("member", "password") if is_right else None

    def begin(self, connection: HTTPConnection, member: str, way: str) -> None:
        """Begin the session of a member."""
        connection.session.clear()
        connection.session.update(member=member, way=way, proof=self._proof(way, member))

    def _proof(self, way: str, member: str) -> str | None:
        """Return a keyed digest of a session's credentials, None if they are no longer valid."""
        sign_in = self.config.sign_in
        basis: str | None = None
        if way == "password":
            basis = sign_in.password
        elif way == "token" and sign_in.tokens:
            basis = tokens.digests(self.store).get(member)
        elif way == "oidc" and sign_in.oidc_issuer:
            is_member = credentials.is_member(member, sign_in.members)
            basis = f"{sign_in.oidc_issuer} {sign_in.oidc_client_id}" if is_member else None
        if not basis:
            return None
        text = f"{way}\n{member}\n{basis}"
        return hmac.new(self.key.encode(), text.encode(), hashlib.sha256).hexdigest()


def _is_same(text: str, secret: str) -> bool:
    return secrets.compare_digest(text.encode(), secret.encode())


def member_of(request: Request) -> str:
    """Return the name of the member that a request is from."""
    return unquote(request.headers.get(HEADER, LOCAL))


def current_member() -> str:
    """Return the name of the member who looks at the page that this script draws."""
    return unquote(st.context.headers.get(HEADER, LOCAL))


def may_change() -> bool:
    """Return whether to draw controls that change something."""
    return not configuration().hosting.read_only


def changing_member() -> str:
    """Return the name of the member who changes something on a page; AccessError on a read-only
    server.
    """
    if not may_change():
        raise AccessError(READ_ONLY)
    return current_member()


def sidebar() -> None:
    """Draw name and sign-out at the foot of the sidebar; nothing without a sign-in."""
    if not configuration().sign_in.is_configured:
        return
    with st.sidebar, st.container(key="signed_in"):
        st.divider()
        st.text(f"Signed in: {current_member()}")
        # behind a proxy, which would sign the member in again at once, there is no sign-out
        if not configuration().sign_in.header:
            st.markdown(_SIGN_OUT, unsafe_allow_html=True)
