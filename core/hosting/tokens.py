"""Tokens of people and programs, `.hosting/tokens.json`: name, role, times, and the SHA-256 of 256 random bits; never
the token itself.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ..disk import locked
from ..errors import ConfigurationError, UsageError
from ..text import shown
from . import private

FILE = "tokens.json"
PREFIX = "ulp_"  # so that one that was left somewhere is recognised
ROLES = ("viewer", "editor")
_TOKEN = re.compile(r"ulp_[A-Za-z0-9_-]{43}")
_NAME = re.compile(r"[\w.@+-]+( [\w.@+-]+)*")
_LONGEST_NAME = 64
_MOST = 10_000


@dataclass(frozen=True)
class Token:
    """Stored record of a token. Times are UTC; `expires` is None for one that does not."""

    name: str
    role: str
    sha256: str
    created: datetime
    expires: datetime | None

    def is_expired(self, now: datetime) -> bool:
        return self.expires is not None and now >= self.expires


def add(store: Path, name: str, role: str, days: float) -> tuple[str, Token]:
    """Make a token; its text is returned this once and kept nowhere. days: how long it is valid, 0 for ever."""
    if not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
        raise UsageError(
            f"'{shown(name)}' cannot name a token; expected up to {_LONGEST_NAME} letters, digits, '.', '@', '+', '-',"
            " '_' and blanks."
        )
    if role not in ROLES:
        raise UsageError(f"'{shown(role)}' is no role; there are {' and '.join(ROLES)}.")
    if not 0 <= days <= 36_500:
        raise UsageError(f"a token cannot be valid for {days:g} days; expected 0 (for ever) to 36500.")
    text = PREFIX + secrets.token_urlsafe(32)
    now = datetime.now(UTC).replace(tzinfo=None, microsecond=0)
    made = Token(name, role, _sha256(text), now, now + timedelta(days=days) if days else None)
    folder = private.folder_of(store)
    with locked(folder / "lock"):
        known = listed(store)
        if any(token.name.casefold() == name.casefold() for token in known):
            raise UsageError(f"there is a token called '{name}' already; revoke it, or give another name.")
        if len(known) >= _MOST:
            raise UsageError(f"there are {len(known):,} tokens; revoke some.")
        _replace(folder, [*known, made])
    return text, made


def revoke(store: Path, name: str) -> Token:
    """Remove a token; whoever signed in with it is out within seconds."""
    folder = private.folder_of(store)
    with locked(folder / "lock"):
        known = listed(store)
        gone = next((token for token in known if token.name == name), None)
        if gone is None:
            raise UsageError(f"there is no token '{shown(name)}'; `tokens list` shows those there are.")
        _replace(folder, [token for token in known if token is not gone])
    return gone


def listed(store: Path) -> list[Token]:
    """All tokens, expired ones too; ConfigurationError where the file cannot be understood."""
    path = store / private.FOLDER / FILE
    try:
        body = private.read(path)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read ({error.strerror}), so no token is valid.") from None
    if body is None:
        return []
    try:
        return [_token(said) for said in json.loads(body)]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ConfigurationError(
            f"{path}: not a list of tokens ({type(error).__name__}), so no token is valid; put a copy back, or"
            " remove it."
        ) from None


def digest_of(text: str) -> str | None:
    """SHA-256 by which a token's text is kept; None for what cannot be one."""
    return _sha256(text) if _TOKEN.fullmatch(text) else None


class Tokens:
    """The tokens of a store as they are now: the file is read again when it has changed."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._path = store / private.FOLDER / FILE
        self._stamp: tuple[int, ...] | None = None
        self._by_digest: dict[str, Token] = {}

    def of_digest(self, digest: str) -> Token | None:
        """The valid token of that SHA-256. Looked up by the digest of a guess, so the time it takes tells nothing of
        any token.
        """
        self._look()
        token = self._by_digest.get(digest)
        return None if token is None or token.is_expired(datetime.now(UTC).replace(tzinfo=None)) else token

    def _look(self) -> None:
        try:
            status = self._path.lstat()
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
        except OSError:
            self._stamp, self._by_digest = None, {}
            return
        if stamp != self._stamp:
            self._by_digest = {}
            try:
                self._by_digest = {token.sha256: token for token in listed(self._store)}
            except ConfigurationError:
                return  # looked at again the next time; until then none is valid
            self._stamp = stamp


def _replace(folder: Path, tokens: list[Token]) -> None:
    rows = [
        asdict(token) | {"created": token.created.isoformat(), "expires": token.expires and token.expires.isoformat()}
        for token in tokens
    ]
    try:
        private.write(folder / FILE, json.dumps(rows, indent=1).encode() + b"\n")
    except OSError as error:
        raise ConfigurationError(
            f"{folder / FILE}: cannot be written ({error.strerror}); the tokens are as they were."
        ) from None


def _token(said: dict) -> Token:
    name, role, sha256, expires = said["name"], said["role"], said["sha256"], said["expires"]
    if not isinstance(name, str) or role not in ROLES or not re.fullmatch(r"[0-9a-f]{64}", sha256):
        raise ValueError("not a token")
    return Token(
        name,
        role,
        sha256,
        datetime.fromisoformat(said["created"]),
        datetime.fromisoformat(expires) if expires else None,
    )


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
