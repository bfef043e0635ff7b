"""Identity of who is asking, and whether they may change anything: for routes by their scope, for pages by the headers
of their websocket.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import streamlit as st
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from app.hosting.live_settings import now_in_force
from core.errors import AccessError, ConfigurationError

STATE = "ulpscope_identity"  # where the gate puts the identity in a scope's state
# and the header in which a page's script finds it; the gate removes it from what comes from outside
HEADER = "x-ulpscope-identity"
SESSION_HEADER = "x-ulpscope-session"  # and the digest of what the cookie says, as which a script may be resumed
Role = Literal["viewer", "editor"]
NO_EDITOR = "You are signed in as a viewer, who sees and downloads; this needs an editor."


@dataclass(frozen=True)
class Identity:
    """Somebody who got in. name: as they are known (an address, a token's name, a role); way: local, password, token,
    header or oidc.
    """

    name: str
    role: Role
    way: str

    @property
    def may_edit(self) -> bool:
        return self.role == "editor"

    @property
    def is_local(self) -> bool:
        """Return whether nobody was asked: the server is reached from its own machine alone."""
        return self.way == "local"


LOCAL = Identity("local", "editor", "local")
NOBODY = Identity(
    "nobody", "viewer", "none"
)  # a sign-in is configured and the gate said nothing: no more than a viewer


def identity_of(scope: Mapping[str, Any]) -> Identity:
    """Identity of who sent a request, as the gate found it. LOCAL where there is no gate and no sign-in."""
    found = scope.get("state", {}).get(STATE)
    return found if isinstance(found, Identity) else _without_gate()


def current() -> Identity:
    """Identity of who looks at the page that this script draws."""
    said = st.context.headers.get(HEADER)
    found = None if said is None else from_header(said)
    return _without_gate() if found is None else found


def require_editor(request: Request) -> Response | None:
    """Refusal by a route that changes something, for who may not change anything; else None."""
    if identity_of(request.scope).may_edit:
        return None
    if request.url.path.startswith("/api/"):
        return JSONResponse({"error": NO_EDITOR}, status_code=403)
    return PlainTextResponse(NO_EDITOR, status_code=403)


def editor() -> Identity:
    """Identity of who looks at a page that changes something; AccessError where that is a viewer."""
    found = current()
    if not found.may_edit:
        raise AccessError(NO_EDITOR)
    return found


def as_header(identity: Identity) -> bytes:
    """Header value of an identity, in ASCII, whatever the name is made of."""
    said = json.dumps({"name": identity.name, "role": identity.role, "way": identity.way})
    return base64.urlsafe_b64encode(said.encode())


def from_header(text: str) -> Identity | None:
    """Identity of a header value that `as_header` made; None for anything else."""
    try:
        said = json.loads(base64.urlsafe_b64decode(text.encode("ascii")))
        name, role, way = said["name"], said["role"], said["way"]
    except (ValueError, TypeError, KeyError):
        return None
    is_one = isinstance(name, str) and isinstance(way, str) and role in get_args(Role)
    return Identity(name, role, way) if is_one else None


def _without_gate() -> Identity:
    try:
        return NOBODY if now_in_force().sign_in.is_configured else LOCAL
    except ConfigurationError:
        return NOBODY
