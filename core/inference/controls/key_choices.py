"""Does attention choose its keys, as a sparse-attention indexer does? At near ties rounding chooses
others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from ..models.model import LoadedModel
from ..paths.batch import ignore
from ..paths.engines import PLAIN


def chooses_keys(loaded: LoadedModel, ids: Sequence[int]) -> bool:
    """Return whether a forward chooses among its positions: a longer prompt has more candidates. A
    router's experts are as many for any prompt, and an indexer that takes every key of this prompt
    chooses none.
    """
    half = ids[: (len(ids) + 1) // 2]
    return bool(_candidates(loaded, ids) - _candidates(loaded, half))


def _candidates(loaded: LoadedModel, ids: Sequence[int]) -> Counter[int]:
    """Return how many choices a forward makes, by their number of candidates."""
    with _Choices() as choices:
        PLAIN.run_on(loaded)(ids, ignore)
    return choices.candidates


class _Choices(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.candidates: Counter[int] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func._schema.name == "aten::topk":
            sizes = zip(args[0].shape, result[0].shape, strict=True)
            self.candidates.update(size for size, chosen in sizes if chosen < size)
        return result
