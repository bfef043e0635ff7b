"""A shared password in the configuration: in the clear, or as `scrypt$N$R$P$SALT$HASH`, which does not give it away."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets

from ..command_name import COMMAND

LONGEST = 1024  # bytes that are looked at; hashing is slow on purpose, and nobody types that much
SHORTEST = 8  # characters of one in the clear; of a hash nobody can tell
_N, _R, _P = 1 << 15, 8, 1  # 32 MB and 0.1 s a try, the interactive parameters of RFC 7914's authors, doubled
_FORM = re.compile(r"scrypt\$(\d{1,8})\$(\d{1,2})\$(\d{1,2})\$([A-Za-z0-9+/=]{16,128})\$([A-Za-z0-9+/=]{44})")
_MOST_MEMORY = 256 << 20  # bytes that a hash in the configuration may ask for


def hashed(password: str) -> str:
    """The form for the configuration, with a salt of its own."""
    salt = secrets.token_bytes(16)
    return "$".join(("scrypt", str(_N), str(_R), str(_P), _text(salt), _text(_scrypt(password, salt, _N, _R, _P))))


def complaint(stored: str) -> str | None:
    """Why a configured password cannot be used, without quoting it; None where it can, or where there is none."""
    if not stored:
        return None
    if stored.startswith("scrypt$"):
        return None if _parts(stored) else f"begins with 'scrypt$' but is not what `{COMMAND} hash-password` prints"
    if len(stored) < SHORTEST:
        return f"has {len(stored)} characters; one in the clear has at least {SHORTEST}"
    return None


def is_right(stored: str, given: str) -> bool:
    """Whether `given` is the password; as long for a wrong one as for a right one. No password is never right."""
    if len(given.encode()) > LONGEST:
        return False
    parts = _parts(stored)
    if parts is None:
        is_same = hmac.compare_digest(hashlib.sha256(stored.encode()).digest(), hashlib.sha256(given.encode()).digest())
        return is_same and bool(stored) and not stored.startswith("scrypt$")
    n, r, p, salt, wanted = parts
    return hmac.compare_digest(_scrypt(given, salt, n, r, p), wanted)


def _parts(stored: str) -> tuple[int, int, int, bytes, bytes] | None:
    found = _FORM.fullmatch(stored)
    if found is None:
        return None
    n, r, p = (int(found[place]) for place in (1, 2, 3))
    if not (n >= 2 and n & (n - 1) == 0 and r and p and 128 * n * r * p <= _MOST_MEMORY):
        return None
    try:
        return n, r, p, base64.b64decode(found[4], validate=True), base64.b64decode(found[5], validate=True)
    except ValueError:
        return None


def _scrypt(password: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, n=n, r=r, p=p, maxmem=2 * _MOST_MEMORY, dklen=32)


def _text(body: bytes) -> str:
    return base64.b64encode(body).decode()
