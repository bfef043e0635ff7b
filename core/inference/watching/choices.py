"""Choices of a capture, recorded in the forwards whose logits are stored."""

from collections.abc import Iterator

import pyarrow as pa
import torch
from torch import Tensor

from ...runs.tables.choices import choice_rows
from ..controls.choices import Call, Choices, slot_of_first


class ChoiceRecorder:
    """Records what the model chooses on one side, prompt by prompt. positions: of the longest."""

    def __init__(self, positions: int) -> None:
        # in which they were first made
        self._order: list[Call] = []
        # of the scores what `choice_rows` takes
        self._noted = Choices(positions)

    def take(self, side: int, prompt: int) -> Iterator[pa.Table]:
        """Yield rows of the prompt's choices, by call, and forget them."""
        noted = self._noted
        self._noted = Choices(noted.positions)
        self._order += [call for call in noted.ids if call not in self._order]
        for call, ids in noted.ids.items():
            cut = noted.scores[call]
            yield choice_rows(
                side,
                prompt,
                self._order.index(call),
                call,
                ids[:, 0].numpy(),
                cut[:, 0].double().numpy(),
                str(cut.dtype).removeprefix("torch."),
            )

    def note(
        self,
        call: Call,
        start: int,
        ids: Tensor,
        scores: Tensor,
    ) -> None:
        """Note what a call chooses, as core.inference.controls.choices.Note."""
        # the best of each group of experts, which only lead to the groups
        if scores.shape[1] > 1:
            return
        lowest = scores.gather(-1, ids).amin(-1)
        highest = scores.scatter(-1, ids, -torch.inf).amax(-1)
        largest = scores.masked_fill(scores.isinf(), 0).abs().amax(-1)
        cut = torch.stack([lowest, highest, largest], -1)
        if call[0].endswith("indexer"):
            ids = ids - slot_of_first(scores)
        # masked candidates have a score of -inf: if none is left out but these, all are taken
        is_choice = cut[..., 1:2] > -torch.inf
        if is_choice.any():
            self._noted.note(call, start, ids.sort().values.where(is_choice, -1), cut)
