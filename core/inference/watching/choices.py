"""Choices of a capture, recorded in the forwards whose logits are stored."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import torch

from ...runs.tables.choices import Part, choice_rows
from ..models.model import LoadedModel, has_experts
from ..paths.paths import Path


def can_record(loaded: LoadedModel, path: Path) -> bool:
    """Return whether the model makes choices, and those of a path can be seen: not in another
    process, nor compiled.
    """
    return path.engine is None and not path.is_one_piece and has_experts(loaded.model)


class ChoiceRecorder:
    """Records what the model chooses on one side, prompt by prompt."""

    def __init__(self, path: Path) -> None:
        self._left_padding, _ = path.padding
        # by module, call and dtype, in the order in which they were first made
        self._parts: dict[tuple[str, int, str], list[Part]] = {}

    def take(self, side: int, prompt: int) -> list[pa.Table]:
        """Return rows of the prompt's choices, by call, and forget them."""
        calls = enumerate(self._parts.items())
        self._parts = {place: [] for place in self._parts}
        return [
            choice_rows(side, prompt, ordinal, place, parts)
            for ordinal, (place, parts) in calls
            if parts
        ]

    def note(
        self,
        call: tuple[str, int],
        start: int,
        ids: torch.Tensor,
        scores: torch.Tensor,
    ) -> None:
        """Note what a call chooses, as core.inference.controls.choices.Note."""
        module, earlier = call
        place = module, earlier + 1, str(scores.dtype).removeprefix("torch.")
        # [positions, groups] each
        lowest = scores.gather(-1, ids).amin(-1)
        highest = scores.scatter(-1, ids, -torch.inf).amax(-1)
        largest = scores.masked_fill(scores.isinf(), 0).abs().amax(-1)
        # of several groups the closest is at the cut
        closest = (lowest - highest).argmin(-1, keepdim=True)
        cut = torch.cat([each.gather(1, closest) for each in (lowest, highest, largest)], 1)
        # within groups, experts are counted from the group's first
        _, groups, candidates = scores.shape
        ids = ids + candidates * torch.arange(groups, device=ids.device)[:, None]
        if module.endswith("indexer"):
            # columns of the batch
            ids = ids - self._left_padding
        chosen, figures = ids.flatten(1).sort().values.cpu().numpy(), cut.double().cpu().numpy()
        # masked candidates have a score of -inf: if none is left out but these, all are taken
        is_choice = figures[:, 1] != -np.inf
        if not is_choice.any():
            return
        part = start + np.flatnonzero(is_choice), chosen[is_choice], figures[is_choice]
        self._parts.setdefault(place, []).append(part)
