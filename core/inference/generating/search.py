"""Search for prompts on which two paths choose different tokens: flips are rare.

Only each position's argmax and margin are computed. The prompts with flips are captured afterwards
like any others. Prompts run on the reference and then on the variant in batches, because a path may
have to change the whole model first (dtype, number of threads).
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ...errors import CaptureError, UsageError
from ...progress import Progress, no_progress
from ..capture.capture import check_paths, torch_errors_stop
from ..models.model import Ids, Inputs, LoadedModel
from ..paths.paths import Path, open_path, parse_path
from .generation import (
    Scores,
    best_and_margin,
    check_continuing,
    continue_all,
    tokens_with_room,
)

# prompts: a first flip is reported early, a costly change of the model is rare
_FIRST_BATCH, _LARGEST_BATCH = 4, 64


@dataclass(frozen=True)
class Flip:
    """A place where two paths choose different tokens: index of the prompt, position (in
    continuations, of the last common token), both tokens, both margins in logits, None if not
    finite.
    """

    prompt: int
    position: int
    reference_token: int
    variant_token: int
    reference_margin: float | None
    variant_margin: float | None


@dataclass(frozen=True)
class SearchResult:
    """Result of a search. closest: smallest margin without a flip, in logits; positions: number
    compared; skipped: prompts that the model cannot take, with the reason; reason: why it ended, in
    words.
    """

    flips: tuple[Flip, ...]
    prompts: int
    positions: int
    seconds: float
    closest: float | None
    skipped: tuple[tuple[int, str], ...]
    reason: str

    @property
    def flipped_prompts(self) -> tuple[int, ...]:
        """Indices of the prompts with a flip, in order."""
        return tuple(dict.fromkeys(flip.prompt for flip in self.flips))


def search(
    loaded: LoadedModel,
    prompts: Inputs,
    reference: str,
    variant: str,
    *,
    flips: int = 1,
    minutes: float | None = None,
    tokens: int = 0,
    seed: int = 0,
    on_progress: Progress = no_progress,
) -> SearchResult:
    """Search the prompts in order until `flips` of them have a flip, the minutes are spent, or all
    were searched.

    tokens: 0 compares the argmax at every position of the prompt; else both sides continue it
    greedily by up to this many.
    """
    began = time.monotonic()
    if flips < 1 or tokens < 0 or (minutes is not None and not 0 < minutes < float("inf")):
        raise UsageError(
            "a search needs --flips of at least 1, --max-minutes above 0 and --tokens of at"
            " least 0.",
        )
    paths = (parse_path(reference), parse_path(variant))
    if paths[0] == paths[1]:
        raise UsageError(f"reference and variant are both '{paths[0]}'; choose another variant.")
    check_paths(loaded, paths, None)
    if loaded.encoder is not None:
        raise CaptureError(f"path '{paths[0]}' gives no tokens that could flip; choose prefill.")
    if tokens:
        check_continuing(loaded, paths, None)
    usable, skipped = _usable(loaded, prompts, paths, tokens)
    if not usable:
        raise CaptureError(
            f"no prompt can be searched; the first: {skipped[0][1]}" if skipped else "no prompts.",
        )
    results: list[Flip] = []
    hits = count = positions = 0
    closest = torch.inf
    limit = torch.inf if minutes is None else 60 * minutes

    def seconds_left() -> float:
        return limit - (time.monotonic() - began)

    scores_of = partial(_scores, loaded, tokens, seed)
    for number, ids, ours, theirs in _compare(usable, paths, scores_of, seconds_left):
        pairs = enumerate(zip(ours[0], theirs[0], strict=False))
        places = [place for place, (a, b) in pairs if a != b]
        first = len(ids) - 1 if tokens else 0
        # continuations differ after the first one anyway
        for place in places[: 1 if tokens else None]:
            tokens_here = ours[0][place], theirs[0][place]
            margins = _finite(ours[1][place]), _finite(theirs[1][place])
            results.append(Flip(number, first + place, *tokens_here, *margins))
        count += 1
        if places:
            hits += 1
        else:
            # a comparison with NaN is false
            closest = min(
                [closest, *(margin for margin in (*ours[1], *theirs[1]) if margin < closest)]
            )
        positions += places[0] + 1 if tokens and places else len(ours[0])
        on_progress(f"{hits} with a flip", count, len(usable), "prompts")
        if hits >= flips or seconds_left() <= 0:
            break
    reason = (
        "a prompt with a flip was found" if hits == 1 else f"{hits} prompts with a flip were found"
    )
    if hits < flips:
        is_whole = count == len(usable)
        reason = "all prompts were tried" if is_whole else f"the {minutes:g} minutes were spent"
    return SearchResult(
        tuple(results),
        count,
        positions,
        time.monotonic() - began,
        _finite(closest),
        tuple(skipped),
        reason,
    )


def _compare(
    usable: Sequence[tuple[int, Ids]],
    paths: tuple[Path, Path],
    scores_of: Callable[[Path, Sequence[Ids]], Iterator[Scores]],
    seconds_left: Callable[[], float],
) -> Iterator[tuple[int, Ids, Scores, Scores]]:
    """Yield (index of a prompt, its tokens, scores of each path), in batches of 4, 8, 16, 32, 64,
    64, ... prompts.
    """
    start, size = 0, _FIRST_BATCH
    while start < len(usable) and seconds_left() > 0:
        batch = usable[start : start + size]
        prompts = [ids for _, ids in batch]
        half = seconds_left() / 2
        references = []
        for scores in scores_of(paths[0], prompts):
            references.append(scores)
            if seconds_left() < half:
                # the variant needs the other half
                break
        variants = scores_of(paths[1], prompts[: len(references)])
        # the variants first, so that their path is exhausted and the model restored
        for theirs, ours, (number, ids) in zip(variants, references, batch, strict=False):
            yield number, ids, ours, theirs
        start += size
        size = min(2 * size, _LARGEST_BATCH)


def _finite(margin: float) -> float | None:
    """Return a margin in logits; None if it is not finite."""
    return margin if abs(margin) < torch.inf else None


def _scores(
    loaded: LoadedModel,
    tokens: int,
    seed: int,
    path: Path,
    prompts: Sequence[Ids],
) -> Iterator[Scores]:
    """Yield the tokens that a path chooses and their margins, computed on the device: of a
    continuation, or at every position.
    """
    if tokens:
        yield from continue_all(path, loaded, prompts, tokens, seed)
        return
    scored: list[tuple[Tensor, Tensor]] = []
    torch.manual_seed(seed)
    with torch_errors_stop(path), open_path(path, loaded) as run:
        for ids in prompts:
            scored.clear()
            run(ids, lambda _, logits: scored.append(best_and_margin(logits)))
            chosen, margins = (
                tuple(torch.cat(each).tolist()) for each in zip(*scored, strict=True)
            )
            yield chosen, margins


def _usable(
    loaded: LoadedModel,
    prompts: Inputs,
    paths: Sequence[Path],
    tokens: int,
) -> tuple[list[tuple[int, Ids]], list[tuple[int, str]]]:
    """Return (index, token ids) of the prompts that both paths can run, and the others with the
    reason.
    """
    usable = []
    skipped = []
    for number, prompt in enumerate(prompts):
        label = f"prompt {number + 1} of {len(prompts)}"
        try:
            ids = tokens_with_room(loaded, prompt, label, tokens)
            check_paths(loaded, paths, len(ids))
        except CaptureError as error:
            skipped.append((number, str(error)))
        else:
            usable.append((number, ids))
    return usable, skipped
