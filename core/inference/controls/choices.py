"""Discrete choices of a forward, such as the experts of a router or the keys of an indexer:
recorded, and replayed in other forwards, so that what remains is continuous.

Rounding flips close choices, and all behind a flip is far away. So the choices of one plain forward
are forced on each side and on the noise floor, and these are compared as those of a dense model.
What a side would have chosen itself is compared choice by choice.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from threading import RLock, get_ident
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...checks.choices import OtherChoices
from ...numerics.formats import FloatFormat, spacings
from ...numerics.statistic import TINY
from ..models.model import Ids, LoadedModel
from ..paths.batch import Emit, Run, ignore
from ..paths.engines import PLAIN, RunnableSide
from ..paths.hooks import ModuleTrace

Call = tuple[str, int]
"""A module that chooses, and how often it chose before in a forward."""
See = Callable[[Ids, "Choices"], None]
"""Gets a prompt, and what a side chooses by itself."""
Note = Callable[[Call, int, Tensor, Tensor], None]
"""Gets what a call chooses, as `Choices.note`."""

_TOPK = torch.topk
# one thread at a time replaces it, or the last one to leave would restore another's
_REPLACING = RLock()


@dataclass
class Choices:
    """Choices of one prompt's forward, an entry for each time that it takes the largest of some
    scores, in the order of the calls.

    choosers: modules that choose among keys, so that the candidates are the prompt's positions;
    ids: of what was chosen [positions, groups, k], -1 if not computed or masked; scores: of all
    candidates [positions, groups, candidates], NaN if not computed.
    """

    positions: int
    choosers: Collection[str] = ()
    ids: dict[Call, Tensor] = field(default_factory=dict)
    scores: dict[Call, Tensor] = field(default_factory=dict)

    @property
    def last_calls(self) -> dict[str, Call]:
        """The last choice of each module that chooses."""
        return {call[0]: call for call in self.ids}

    def makes(self, call: Call, scores: Tensor) -> bool:
        """Return whether a choice is made at every position, among as many candidates as there are
        scores.
        """
        if call not in self.ids or self.scores[call].shape != scores.shape:
            return False
        return bool((self.ids[call] >= 0).any(-1).all())

    def note(
        self,
        call: Call,
        start: int,
        ids: Tensor,
        scores: Tensor,
    ) -> None:
        """Note what a call chooses from position `start` on. ids: [n, groups, k]; scores: [n,
        groups, candidates]
        """
        if call[0] in self.choosers:
            # by position of the prompt instead of by slot
            is_seen = _is_seen(scores)
            first = slot_of_first(scores)
            ids = torch.where(is_seen.gather(-1, ids), ids - first, -1)
            scores = scores.where(is_seen, -torch.inf)[..., first : first + self.positions]
            ids = pad(ids, (0, self.positions - ids.shape[-1]), value=-1)
            scores = pad(scores, (0, self.positions - scores.shape[-1]), value=-torch.inf)
        if call not in self.ids:
            self.ids[call] = torch.full((self.positions, *ids.shape[1:]), -1)
            shape = self.positions, *scores.shape[1:]
            self.scores[call] = torch.full(shape, torch.nan, dtype=scores.dtype)
        rows = slice(start, start + len(ids))
        for noted, new in ((self.ids[call], ids), (self.scores[call], scores)):
            # another number of them is none of these
            if noted.shape[1:] != new.shape[1:]:
                return
            noted[rows] = new.cpu()


def slot_of_first(scores: Tensor) -> int:
    """Return the slot of the key of position 0 in a batch or cache, the first that a position sees.
    scores: [n, groups, slots]
    """
    return int(_is_seen(scores[0, 0]).int().argmax())


def _is_seen(scores: Tensor) -> Tensor:
    """Return which keys are not masked: a mask adds negative infinity, or the lowest number."""
    return scores > torch.finfo(scores.dtype).min / 2


@contextmanager
def following_choices(
    loaded: LoadedModel,
    trace: ModuleTrace,
    note: Note,
    forced: Choices | None = None,
) -> Iterator[None]:
    """Have `note` get the choices of the forwards inside; force those of another forward if there
    are. trace: knows which positions a forward computes.

    torch's `topk` is replaced: a mode that sees every operation takes half of a small model's time.
    """
    running = [""]  # modules, the innermost last
    own_thread = get_ident()

    def topk(input: Tensor, *arguments: Any, **keywords: Any) -> Any:
        result = _TOPK(input, *arguments, **keywords)
        values, ids = result
        # along another axis
        if values.shape[:-1] != input.shape[:-1] or get_ident() != own_thread:
            return result
        own_scores = trace.own(input)
        own_ids = trace.own(ids)
        if own_scores is None or own_ids is None:
            return result
        module = running[-1]
        call = module, trace.chosen[module]
        trace.chosen[module] += 1
        note(call, trace.start, own_ids, own_scores)
        if forced is None or call not in forced.ids:
            return result
        chosen = forced.ids[call][trace.start : trace.start + len(own_ids)].to(ids.device)
        if module in forced.choosers:
            # what is not masked comes first, on both sides
            slots = torch.where(chosen < 0, -1, chosen + slot_of_first(own_scores))
            chosen = slots[..., : own_ids.shape[-1]]
        # another number of choices is for the comparison of choices to tell
        if chosen.shape == own_ids.shape:
            own_ids.copy_(torch.where(chosen < 0, own_ids, chosen))
            values.copy_(input.gather(-1, ids))
        return result

    def leave(*_: object) -> None:
        running.pop()

    with _REPLACING, ExitStack() as stack:
        stack.enter_context(trace.following(loaded.model, {}))
        for name, module in loaded.model.named_modules():
            enter = module.register_forward_pre_hook(lambda *_, name=name: running.append(name))
            stack.enter_context(enter)
            stack.enter_context(module.register_forward_hook(leave))
        # Tensor inherits its own, which `patch` uncovers again
        stack.enter_context(patch.object(torch, "topk", topk))
        stack.enter_context(patch.object(Tensor, "topk", topk))
        yield


def key_choosers(loaded: LoadedModel, ids: Ids) -> dict[str, bool]:
    """Return the modules that choose among positions, as a sparse-attention indexer does: a longer
    prompt has more candidates. False if one takes every key of this prompt.
    """
    whole = choices_of(loaded, PLAIN, ids)
    half = choices_of(loaded, PLAIN, ids[: (len(ids) + 1) // 2])
    found = {}
    for call, scores in whole.scores.items():
        candidates = scores.shape[-1]
        if call in half.scores and half.scores[call].shape[-1] != candidates:
            found[call[0]] = whole.ids[call].shape[-1] < candidates
    return found


def choices_of(
    loaded: LoadedModel,
    side: RunnableSide,
    ids: Ids,
    choosers: Collection[str] = (),
) -> Choices:
    """Return what a side chooses by itself. choosers: modules that choose among keys"""
    noted = Choices(len(ids), choosers)
    trace = ModuleTrace(ids)
    with side.open(loaded, trace) as run, following_choices(loaded, trace, noted.note):
        run(ids, ignore)
    return noted


@dataclass
class Replay:
    """Choices of the model's plain forward in one dtype, by prompt, which others are forced to
    make; none if they make their own. moved: how far rounding moves a score of each call at most,
    [positions, groups].
    """

    choices: dict[Ids, Choices] = field(default_factory=dict)
    moved: dict[Ids, dict[Call, Tensor]] = field(default_factory=dict)

    def of(self, side: RunnableSide, see: See = ignore) -> RunnableSide:
        """Return a side that makes these choices. see: gets those that it would have made."""
        if not self.choices:
            return side

        @contextmanager
        def open_side(loaded: LoadedModel, outer: ModuleTrace | None) -> Iterator[Run]:
            trace = outer or ModuleTrace()

            # opened once, so that what it changes in the model is seen from outside a run
            with side.open(loaded, trace) as compute:

                def run(ids: Sequence[int], emit: Emit) -> None:
                    prompt = tuple(ids)
                    forced = self.of_prompt(prompt)
                    noted = Choices(len(prompt), forced.choosers)
                    trace.prompt, trace.is_ambiguous = prompt, False
                    with following_choices(loaded, trace, noted.note, forced):
                        compute(prompt, emit)
                    see(prompt, noted)

                yield run

        return replace(side, open=open_side)

    def of_prompt(self, ids: Ids) -> Choices:
        """Return the choices of a prompt, or of one that begins with it."""
        if ids in self.choices:
            return self.choices[ids]
        return next(each for prompt, each in self.choices.items() if prompt[: len(ids)] == ids)

    def of_rounding(self, side: RunnableSide) -> RunnableSide:
        """Return a side that differs from the plain forward by rounding, which shows how far scores
        move.
        """

        def see(prompt: Ids, noted: Choices) -> None:
            moved = self.moved.setdefault(prompt, {})
            for call, scores in self.choices[prompt].scores.items():
                by_side = (noted.scores[call].double() - scores.double()).abs()
                largest = by_side.nan_to_num(0.0).amax(-1)
                moved[call] = torch.maximum(largest, moved.get(call, largest))

        return self.of(side, see)

    def is_followed_by(self, noted: Mapping[Ids, Choices]) -> bool:
        """Return whether a side makes these choices, though it may take others. noted: its own, by
        prompt.

        The choice that each module of the model ends with has to be the last one of a side too, of
        as many candidates at every position. Earlier ones, of groups of experts, only lead to it.
        """
        for ids, ours in self.choices.items():
            if ids not in noted or not ours.ids:
                return False
            theirs = noted[ids]
            last = theirs.last_calls
            for module, call in ours.last_calls.items():
                if call != last.get(module) or not theirs.makes(call, ours.scores[call]):
                    return False
        return True

    def moved_row_ulps(self, fmt: FloatFormat) -> float:
        """Return how far rounding moves a score at most, in spacings of `fmt` at the largest score
        of its position.
        """
        most = 0.0
        for prompt, moved in self.moved.items():
            for call, by_rounding in moved.items():
                scores = self.choices[prompt].scores[call].double()
                largest = scores.nan_to_num(0.0, 0.0, 0.0).abs().amax(-1).numpy()
                most = max(most, float((by_rounding.numpy() / spacings(largest, fmt)).max()))
        return most

    def compare(
        self,
        prompts: Sequence[Ids],
        noted: Mapping[Ids, Choices],
    ) -> list[OtherChoices]:
        """Compare what a side would have chosen, prompt by prompt."""
        return [compare_choices(self.choices[ids], noted[ids], self.moved[ids]) for ids in prompts]


def compare_choices(
    plain: Choices,
    other: Choices,
    moved: Mapping[Call, Tensor],
) -> OtherChoices:
    """Compare what a side chooses with what the model does. moved: by rounding, as of `Replay`."""
    others = []
    total = 0
    for call, scores in plain.scores.items():
        if not other.makes(call, scores):
            continue
        exact = scores.double()
        by_rounding = moved[call]
        is_ours = _as_set(plain.ids[call], scores)
        is_theirs = _as_set(other.ids[call], scores)
        # no choice if all candidates are taken
        total += int(((exact > -torch.inf) & ~is_ours).any(-1).sum())
        last, following = _cut(exact, is_ours)
        lowest, left_out = _cut(exact, is_theirs)
        # of more choices the model's last one counts, of fewer its next one
        gap = torch.fmax(left_out - lowest, torch.fmax(last - lowest, left_out - following))
        # no position's scores are known more exactly than half of them
        gap /= by_rounding.clamp_min(float(by_rounding.median())).clamp_min(TINY)
        for position, group in (is_ours != is_theirs).any(-1).nonzero().tolist():
            others.append((position, call[0], float(gap[position, group])))
    return OtherChoices(total, others)


def _as_set(ids: Tensor, scores: Tensor) -> Tensor:
    """Return whether each candidate is among the ids; -1 is none. [..., candidates]"""
    is_chosen = pad(torch.zeros_like(scores, dtype=torch.bool), (0, 1))
    is_chosen.scatter_(-1, torch.where(ids < 0, scores.shape[-1], ids), value=True)
    return is_chosen[..., :-1]


def _cut(scores: Tensor, is_chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Return the lowest score that was chosen, and the highest that was not."""
    lowest = scores.masked_fill(~is_chosen, torch.inf).amin(-1)
    return lowest, scores.masked_fill(is_chosen, -torch.inf).amax(-1)
