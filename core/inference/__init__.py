"""The torch side: models, paths, capture. `judge` is the public function; torch loads on its first
use.

ExtraError if torch or transformers are not installed.
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
        f"running a model needs {' and '.join(_missing)}, which are not installed;"
        " pip install '.[capture]' in a clone, or 'ulpscope[capture]'.",
    )


def __getattr__(name: str) -> Any:
    if name == "judge":
        from .controls.judge_model import judge

        return judge
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
