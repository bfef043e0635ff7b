"""Choices of a capture, recorded in the forwards whose logits are stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import torch

from ...runs.tables.choices import ChosenPart, choice_rows
from ..controls.choices import following_choices
from ..models.model import LoadedModel
from ..paths.hooks import ModuleTrace
from ..paths.paths import Path


def can_record(path: Path) -> bool:
    """Return whether the choices of a path can be seen: not in another process, nor compiled, as
    flex_attention is.
    """
    is_ours = path.engine is None and not path.is_one_piece
    return is_ours and path.values_of("attn") != ("flex_attention",)


class ChoiceRecorder:
    """Records what the model chooses, side by side and prompt by prompt."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded
        self._left_padding = 0
        self._made: Counter[str] = Counter()  # by module in this forward
        self._ordinals: dict[tuple[str, int], int] = {}  # by module and call
        self._parts: dict[tuple[str, int], list[ChosenPart]] = {}

    @contextmanager
    def recording(self, trace: ModuleTrace, path: Path) -> Iterator[None]:
        """Record the forwards of a path inside, whose positions `trace` is told."""
        self._left_padding, _ = path.padding
        with following_choices(self._loaded, trace, self._note):
            yield

    def take(self, side: int, prompt: int) -> pa.Table | None:
        """Return rows of the prompt's choices, None if there are none, and forget them."""
        tables = [
            choice_rows(side, prompt, (self._ordinals[key], *key), parts)
            for key, parts in self._parts.items()
        ]
        self._parts.clear()
        return pa.concat_tables(tables) if tables else None

    def _note(
        self,
        call: int,
        module: str,
        start: int,
        ids: torch.Tensor,
        scores: torch.Tensor,
    ) -> None:
        if call == 0:
            self._made.clear()
        self._made[module] += 1
        key = module, self._made[module]
        self._ordinals.setdefault(key, len(self._ordinals))
        is_chosen = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, ids, value=True)
        lowest = scores.masked_fill(~is_chosen, torch.inf).amin(-1)
        highest = scores.masked_fill(is_chosen, -torch.inf).amax(-1)
        # [positions, groups]; of several groups the closest is at the cut
        closest = (lowest - highest).argmin(-1, keepdim=True)
        largest = scores.masked_fill(scores.isinf(), 0).abs().amax(-1)
        cut = torch.stack([each.gather(1, closest)[:, 0] for each in (lowest, highest, largest)])
        # within groups, experts are counted from the group's first
        _, groups, candidates = scores.shape
        ids = ids + candidates * torch.arange(groups, device=ids.device)[:, None]
        if module.endswith("indexer"):
            # columns of the batch
            ids = ids - self._left_padding
        # masked candidates have a score of -inf: if none is left out but these, all are taken
        is_choice = (cut[1] != -torch.inf).cpu().numpy()
        part = ChosenPart(
            start + np.flatnonzero(is_choice),
            ids.flatten(1).sort(-1).values.cpu().numpy()[is_choice],
            cut.double().cpu().numpy()[:, is_choice],
            str(scores.dtype).removeprefix("torch."),
        )
        self._parts.setdefault(key, []).append(part)
