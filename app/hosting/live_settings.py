"""Settings that the gate works with: the configuration in force, and the sessions, tokens and keys of the store."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from functools import lru_cache
from pathlib import Path

from itsdangerous import BadSignature, TimestampSigner

from core.configuration import Configuration, configuration
from core.errors import ConfigurationError
from core.hosting import private, start
from core.hosting.sessions import SKEW_SECONDS, Sessions
from core.hosting.tokens import Tokens
from core.runs.store.store import open_store

_FRESH_SECONDS = 1.0
_log = logging.getLogger(__name__)


class _LastRead:
    """The configuration as it was a moment ago, and why a newer one is not taken up."""

    found: Configuration | None = None
    until = 0.0
    complaint = ""


def now_in_force() -> Configuration:
    """Configuration that everything in the server goes by: at most a second old, and never one that it would not have
    started with.

    A file that is half written, or says what does not hold, leaves the one before. ConfigurationError where there was
    none before.
    """
    if _LastRead.found is None or time.monotonic() > _LastRead.until:
        try:
            _LastRead.found, _LastRead.complaint = _read(_LastRead.found), ""
        except ConfigurationError as error:
            if _LastRead.found is None:
                raise
            if str(error) != _LastRead.complaint:
                _log.error("the configuration stays as it was: %s", error)
            _LastRead.complaint = str(error)
        _LastRead.until = time.monotonic() + _FRESH_SECONDS
    return _LastRead.found


def _read(before: Configuration | None) -> Configuration:
    """Read and check the configuration, but for the address that the server listens on, which concerns its start and
    the gate alone.
    """
    found = configuration()
    start.check(found, os.environ)
    if before is not None and before.sign_in.is_configured and not found.sign_in.is_configured:
        # An empty file is valid, and so is one whose end is not written yet.
        raise ConfigurationError(
            "there is no sign-in in it any more; start the server anew to let everybody of this machine in."
        )
    return found


def forget() -> None:
    """Forget the configuration, as if the process had just started."""
    _LastRead.found, _LastRead.complaint = None, ""


class AuthStore:
    """Sessions, tokens and key that one store keeps for signing in."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.key = private.secret(directory)
        self.sessions = Sessions(directory)
        self.tokens = Tokens(directory)
        # Cookies do not know ports: two servers on one host would sign each other's viewers out under one name.
        self.suffix = self.key_for("the name of the cookie").hex()[:8]

    def cookie(self, kind: str, is_secure: bool) -> str:
        """The name of a cookie. Where it is secure no other host of the domain can set it (the prefix makes browsers
        see to that).
        """
        return f"{'__Host-' if is_secure else ''}ulpscope_{kind}_{self.suffix}"

    def key_for(self, purpose: str) -> bytes:
        return self._signer(purpose).derive_key()

    def signature(self, purpose: str, text: str) -> str:
        """A signature without the text: for a text that is nobody's to see."""
        return self._signer(purpose).get_signature(_bytes(text)).decode()

    def is_signature(self, purpose: str, text: str, signature: str) -> bool:
        return self._signer(purpose).verify_signature(_bytes(text), _bytes(signature))

    def signed(self, purpose: str, text: str) -> str:
        """The text with the time of now and a signature of both."""
        return self._signer(purpose).sign(_bytes(text)).decode()

    def unsigned(self, purpose: str, signed: str, seconds: float) -> str | None:
        """The text, if it was signed for that purpose at most so long ago; None for anything else.

        The clock of another process may be a little ahead, so the library's own look at the age is too strict: it takes
        nothing that is signed a second ahead.
        """
        try:
            text, moment = self._signer(purpose).unsign(_bytes(signed), return_timestamp=True)
        except BadSignature:
            return None
        return text.decode() if -SKEW_SECONDS <= time.time() - moment.timestamp() < seconds else None

    def _signer(self, purpose: str) -> TimestampSigner:
        """Signer with a key for one purpose, so that what is signed for one is not valid for another."""
        return TimestampSigner(self.key, salt=purpose, key_derivation="hmac", digest_method=hashlib.sha256)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")


def auth_store() -> AuthStore:
    """Auth store of this process's store; ConfigurationError where its private directory cannot be made."""
    return _auth_store(open_store().directory.absolute())


@lru_cache(maxsize=4)
def _auth_store(directory: Path) -> AuthStore:
    return AuthStore(directory)


def is_secure(found: Configuration) -> bool:
    """Return whether the browser reaches the server by https."""
    return found.hosting.public_url.lower().startswith("https://")
