"""Discrete choices of a forward, such as the experts that a router takes: recorded, and replayed in
other forwards, so that what remains is continuous.

Rounding flips close choices, and all behind a flip is far away. So the choices of one plain forward
are forced on each side and on the noise floor, and these are compared as those of a dense model.
What a side would have chosen itself is compared choice by choice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import torch

from ...checks.choices import OtherChoices
from ...numerics.formats import FloatFormat, spacings
from ...numerics.statistic import TINY
from ..models.model import LoadedModel
from ..paths.batch import Emit, Run, ignore
from ..paths.engines import RunnableSide
from ..paths.hooks import ModuleTrace

See = Callable[[tuple[int, ...], "Choices"], None]
"""Gets a prompt, and what a side chooses by itself."""
Note = Callable[[int, str, int, torch.Tensor, torch.Tensor], None]
"""Gets what a call chooses, as `Choices.note`."""
_TOPK = torch.topk


@dataclass
class Choices:
    """Choices of one prompt's forward, an entry for each time that it takes the largest of some
    scores, in the order of the calls.

    modules: that make them; ids: of what was chosen [positions, groups, k]; scores: of all
    candidates [positions, groups, candidates]; both -1 or NaN at a position that was not computed.
    """

    positions: int
    modules: list[str] = field(default_factory=list)
    ids: list[torch.Tensor] = field(default_factory=list)
    scores: list[torch.Tensor] = field(default_factory=list)

    def note(
        self, call: int, module: str, start: int, ids: torch.Tensor, scores: torch.Tensor
    ) -> None:
        """Note what a call chooses from position `start` on. ids: [n, groups, k]; scores: [n,
        groups, candidates]
        """
        if call == len(self.ids):
            self.modules.append(module)
            self.ids.append(torch.full((self.positions, *ids.shape[1:]), -1))
            shape = self.positions, *scores.shape[1:]
            self.scores.append(torch.full(shape, torch.nan, dtype=scores.dtype))
        rows = slice(start, start + len(ids))
        if call > len(self.ids) or self.scores[call].shape[1:] != scores.shape[1:]:
            return
        # another number of choices is none of these
        if self.ids[call].shape[1:] == ids.shape[1:]:
            self.ids[call][rows] = ids.cpu()
        self.scores[call][rows] = scores.cpu()


def choices_of(loaded: LoadedModel, side: RunnableSide, ids: Sequence[int]) -> Choices:
    """Return what a side chooses by itself."""
    noted = Choices(len(ids))
    with _following(loaded, side, ids, noted, None) as run:
        run(ids, ignore)
    return noted


def replaying(
    side: RunnableSide,
    forced: Mapping[tuple[int, ...], Choices],
    see: See = ignore,
) -> RunnableSide:
    """Return a side that makes the choices `forced`, by prompt. see: gets those that it would have
    made itself.
    """

    @contextmanager
    def open_side(loaded: LoadedModel, _: ModuleTrace | None) -> Iterator[Run]:
        def run(ids: Sequence[int], emit: Emit) -> None:
            prompt = tuple(ids)
            noted = Choices(len(prompt))
            with _following(loaded, side, prompt, noted, forced[prompt]) as compute:
                compute(prompt, emit)
            see(prompt, noted)

        yield run

    return replace(side, open=open_side)


@contextmanager
def _following(
    loaded: LoadedModel,
    side: RunnableSide,
    ids: Sequence[int],
    noted: Choices,
    forced: Choices | None,
) -> Iterator[Run]:
    trace = ModuleTrace(ids, range(len(ids)))
    with side.open(loaded, trace) as run, following_choices(loaded, trace, noted.note, forced):
        yield run


@contextmanager
def following_choices(
    loaded: LoadedModel,
    trace: ModuleTrace,
    note: Note,
    forced: Choices | None = None,
) -> Iterator[None]:
    """Have `note` get the choices of the forwards inside, whose positions `trace` is told; force
    those of another forward if there are.

    torch's `topk` is replaced: a mode that sees every operation takes half of a small model's time.
    """
    running = [""]  # modules, the innermost last

    def topk(input: torch.Tensor, *arguments: Any, **keywords: Any) -> Any:
        result = _TOPK(input, *arguments, **keywords)
        scores = input
        values, ids = result
        # along another axis, or all are taken
        if values.shape[:-1] != scores.shape[:-1] or values.shape == scores.shape:
            return result
        own_scores, own_ids = trace.own(scores), trace.own(ids)
        if own_scores is None or own_ids is None:
            return result
        call = trace.choices
        trace.choices += 1
        note(call, running[-1], trace.start, own_ids, own_scores)
        if forced is None or call >= len(forced.ids):
            return result
        chosen = forced.ids[call][trace.start : trace.start + len(own_ids)].to(ids.device)
        # another number of choices is for the comparison of choices to tell
        if chosen.shape == own_ids.shape:
            own_ids.copy_(torch.where(chosen < 0, own_ids, chosen))
            values.copy_(scores.gather(-1, ids))
        return result

    def leave(*_: object) -> None:
        running.pop()

    with ExitStack() as stack:
        stack.enter_context(trace.following(loaded.model, {}))
        for name, module in loaded.model.named_modules():
            enter = module.register_forward_pre_hook(lambda *_, name=name: running.append(name))
            stack.enter_context(enter)
            stack.enter_context(module.register_forward_hook(leave))
        stack.enter_context(patch.object(torch, "topk", topk))
        stack.enter_context(patch.object(torch.Tensor, "topk", topk))
        yield


def can_replay(loaded: LoadedModel, side: RunnableSide, plain: Replay) -> bool:
    """Return whether a side makes as many choices as the model, of as many candidates, and they can
    be followed: not in another process, nor compiled.
    """
    if side.engine_path is not None or side.is_one_piece:
        return False
    for prompt, ours in plain.choices.items():
        if not ours.ids or not are_alike(ours, choices_of(loaded, side, prompt)):
            return False
    return True


def are_alike(ours: Choices, theirs: Choices) -> bool:
    """Return whether forwards make as many choices, of as many candidates, at every position."""
    shapes = [[each.shape for each in (*one.ids, *one.scores)] for one in (ours, theirs)]
    return shapes[0] == shapes[1] and all(bool((ids >= 0).all()) for ids in theirs.ids)


@dataclass
class Replay:
    """Choices of the model's plain forward in one dtype, by prompt, which others are forced to
    make. moved: how far rounding moves the scores of each call.
    """

    choices: dict[tuple[int, ...], Choices]
    moved: dict[tuple[int, ...], list[torch.Tensor]] = field(default_factory=dict)

    def of(self, side: RunnableSide, see: See = ignore) -> RunnableSide:
        """Return a side that makes these choices. see: gets those that it would have made."""
        return replaying(side, self.choices, see)

    def of_rounding(self, side: RunnableSide) -> RunnableSide:
        """Return a side that differs from the plain forward by rounding, which shows how far scores
        move.
        """

        def see(prompt: tuple[int, ...], noted: Choices) -> None:
            moved = moved_by(self.choices[prompt], noted)
            earlier = self.moved.get(prompt, moved)
            self.moved[prompt] = list(map(torch.maximum, earlier, moved))

        return self.of(side, see)

    def moved_row_ulps(self, fmt: FloatFormat) -> float:
        """Return how far rounding moves a score at most, in spacings of `fmt` at the largest score
        of its position.
        """
        most = 0.0
        for prompt, moved in self.moved.items():
            for scores, by_rounding in zip(self.choices[prompt].scores, moved, strict=True):
                largest = scores.double().nan_to_num(0.0, 0.0, 0.0).abs().amax(-1).numpy()
                most = max(most, float((by_rounding.numpy() / spacings(largest, fmt)).max()))
        return most

    def compare(
        self,
        prompts: Sequence[tuple[int, ...]],
        noted: Mapping[tuple[int, ...], Choices],
    ) -> list[OtherChoices]:
        """Compare what a side would have chosen, prompt by prompt."""
        return [compare_choices(self.choices[ids], noted[ids], self.moved[ids]) for ids in prompts]


def moved_by(plain: Choices, other: Choices) -> list[torch.Tensor]:
    """Return the largest difference of a score, of each call. [positions, groups] each"""
    return [
        (theirs.double() - ours.double()).abs().nan_to_num(0.0).amax(-1)
        for ours, theirs in zip(plain.scores, other.scores, strict=True)
    ]


def compare_choices(
    plain: Choices,
    other: Choices,
    moved: Sequence[torch.Tensor],
) -> OtherChoices:
    """Compare what a side chooses with what the model does. moved: by rounding, as of
    `moved_by`.
    """
    places: list[tuple[int, int]] = []
    gaps: list[float] = []
    total = 0
    for call, (ids, scores, by_rounding) in enumerate(
        zip(plain.ids, plain.scores, moved, strict=True),
    ):
        total += ids.shape[0] * ids.shape[1]
        is_ours = torch.zeros(scores.shape, dtype=torch.bool).scatter(-1, ids, value=True)
        is_theirs = torch.zeros(scores.shape, dtype=torch.bool).scatter(
            -1,
            other.ids[call],
            value=True,
        )
        exact = scores.double()
        left_out = exact.masked_fill(~(is_ours & ~is_theirs), -torch.inf).amax(-1)
        taken = exact.masked_fill(~(is_theirs & ~is_ours), torch.inf).amin(-1)
        # no position's scores are known more exactly than half of them
        scale = by_rounding.clamp_min(float(by_rounding.median())).clamp_min(TINY)
        for position, group in (is_ours != is_theirs).any(-1).nonzero().tolist():
            places.append((call, position))
            gap = float(left_out[position, group] - taken[position, group])
            gaps.append(gap / float(scale[position, group]))
    return OtherChoices(total, places, gaps)
