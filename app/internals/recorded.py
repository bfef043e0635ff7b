"""What a capture records inside the model, and which pairs of a run have it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from core.runs.reader import RunReader


@dataclass(frozen=True)
class Recorded:
    """What a tab of Internals shows. option: of `capture`; pairs: indices of those that have it."""

    option: str
    what: str
    pairs: Callable[[RunReader], Collection[int]]


def _pairs_with_kernels(run: RunReader) -> set[int]:
    sides = run.sides_with_kernels
    # A pair needs both of its sides: side 0 is every pair's reference, side n + 1 is variant n.
    return {side - 1 for side in sides} if 0 in sides else set()


RECORDED = {  # by tab
    "layers": Recorded("layers", "module outputs", lambda run: run.pairs_with_layers),
    "choices": Recorded("choices", "choices", lambda run: run.pairs_with_choices),
    "kv_cache": Recorded("kv", "KV caches", lambda run: run.pairs_with_kv),
    "kernels": Recorded("kernels", "kernels", _pairs_with_kernels),
    "mitigations": Recorded("mitigations", "mitigations", lambda run: run.mitigations),
}
