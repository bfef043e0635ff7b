"""The callback by which long work reports where it is."""

from typing import Protocol

STORING = "storing and comparing"  # the stage of every import


class Progress(Protocol):
    """Takes the stage of the work, and how much of it is done if that can be counted."""

    def __call__(
        self,
        stage: str,
        done: int = 0,
        total: int = 0,
        unit: str = "positions",
    ) -> None: ...


def no_progress(stage: str, done: int = 0, total: int = 0, unit: str = "positions") -> None:
    """Discard the report."""
