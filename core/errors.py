"""The errors a user may meet. Each message is one sentence: where, what arrived, what was expected, what to do."""

from __future__ import annotations


class UlpscopeError(Exception):
    """Base of everything ULPscope raises on purpose; its text is shown to the user as it is."""


class DumpError(UlpscopeError):
    """A dump of logits that cannot be taken."""


class StoreError(UlpscopeError):
    """A run file or store directory that cannot be read or written."""


class CaptureError(UlpscopeError):
    """A model, prompt or path that cannot be captured."""


class UsageError(UlpscopeError):
    """An argument that names nothing known or contradicts another."""


class ConfigurationError(UlpscopeError):
    """A configuration file or an environment variable that cannot be understood."""


class ExtraError(UlpscopeError, ImportError):
    """A library that only an extra of the installed package brings, and that is not there."""


class LimitError(UlpscopeError):
    """More than the server's limits allow. `status`: 413 for a file that is too large, 507 for no room."""

    def __init__(self, sentence: str, status: int = 507) -> None:
        super().__init__(sentence)
        self.status = status


class AccessError(UlpscopeError):
    """Something that whoever asks may not do."""
