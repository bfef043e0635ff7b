"""Trainer against rollout: files of RL frameworks, their figures, causes, and checks in a live
loop.

`check`, `MismatchMixin` and `verl_metrics` are the functions of Python; `live` loads on first use,
for the other modules are imported by layers below it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .live import Check as Check
    from .live import MismatchMixin as MismatchMixin
    from .live import check as check
    from .live import verl_metrics as verl_metrics


def __getattr__(name: str) -> Any:
    if name not in ("Check", "MismatchMixin", "check", "verl_metrics"):
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from . import live

    return getattr(live, name)
