"""`.hosting/` of a store: the key that signs cookies, and the SHA-256 of every token by the name of
its member.
"""

import hashlib
import re
import secrets
from contextlib import suppress
from pathlib import Path

import msgspec

from ..disk import hold, write_atomic
from ..errors import ConfigurationError, UsageError, os_errors
from ..text import clean

FOLDER = ".hosting"
PREFIX = "ulp_"  # so that a leaked token is recognized
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}")


def add(store: Path, name: str) -> str:
    """Make a token for a member; its text is returned this once and not stored."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"'{clean(name)}' cannot name a token; expected up to 64 letters, digits and . _ @ + -,"
            " a letter or digit first.",
        )
    # a plain SHA-256 is enough for it: 256 random bits cannot be guessed as a password can
    text = PREFIX + secrets.token_urlsafe(32)
    with hold(_folder(store)):
        tokens = digests(store)
        # another process may have added it, so it is looked up under the lock
        if name in tokens:
            raise UsageError(
                f"There is a token called '{name}' already; revoke it first, or give another name.",
            )
        _write(store, tokens | {name: digest(text)})
    return text


def revoke(store: Path, name: str) -> None:
    """Remove a token; its sessions end at their next request."""
    with hold(_folder(store)):
        tokens = digests(store)
        if name not in tokens:
            raise UsageError(f"There is no token '{clean(name)}'; `serve --check` lists them.")
        _write(store, {other: tokens[other] for other in tokens if other != name})


def digests(store: Path) -> dict[str, str]:
    """Return the SHA-256 of every token by its name.

    ConfigurationError for a damaged file: then no token is valid.
    """
    path = store / FOLDER / "tokens.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, str])
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"{path}: cannot be read ({error}). Put a copy back, or remove it.",
        ) from None


def name_of(store: Path, text: str) -> str | None:
    """Return whose token a text is, None for none.

    Looked up by a digest, so its time tells nothing of any token.
    """
    return {token_digest: name for name, token_digest in digests(store).items()}.get(digest(text))


def cookie_key(store: Path) -> str:
    """Return the random key that signs cookies, made once.

    Removing the file signs everybody out.
    """
    path = _folder(store) / "key"
    try:
        if not path.exists():
            # another process was faster
            with suppress(FileExistsError):
                write_atomic(path, secrets.token_hex(32).encode(), is_new=True, mode=0o600)
        key = path.read_text(encoding="ascii")
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path}: cannot be made or read ({error}).") from None
    if not re.fullmatch("[0-9a-f]{64}", key):
        raise ConfigurationError(f"{path}: not a key. Remove it; all members then sign in again.")
    return key


def _folder(store: Path) -> Path:
    folder = store / FOLDER
    with os_errors(ConfigurationError, f"{folder}: cannot be made"):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def _write(store: Path, tokens: dict[str, str]) -> None:
    write_atomic(
        store / FOLDER / "tokens.json",
        msgspec.json.format(msgspec.json.encode(tokens), indent=1) + b"\n",
        mode=0o600,
    )


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
