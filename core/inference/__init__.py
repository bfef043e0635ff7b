"""The torch side: models, paths, capture. `judge` is the public door; torch loads when it is asked for, not before.

ExtraError where torch or transformers are not installed.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ..errors import ExtraError

if TYPE_CHECKING:
    from .controls.judge_model import judge

__all__ = ["judge"]

_missing = [name for name in ("torch", "transformers") if find_spec(name) is None]
if _missing:
    raise ExtraError(
        f"running a model takes {' and '.join(_missing)}, not installed here; the package's extra 'capture' brings them"
        " (pip install '.[capture]' in a clone)."
    )


def __getattr__(name: str) -> Any:
    if name == "judge":
        from .controls.judge_model import judge

        return judge
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
