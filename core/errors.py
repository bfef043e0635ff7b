"""Errors for users. Each message says where, what arrived, what was expected, what to do."""

from collections.abc import Iterator
from contextlib import contextmanager

from .text import clip, legible

# a message may quote a file, so it is clipped at so many characters
_LONGEST = 2000


class UlpscopeError(Exception):
    """Base of all errors that ULPscope raises on purpose; users see the text."""

    def __str__(self) -> str:
        return clip(legible(super().__str__()), _LONGEST)


class DumpError(UlpscopeError):
    """A dump of logits that cannot be imported."""


class StoreError(UlpscopeError):
    """A run file or store directory that cannot be read or written."""


class CaptureError(UlpscopeError):
    """A model, prompt or path that cannot be captured."""


class UsageError(UlpscopeError):
    """An argument that is unknown or contradicts another."""


class ConfigurationError(UlpscopeError):
    """An invalid configuration file or environment variable."""


class ExtraError(UlpscopeError, ImportError):
    """A missing library that an extra of the package installs."""


class LimitError(UlpscopeError):
    """More than the server's limits allow.

    `status`: 413 for a file that is too large, 507 for no room.
    """

    def __init__(self, sentence: str, status: int = 507) -> None:
        super().__init__(sentence)
        self.status = status


class AccessError(UlpscopeError):
    """An action that the user may not do."""


@contextmanager
def os_errors(kind: type[UlpscopeError], what: str, then: str = "") -> Iterator[None]:
    """Turn an OSError into one sentence: what cannot be done, the reason, and what to do."""
    try:
        yield
    except OSError as error:
        raise kind(f"{what} ({error.strerror or error}){then}.") from error
