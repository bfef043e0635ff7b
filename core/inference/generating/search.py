"""Look for prompts on which two paths choose another token: flips are rare, and finding one is otherwise done by hand.

Only each position's argmax and margin are kept of a prompt, so a search stores nothing until it has found something;
the prompts it found are captured afterwards like any others. Prompts go down the reference and then down the variant in
batches, because a path may have to change the whole model first (another dtype, another number of threads).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from ...errors import CaptureError, UsageError
from ..capture.capture import check_paths, tokens_of, torch_errors_stop
from ..models.model import LoadedModel
from ..models.torch_errors import quiet
from ..paths.paths import Path, open_path, parse_path, rows_of_a_chunk
from .generation import best_and_margin, continue_all

_FIRST_BATCH, _LARGEST_BATCH = (
    4,
    64,
)  # prompts: a first flip is told soon, and a costly change of the model is made seldom


@dataclass(frozen=True)
class Flip:
    """A place where two paths choose another token: index of the prompt among those given, position, both tokens, both
    margins in logits.

    In a search over continuations the position is that of the last common token. A margin that is no finite number is
    None.
    """

    prompt: int
    position: int
    reference_token: int
    variant_token: int
    reference_margin: float | None = None
    variant_margin: float | None = None


@dataclass(frozen=True)
class SearchResult:
    """The result of a search. `closest` is the smallest margin met where nothing flipped, in logits, None where none
    was measured.

    positions: at which the two were compared; skipped: prompts that the model cannot take, with the reason; why: in
    words.
    """

    flips: tuple[Flip, ...]
    prompts: int
    positions: int
    seconds: float
    closest: float | None
    skipped: tuple[tuple[int, str], ...]
    why: str

    @property
    def flipped_prompts(self) -> tuple[int, ...]:
        """Indices of the prompts with a flip, in the order they were found."""
        return tuple(dict.fromkeys(flip.prompt for flip in self.flips))


@dataclass(frozen=True)
class SearchProgress:
    """Progress of a search."""

    prompts: int
    prompts_total: int
    positions: int
    flips: int
    seconds: float


@dataclass(frozen=True)
class _Scored:
    """Scores of one prompt down one path: argmax and margin (logits) by position. [positions] each, on the host."""

    tokens: torch.Tensor
    margins: torch.Tensor


def search(
    loaded: LoadedModel,
    prompts: Sequence[str | Sequence[int]],
    reference: str,
    variant: str,
    *,
    flips: int = 1,
    minutes: float | None = None,
    tokens: int = 0,
    seed: int = 0,
    on_progress: Callable[[SearchProgress], None] | None = None,
) -> SearchResult:
    """Try the prompts in order until so many of them have a flip, the minutes are spent, or all were tried.

    `tokens` = 0 compares the argmax at every position of the prompt; otherwise both sides continue the prompt greedily
    by up to so many tokens, and a prompt counts where they part. A prompt too long or empty is skipped, not an end of
    the search.
    """
    check_budget(flips, minutes, tokens)
    paths = (parse_path(reference), parse_path(variant))
    if paths[0] == paths[1]:
        raise UsageError(f"path '{paths[0]}' is searched against itself; name another variant.")
    check_paths(loaded, paths, None)
    for path in paths if tokens else ():
        reason = path.cannot_continue(loaded)
        if reason:
            raise CaptureError(f"path '{path}': {reason}.")
    usable, skipped = _usable(loaded, prompts, paths, tokens)
    if not usable:
        raise CaptureError(
            f"no prompt can be searched; the first: {skipped[0][1]}" if skipped else "no prompt was given."
        )
    state = _State(flips, minutes, len(usable))
    compare = _by_continuation(loaded, paths, tokens, seed) if tokens else _by_score(loaded, paths, seed)
    for batch in _batches(usable):
        if state.is_over:
            break
        for found, positions, closest in compare(batch, state):
            state.add(found, positions, closest)
            if on_progress is not None:
                on_progress(state.progress)
            if state.is_over:
                break
    return state.result(skipped)


def check_budget(flips: int, minutes: float | None, tokens: int) -> None:
    """UsageError where a search of these could find nothing, or never end."""
    if flips < 1 or tokens < 0 or (minutes is not None and not 0 < minutes < float("inf")):
        raise UsageError(
            "a search looks for at least one flip, in more than no time; check --flips, --max-minutes and --tokens."
        )


class _State:
    """Counts what was seen, and says when it is enough."""

    def __init__(self, wanted: int, minutes: float | None, total: int) -> None:
        self._wanted, self._total = wanted, total
        self._began = time.monotonic()
        self._seconds = None if minutes is None else minutes * 60
        self._flips: list[Flip] = []
        self._prompts = self._positions = 0
        self._closest: float | None = None

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    @property
    def seconds_left(self) -> float | None:
        return None if self._seconds is None else self._seconds - self.seconds

    @property
    def is_late(self) -> bool:
        left = self.seconds_left
        return left is not None and left <= 0

    @property
    def _hits(self) -> int:
        return len({flip.prompt for flip in self._flips})

    @property
    def is_over(self) -> bool:
        return self._hits >= self._wanted or self.is_late

    @property
    def progress(self) -> SearchProgress:
        return SearchProgress(self._prompts, self._total, self._positions, self._hits, self.seconds)

    def add(self, found: Sequence[Flip], positions: int, closest: float | None) -> None:
        self._prompts += 1
        self._positions += positions
        self._flips += found
        if closest is not None and not found:
            self._closest = closest if self._closest is None else min(self._closest, closest)

    def result(self, skipped: Sequence[tuple[int, str]]) -> SearchResult:
        if self._hits >= self._wanted:
            why = f"{self._hits} prompts with a flip were found" if self._hits > 1 else "a prompt with a flip was found"
        elif self._prompts < self._total:
            why = f"the {(self._seconds or 0) / 60:g} minutes were spent"
        else:
            why = "all prompts were tried"
        return SearchResult(
            tuple(self._flips), self._prompts, self._positions, self.seconds, self._closest, tuple(skipped), why
        )


_Compared = Iterator[tuple[list[Flip], int, float | None]]
_Compare = Callable[[Sequence[tuple[int, tuple[int, ...]]], _State], _Compared]


def _by_score(loaded: LoadedModel, paths: tuple[Path, Path], seed: int) -> _Compare:
    """Every position of the prompt, teacher-forced."""

    def compare(batch: Sequence[tuple[int, tuple[int, ...]]], state: _State) -> _Compared:
        began, budget = time.monotonic(), state.seconds_left
        references: list[_Scored] = []
        for scored in _scores(loaded, paths[0], [ids for _, ids in batch], seed):
            references.append(scored)
            if budget is not None and time.monotonic() - began > budget / 2:
                break  # the variant takes its time too
        variants = _scores(loaded, paths[1], [ids for _, ids in batch[: len(references)]], seed)
        for (number, ids), ours, theirs in zip(batch, references, variants, strict=False):
            places = (ours.tokens != theirs.tokens).nonzero()[:, 0].tolist()
            found = [
                Flip(
                    number,
                    place,
                    int(ours.tokens[place]),
                    int(theirs.tokens[place]),
                    _finite(float(ours.margins[place])),
                    _finite(float(theirs.margins[place])),
                )
                for place in places
            ]
            closest = float(torch.minimum(ours.margins, theirs.margins).nan_to_num(torch.inf).min())
            yield found, len(ids), closest if closest < torch.inf else None
            if state.is_late:
                return

    return compare


def _finite(margin: float) -> float | None:
    """Value in logits; None where it is no finite number."""
    return margin if abs(margin) < torch.inf else None


def _scores(loaded: LoadedModel, path: Path, prompts: Sequence[Sequence[int]], seed: int) -> Iterator[_Scored]:
    """Argmax (lowest id on ties, NaN never wins) and margin of every position; computed on the device, a piece at a
    time.
    """
    with quiet(), torch.inference_mode(), torch_errors_stop(path):
        torch.manual_seed(seed)
        with open_path(path, loaded) as run:
            for ids in prompts:
                best = _Best(rows_of_a_chunk(loaded))
                run(ids, best.add)
                yield best.scored()


class _Best:
    """Best tokens of one prompt. Pieces of a few rows wait until they are about `rows`: four kernels for hundreds of
    steps instead of for each.
    """

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._waiting: list[torch.Tensor] = []
        self._found: list[tuple[torch.Tensor, torch.Tensor]] = []

    def add(self, _: int, logits: torch.Tensor) -> None:
        self._waiting.append(logits)
        if sum(map(len, self._waiting)) >= self._rows:
            self._score()

    def scored(self) -> _Scored:
        if self._waiting:
            self._score()
        tokens, margins = zip(*self._found, strict=True)
        return _Scored(torch.cat(tokens).cpu(), torch.cat(margins).cpu())

    def _score(self) -> None:
        self._found.append(best_and_margin(torch.cat(self._waiting)))
        self._waiting.clear()


def _by_continuation(loaded: LoadedModel, paths: tuple[Path, Path], tokens: int, seed: int) -> _Compare:
    """Free greedy continuations: a prompt counts where the two part."""

    def compare(batch: Sequence[tuple[int, tuple[int, ...]]], state: _State) -> _Compared:
        began, budget = time.monotonic(), state.seconds_left
        references: list[tuple[tuple[int, ...], tuple[float, ...]]] = []
        for made in continue_all(paths[0], loaded, [ids for _, ids in batch], tokens, seed=seed):
            references.append(made)
            if budget is not None and time.monotonic() - began > budget / 2:
                break
        variants = continue_all(paths[1], loaded, [ids for _, ids in batch[: len(references)]], tokens, seed=seed)
        for (number, ids), (ours, our_margins), (theirs, their_margins) in zip(
            batch, references, variants, strict=False
        ):
            step = next((n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
            found = []
            if step is not None:
                margins = (_finite(our_margins[step]), _finite(their_margins[step]))
                found.append(Flip(number, len(ids) - 1 + step, ours[step], theirs[step], *margins))
            known = [margin for margin in (*our_margins, *their_margins) if margin < torch.inf]
            yield found, (len(ours) if step is None else step + 1), min(known, default=None)
            if state.is_late:
                return

    return compare


def _usable(
    loaded: LoadedModel, prompts: Sequence[str | Sequence[int]], paths: Sequence[Path], tokens: int
) -> tuple[list[tuple[int, tuple[int, ...]]], list[tuple[int, str]]]:
    """(index, token ids) of the prompts that both paths take, and the others with the reason."""
    usable, skipped = [], []
    for number, prompt in enumerate(prompts):
        where = f"prompt {number + 1} of {len(prompts)}"
        try:
            ids = tokens_of(loaded, prompt, where)
            if loaded.context is not None and len(ids) + tokens > loaded.context:
                raise CaptureError(f"{where} has {len(ids)} tokens, too many for {tokens} more in {loaded.context}.")
            check_paths(loaded, paths, len(ids))
        except CaptureError as error:
            skipped.append((number, str(error)))
        else:
            usable.append((number, ids))
    return usable, skipped


def _batches(prompts: Sequence[tuple[int, tuple[int, ...]]]) -> Iterator[Sequence[tuple[int, tuple[int, ...]]]]:
    """Growing: 4, 8, 16, 32, 64, 64, ..."""
    start, size = 0, _FIRST_BATCH
    while start < len(prompts):
        yield prompts[start : start + size]
        start += size
        size = min(2 * size, _LARGEST_BATCH)
