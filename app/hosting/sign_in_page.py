"""The pages of the sign-in: plain HTML with its own style, no script, nothing loaded."""

from __future__ import annotations

import base64
import hashlib
from html import escape
from urllib.parse import urlencode

from starlette.responses import HTMLResponse

STYLE = """
:root { color-scheme: light dark; --back: #F4F5F7; --card: #FFFFFF; --text: #0E1621; --faint: #4A5563; --line: #848D99;
  --main: #0072B2;
  --on-main: #FFFFFF; --wrong: #A3200D; --wrong-back: #FDECEA; }
@media (prefers-color-scheme: dark) { :root { --back: #11151B; --card: #1A2029; --text: #E6E9EE; --faint: #A9B2BF;
  --line: #758192;
  --main: #6CB8EC; --on-main: #0B1118; --wrong: #FFB4A8; --wrong-back: #3A1A16; } }
* { box-sizing: border-box; }
body { margin: 0; min-height: 100vh; display: flex; align-items: center; justify-content: center; padding: 1rem;
  background: var(--back);
  color: var(--text); font: 16px/1.5 "Source Sans 3", "Source Sans Pro", system-ui, sans-serif; }
main { width: 100%; max-width: 24rem; background: var(--card); border: 1px solid var(--line); border-radius: 0.6rem;
  padding: 1.75rem; }
h1 { margin: 0 0 0.25rem; font-size: 1.5rem; } p { margin: 0 0 1rem; color: var(--faint); }
label { display: block; margin-bottom: 0.3rem; font-weight: 600; }
input { width: 100%; padding: 0.55rem 0.7rem; font: inherit; color: inherit; background: var(--back);
  border: 1px solid var(--line);
  border-radius: 0.4rem; }
button, .button { display: block; width: 100%; margin-top: 1rem; padding: 0.6rem; font: inherit; font-weight: 600;
  text-align: center;
  text-decoration: none; color: var(--on-main); background: var(--main); border: 1px solid var(--main);
    border-radius: 0.4rem; cursor: pointer; }
input:focus-visible, button:focus-visible, a:focus-visible { outline: 3px solid var(--main); outline-offset: 2px; }
.or { display: block; text-align: center; margin: 1.1rem 0 0; color: var(--faint); }
.wrong { margin: 0 0 1rem; padding: 0.6rem 0.8rem; color: var(--wrong); background: var(--wrong-back);
  border-radius: 0.4rem; }
a { color: var(--main); }
"""
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
