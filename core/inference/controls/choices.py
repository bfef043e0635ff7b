"""Discrete choices of a forward, such as the experts that a router takes or the keys that an indexer
attends to: recorded, and replayed in other forwards, so that what remains is continuous.

Rounding flips close choices, and all behind a flip is far away. So the choices of one plain forward
are forced on each side and on the noise floor, and these are compared as those of a dense model.
What a side would have chosen itself is compared choice by choice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.nn.functional import pad
from torch.utils._python_dispatch import TorchDispatchMode

from ...checks.choices import OtherChoices
from ...numerics.statistic import TINY
from ..models.model import LoadedModel
from ..paths.batch import Emit, Run, ignore
from ..paths.engines import PLAIN, RunnableSide
from ..paths.hooks import ModuleTrace

See = Callable[[tuple[int, ...], "Choices"], None]
"""Gets a prompt, and what a side chooses by itself."""


@dataclass
class Choices:
    """Choices of one prompt's forward, an entry for each time that it takes the largest of some
    scores, in the order of the calls.

    choosers: modules that choose among keys, so that the candidates are the prompt's positions;
    calls: (module, how often it chose before in a forward) -> its place in the lists; ids: of what
    was chosen [positions, groups, k], -1 if not computed or masked; scores: of all candidates
    [positions, groups, candidates], NaN if not computed.
    """

    positions: int
    choosers: Collection[str] = ()
    calls: dict[tuple[str, int], int] = field(default_factory=dict)
    ids: list[torch.Tensor] = field(default_factory=list)
    scores: list[torch.Tensor] = field(default_factory=list)

    @property
    def modules(self) -> list[str]:
        """Modules that choose, by call."""
        return [module for module, _ in self.calls]

    def note(
        self, call: tuple[str, int], start: int, ids: torch.Tensor, scores: torch.Tensor
    ) -> None:
        """Note what a call chooses from position `start` on. ids: [n, groups, k]; scores: [n,
        groups, candidates]
        """
        if call[0] in self.choosers:
            first = slot_of_first(start, scores)
            if first is None:
                return
            ids, scores = _by_position(first, self.positions, ids, scores)
        if call not in self.calls:
            self.calls[call] = len(self.ids)
            self.ids.append(torch.full((self.positions, *ids.shape[1:]), -1))
            shape = self.positions, *scores.shape[1:]
            self.scores.append(torch.full(shape, torch.nan, dtype=scores.dtype))
        place = self.calls[call]
        rows = slice(start, start + len(ids))
        if self.scores[place].shape[1:] != scores.shape[1:]:
            return
        # another number of choices is none of these
        if self.ids[place].shape[1:] == ids.shape[1:]:
            self.ids[place][rows] = ids.cpu()
        self.scores[place][rows] = scores.cpu()


def slot_of_first(start: int, scores: torch.Tensor) -> int | None:
    """Return the slot of the key of position 0 in a batch or cache, None if unknown. scores: [n,
    groups, slots] of the positions from `start` on, each of which sees itself last.
    """
    seen = _is_seen(scores[0, 0]).nonzero()
    first = int(seen[-1]) - start if len(seen) else -1
    return first if first >= 0 else None


def _is_seen(scores: torch.Tensor) -> torch.Tensor:
    """Return which keys are not masked: a mask adds negative infinity, or the lowest number."""
    return scores > torch.finfo(scores.dtype).min / 2


def _by_position(
    first: int, positions: int, ids: torch.Tensor, scores: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (ids of keys, scores) by position of the prompt instead of by slot, [n, groups,
    positions] both. first: slot of position 0.
    """
    is_seen = _is_seen(scores)
    places = torch.where(is_seen.gather(-1, ids), ids - first, -1)
    scores = scores.where(is_seen, -torch.inf)[..., first : first + positions]
    missing = positions - scores.shape[-1]
    return (
        pad(places, (0, positions - places.shape[-1]), value=-1),
        pad(scores, (0, missing), value=-torch.inf),
    )


