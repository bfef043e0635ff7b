"""Look for prompts on which two paths choose another token: flips are rare, and finding one is otherwise done by hand.

Only each position's argmax and margin are kept of a prompt, so a search stores nothing until it has found something;
the prompts it found are captured afterwards like any others. Prompts go down the reference and then down the variant in
batches, because a path may have to change the whole model first (another dtype, another number of threads).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...errors import CaptureError, UsageError
from ..capture.capture import check_paths, tokens_of, torch_errors_stop
from ..models.model import LoadedModel
from ..models.torch_errors import quiet
from ..paths.batch import ignore, rows_of_a_chunk
from ..paths.paths import Path, open_path, parse_path
from .generation import best_and_margin, continue_all

_FIRST_BATCH, _LARGEST_BATCH = 4, 64  # prompts: a first flip is told soon, a costly change of the model is made seldom
Ids = tuple[int, ...]
Made = tuple[Sequence[int], Sequence[float]]  # tokens that a path chose, and by which margins, in logits


@dataclass(frozen=True)
class Flip:
    """A place where two paths choose another token: index of the prompt, position (of continuations the last common
    token), both tokens, both margins in logits, None if no finite number.
    """

    prompt: int
    position: int
    reference_token: int
    variant_token: int
    reference_margin: float | None = None
    variant_margin: float | None = None


@dataclass(frozen=True)
class SearchResult:
    """The result of a search. closest: smallest margin where nothing flipped, in logits; positions: at which the two
    were compared; skipped: prompts that the model cannot take, with the reason; why: in words.
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
    on_progress: Callable[[int, int, int], Any] = ignore,
) -> SearchResult:
    """Try the prompts in order until so many have a flip, the minutes are spent, or all were tried.

    tokens: 0 compares the argmax at every position of the prompt; else both sides continue it greedily by up to so
    many. on_progress: is told (prompts with a flip, prompts done, prompts).
    """
    began = time.monotonic()
    if flips < 1 or tokens < 0 or (minutes is not None and not 0 < minutes < float("inf")):
        raise UsageError(
            "a search looks for at least one flip, in more than no time; check --flips, --max-minutes and --tokens."
        )
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
    found: list[Flip] = []
    hits = tried = positions = 0
    closest: float | None = None

    def seconds_left() -> float:
        return float("inf") if minutes is None else 60 * minutes - (time.monotonic() - began)

    def make(path: Path, batch: Sequence[Ids]) -> Iterator[Made]:
        if tokens:
            return continue_all(path, loaded, batch, tokens, seed=seed)
        return _scores(loaded, path, batch, seed)

    for number, ids, ours, theirs in _compared(usable, paths, make, seconds_left):
        places = [place for place, (a, b) in enumerate(zip(ours[0], theirs[0], strict=False)) if a != b]
        first = len(ids) - 1 if tokens else 0
        for place in places[: 1 if tokens else None]:  # continuations have nothing in common after the first
            margins = (_finite(ours[1][place]), _finite(theirs[1][place]))
            found.append(Flip(number, first + place, int(ours[0][place]), int(theirs[0][place]), *margins))
        hits, tried = hits + bool(places), tried + 1
        positions += places[0] + 1 if tokens and places else len(ours[0])
        if not places:
            smallest = [margin for margin in (*ours[1], *theirs[1], closest) if margin is not None]
            closest = min((margin for margin in smallest if margin < torch.inf), default=None)
        on_progress(hits, tried, len(usable))
        if hits >= flips or seconds_left() <= 0:
            break
    if hits >= flips:
        why = f"{hits} prompts with a flip were found" if hits > 1 else "a prompt with a flip was found"
    else:
        why = f"the {minutes or 0:g} minutes were spent" if tried < len(usable) else "all prompts were tried"
    spent = time.monotonic() - began
    return SearchResult(tuple(found), tried, positions, spent, closest, tuple(skipped), why)


def _compared(
    usable: Sequence[tuple[int, Ids]],
    paths: tuple[Path, Path],
    make: Callable[[Path, Sequence[Ids]], Iterator[Made]],
    seconds_left: Callable[[], float],
) -> Iterator[tuple[int, Ids, Made, Made]]:
    """(index of a prompt, its tokens, what each path made of it), in batches of 4, 8, 16, 32, 64, 64, ... prompts."""
    start, size = 0, _FIRST_BATCH
    while start < len(usable) and seconds_left() > 0:
        batch, half = usable[start : start + size], seconds_left() / 2
        references = []
        for made in make(paths[0], [ids for _, ids in batch]):
            references.append(made)
            if seconds_left() < half:
                break  # the variant takes its time too
        variants = make(paths[1], [ids for _, ids in batch[: len(references)]])
        # the variants first: they are exhausted then, and what their path changed of the model is put back
        for theirs, ours, (number, ids) in zip(variants, references, batch, strict=False):
            yield number, ids, ours, theirs
        start, size = start + size, min(2 * size, _LARGEST_BATCH)


def _finite(margin: float) -> float | None:
    """Value in logits; None where it is no finite number."""
    return margin if abs(margin) < torch.inf else None


def _scores(loaded: LoadedModel, path: Path, prompts: Sequence[Sequence[int]], seed: int) -> Iterator[Made]:
    """Argmax and margin of every position, computed on the device a chunk of rows at a time."""
    rows = rows_of_a_chunk(loaded)
    waiting: list[torch.Tensor] = []
    scored: list[tuple[torch.Tensor, torch.Tensor]] = []

    def add(_: int, logits: torch.Tensor) -> None:
        waiting.append(logits)
        if sum(map(len, waiting)) >= rows:
            score()

    def score() -> None:
        scored.append(best_and_margin(torch.cat(waiting)))
        waiting.clear()

    with quiet(), torch.inference_mode(), torch_errors_stop(path):
        torch.manual_seed(seed)
        with open_path(path, loaded) as run:
            for ids in prompts:
                scored.clear()
                run(ids, add)
                if waiting:
                    score()
                tokens, margins = (torch.cat(each).tolist() for each in zip(*scored, strict=True))
                yield tokens, margins


def _usable(
    loaded: LoadedModel, prompts: Sequence[str | Sequence[int]], paths: Sequence[Path], tokens: int
) -> tuple[list[tuple[int, Ids]], list[tuple[int, str]]]:
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
