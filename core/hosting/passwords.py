"""A shared password in the configuration: in the clear, or hashed, so that the configuration does not give it away.

Hashes are Argon2id's (RFC 9106): `$argon2id$v=19$m=M,t=T,p=P$SALT$HASH`. Those of before, `scrypt$N$R$P$SALT$HASH`, go
on working.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from typing import TYPE_CHECKING

from ..command_name import COMMAND
from ..errors import ExtraError

if TYPE_CHECKING:
    import argon2

LONGEST = 1024  # bytes that are looked at; hashing is slow on purpose, and nobody types that much
SHORTEST = 8  # characters of one in the clear; of a hash nobody can tell
_ARGON2 = re.compile(
    r"\$argon2id\$v=19\$m=[0-9]{1,7},t=[0-9]{1,2},p=[0-9]{1,2}\$[A-Za-z0-9+/]{11,86}\$[A-Za-z0-9+/]{43}"
)
_SCRYPT = re.compile(r"scrypt\$(\d{1,8})\$(\d{1,2})\$(\d{1,2})\$([A-Za-z0-9+/=]{16,128})\$([A-Za-z0-9+/=]{44})")
_BEGINNINGS = ("$argon2", "scrypt$")
_MOST_MEMORY = 256 << 20  # bytes that a hash in the configuration may ask for


def hashed(password: str) -> str:
    """The form for the configuration, with a salt of its own."""
    return _hasher().hash(password)


def _hasher() -> argon2.PasswordHasher:
    """RFC 9106's second choice (64 MB, three passes), on one core: 0.2 s a try."""
    try:
        import argon2
    except ModuleNotFoundError as missing:
        raise ExtraError("hashing a password takes argon2-cffi: pip install 'ulpscope[hosting]'.") from missing
    return argon2.PasswordHasher(parallelism=1)


def complaint(stored: str) -> str | None:
    """Reason why a configured password cannot be used, not quoting it; None where it can, or where there is none."""
    if not stored:
        return None
    for beginning in _BEGINNINGS:
        if stored.startswith(beginning) and not (_is_argon2(stored) or _scrypt_parts(stored)):
            return f"begins with '{beginning}' but is not what `{COMMAND} hash-password` prints"
    if len(stored) < SHORTEST:
        return f"has {len(stored)} characters; one in the clear has at least {SHORTEST}"
    return None


def is_right(stored: str, given: str) -> bool:
    """Return whether `given` is the password; takes as long for a wrong one as for a right one. No password is never
    right.
    """
    if len(given.encode()) > LONGEST:
        return False
    if _is_argon2(stored):
        from argon2.exceptions import VerificationError

        try:
            return _hasher().verify(stored, given)
        except VerificationError:  # a wrong one
            return False
    parts = _scrypt_parts(stored)
    if parts is not None:
        n, r, p, salt, wanted = parts
        found = hashlib.scrypt(given.encode(), salt=salt, n=n, r=r, p=p, maxmem=2 * _MOST_MEMORY, dklen=32)
        return hmac.compare_digest(found, wanted)
    is_same = hmac.compare_digest(hashlib.sha256(stored.encode()).digest(), hashlib.sha256(given.encode()).digest())
    return is_same and bool(stored) and not stored.startswith(_BEGINNINGS)


def _is_argon2(stored: str) -> bool:
    """Return whether a stored password is a hash of ours that can be tried in the memory there is."""
    if not _ARGON2.fullmatch(stored):
        return False
    memory, passes, lanes = (int(number) for number in re.findall(r"[mtp]=(\d+)", stored.split("$")[3]))
    return passes > 0 and 0 < 8 * lanes <= memory <= _MOST_MEMORY >> 10


def _scrypt_parts(stored: str) -> tuple[int, int, int, bytes, bytes] | None:
    found = _SCRYPT.fullmatch(stored)
    if found is None:
        return None
    n, r, p = (int(found[place]) for place in (1, 2, 3))
    if not (n >= 2 and n & (n - 1) == 0 and r and p and 128 * n * r * p <= _MOST_MEMORY):
        return None
    try:
        return n, r, p, base64.b64decode(found[4], validate=True), base64.b64decode(found[5], validate=True)
    except ValueError:
        return None