class _Trace(ModuleTrace):
    """Knows which rows of a batch are the prompt's positions in each forward."""

    module = ""

    def __init__(self, prompt: Sequence[int]) -> None:
        super().__init__(prompt, range(len(prompt)))
        self.chosen: Counter[str] = Counter()

    def _begin(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        super()._begin(arguments, keywords)
        self.chosen.clear()

    def own(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return the prompt's part of what a forward computes, a view [positions, groups, n]; None
        if the axes are not known.
        """
        rows, columns = self._shape
        if self._computed is None or tensor.shape[0] not in (rows, rows * columns):
            return None
        row, skipped, start, stop = self._computed
        is_flat = tensor.shape[0] == rows * columns
        if not is_flat and (tensor.ndim < 3 or tensor.shape[1] != columns):
            return None
        batch = tensor.reshape(rows, columns, -1, tensor.shape[-1])
        return batch[row, skipped : skipped + stop - start]

    @property
    def start(self) -> int:
        assert self._computed is not None
        return self._computed[2]


class _Mode(TorchDispatchMode):
    """Notes each choice of the followed forwards, and forces those of another forward if there
    are.
    """

    def __init__(self, trace: _Trace, noted: Choices, forced: Choices | None) -> None:
        super().__init__()
        self._trace, self._noted, self._forced = trace, noted, forced

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func._schema.name != "aten::topk" or result[0].shape[:-1] != args[0].shape[:-1]:
            return result
        trace, scores, (values, ids) = self._trace, args[0], result
        own_scores, own_ids = trace.own(scores), trace.own(ids)
        if own_scores is None or own_ids is None:
            return result
        call = trace.module, trace.chosen[trace.module]
        trace.chosen[trace.module] += 1
        self._noted.note(call, trace.start, own_ids, own_scores)
        forced = self._forced_on(call, own_scores, own_ids)
        if forced is not None:
            own_ids.copy_(forced)
            values.copy_(scores.gather(-1, ids))
        return values, ids

    def _forced_on(
        self, call: tuple[str, int], scores: torch.Tensor, ids: torch.Tensor
    ) -> torch.Tensor | None:
        """Return the ids that a call has to choose instead of `ids`, None if there are none."""
        if self._forced is None or call not in self._forced.calls:
            return None
        start = self._trace.start
        chosen = self._forced.ids[self._forced.calls[call]][start : start + len(ids)]
        chosen = chosen.to(ids.device)
        if call[0] in self._forced.choosers:
            first = slot_of_first(start, scores)
            if first is None:
                return None
            # what is not masked comes first, on both sides
            chosen = torch.where(chosen < 0, -1, chosen + first)[..., : ids.shape[-1]]
        # another number of choices is for the comparison of choices to tell
        if chosen.shape != ids.shape:
            return None
        return torch.where(chosen < 0, ids, chosen)


def key_choosers(loaded: LoadedModel, ids: Sequence[int]) -> dict[str, bool]:
    """Return the modules that choose among positions, as a sparse-attention indexer does: a longer
    prompt has more candidates. False if one takes every key of this prompt.
    """
    whole, half = (
        choices_of(loaded, PLAIN, part) for part in (ids, ids[: (len(ids) + 1) // 2])
    )
    found = {}
    for call, place in whole.calls.items():
        candidates, chosen = whole.scores[place].shape[-1], whole.ids[place].shape[-1]
        if call in half.calls and half.scores[half.calls[call]].shape[-1] != candidates:
            found[call[0]] = chosen < candidates
    return found


def choices_of(
    loaded: LoadedModel,
    side: RunnableSide,
    ids: Sequence[int],
    choosers: Collection[str] = (),
) -> Choices:
    """Return what a side chooses by itself. choosers: modules that choose among keys"""
    noted = Choices(len(ids), choosers)
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
            noted = Choices(len(prompt), forced[prompt].choosers)
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
    trace = _Trace(ids)
    with (
        _naming(loaded.model, trace),
        side.open(loaded, trace) as run,
        trace.following(loaded.model, {}),
        _Mode(trace, noted, forced),
    ):
        yield run


@contextmanager
def _naming(model: Any, trace: _Trace) -> Iterator[None]:
    """Tell the trace which module runs, the innermost one."""
    stack: list[str] = []

    def enter(name: str) -> None:
        stack.append(name)
        trace.module = name

    def leave() -> None:
        stack.pop()
        trace.module = stack[-1] if stack else ""

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            hooks.enter_context(
                module.register_forward_pre_hook(lambda _, __, name=name: enter(name)),
            )
            hooks.enter_context(module.register_forward_hook(lambda *_: leave()))
        yield


def can_replay(loaded: LoadedModel, side: RunnableSide, plain: Replay) -> bool:
    """Return whether a side makes as many choices as the model, of as many candidates, and they can
    be followed: not in another process, nor compiled.
    """
    if side.engine_path is not None or side.is_one_piece:
        return False
    for prompt, ours in plain.choices.items():
        if not ours.ids:
            return False
        if not are_alike(ours, choices_of(loaded, side, prompt, ours.choosers)):
            return False
    return True


def are_alike(ours: Choices, theirs: Choices) -> bool:
    """Return whether forwards make as many choices, of as many candidates, at every position."""
    if ours.calls.keys() != theirs.calls.keys():
        return False
    for call, place in theirs.calls.items():
        own_place = ours.calls[call]
        ids, scores = theirs.ids[place], theirs.scores[place]
        if ids.shape != ours.ids[own_place].shape or scores.shape != ours.scores[own_place].shape:
            return False
        # of keys there are fewer at the first positions
        is_computed = (ids >= 0).any(-1) if call[0] in ours.choosers else (ids >= 0).all(-1)
        if not bool(is_computed.all()):
            return False
    return True


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

    def compare(
        self,
        prompts: Sequence[tuple[int, ...]],
        noted: Mapping[tuple[int, ...], Choices],
    ) -> list[OtherChoices]:
        """Compare what a side would have chosen, prompt by prompt."""
        return [compare_choices(self.choices[ids], noted[ids], self.moved[ids]) for ids in prompts]


def moved_by(plain: Choices, other: Choices) -> list[torch.Tensor]:
    """Return the largest difference of a score, of each call. [positions, groups] each"""
    moved = []
    for call, place in plain.calls.items():
        ours, theirs = plain.scores[place], other.scores[other.calls[call]]
        moved.append((theirs.double() - ours.double()).abs().nan_to_num(0.0).amax(-1))
    return moved


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
    for call, place in plain.calls.items():
        exact, by_rounding = plain.scores[place].double(), moved[place]
        is_ours = _as_set(plain.ids[place], exact.shape[-1])
        is_theirs = _as_set(other.ids[other.calls[call]], exact.shape[-1])
        # no choice if all candidates are taken
        total += int((exact.isfinite() & ~is_ours).any(-1).sum())
        left_out = exact.masked_fill(~(is_ours & ~is_theirs), -torch.inf).amax(-1)
        taken = exact.masked_fill(~(is_theirs & ~is_ours), torch.inf).amin(-1)
        # no position's scores are known more exactly than half of them
        scale = by_rounding.clamp_min(float(by_rounding.median())).clamp_min(TINY)
        for position, group in (is_ours != is_theirs).any(-1).nonzero().tolist():
            places.append((place, position))
            gap = float(left_out[position, group] - taken[position, group])
            gaps.append(gap / float(scale[position, group]))
    return OtherChoices(total, places, gaps)


def _as_set(ids: torch.Tensor, candidates: int) -> torch.Tensor:
    """Return whether each candidate is among the ids; -1 is none. [..., candidates]"""
    shape = *ids.shape[:-1], candidates + 1
    ids = torch.where(ids < 0, candidates, ids)
    return torch.zeros(shape, dtype=torch.bool).scatter(-1, ids, value=True)[..., :-1]
