"""The torch side: models, paths, capture. `judge` is the public door; torch loads when it is asked for, not before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .controls.judge_model import judge

__all__ = ["judge"]


def __getattr__(name: str) -> Any:
    if name == "judge":
        from .controls.judge_model import judge

        return judge
    raise AttributeError(f"module 'core.inference' has no attribute '{name}'")
