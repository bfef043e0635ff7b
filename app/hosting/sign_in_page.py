"""The pages of the sign-in: plain HTML with its own style, no script, nothing loaded."""

from __future__ import annotations

import base64
import hashlib
from html import escape
from pathlib import Path
from urllib.parse import urlencode

from starlette.responses import HTMLResponse

STYLE = (Path(__file__).parent / "sign_in.css").read_text(encoding="utf-8")
_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
_POLICY = (
    f"default-src 'none'; style-src 'sha256-{_HASH}'; img-src data:; form-action 'self'; base-uri 'none';"
    " frame-ancestors 'none'"
)


def sign_in(secret: str, provider: str, target: str, problem: str, status: int) -> HTMLResponse:
    """Return the sign-in page. secret: the field's label, '' for no field; provider: the host of OIDC, '' for none."""
    parts = ["<h1>ULPscope</h1>"]
    if problem:
        parts.append(f'<p class="wrong" role="alert" id="wrong">{escape(problem)}</p>')
    else:
        parts.append("<p>Sign in to continue.</p>")
    if secret:
        about = ' aria-describedby="wrong" aria-invalid="true"' if problem else ""
        parts.append(
            f'<form method="post" action="/sign-in"><input type="hidden" name="next" value="{escape(target)}"><label'
            f' for="secret">{escape(secret)}</label><input id="secret" name="secret" type="password" required autofocus'
            f' autocomplete="current-password" maxlength="1024"{about}><button type="submit">Sign in</button></form>'
        )
    if provider:
        parts.append('<span class="or">or</span>' if secret else "")
        address = f"/sign-in/oidc?{urlencode({'next': target})}"
        parts.append(f'<a class="button" href="{escape(address)}">Sign in with {escape(provider)}</a>')
    return _page("Sign in", "".join(parts), status)


def sign_out(member: str) -> HTMLResponse:
    """Return the page that asks whether to sign out."""
    body = (
        f'<h1>Sign out?</h1><p>You are signed in as {escape(member)}.</p><form method="post" action="/sign-out"><button'
        ' type="submit">Sign out</button></form><p></p><a href="/">Back to ULPscope</a>'
    )
    return _page("Sign out", body, 200)


def sentence(title: str, text: str, status: int = 200) -> HTMLResponse:
    """Return a page of one sentence with a link to the sign-in."""
    body = f'<h1>{escape(title)}</h1><p>{escape(text)}</p><a href="/sign-in">Sign in</a>'
    return _page(title, body, status)


def _page(title: str, body: str, status: int) -> HTMLResponse:
    return HTMLResponse(
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,'
        f' initial-scale=1"><meta name="robots" content="noindex"><title>{escape(title)} · ULPscope</title><link'
        f' rel="icon" href="data:,"><style>{STYLE}</style></head><body><main>{body}</main></body></html>',
        status_code=status,
        headers={"Content-Security-Policy": _POLICY, "Cache-Control": "no-store"},
    )
