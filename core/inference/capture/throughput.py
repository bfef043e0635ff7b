"""Throughput of paths: tokens a second by batch size, the paths taking turns."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ...errors import CaptureError, UsageError
from ...runs.tables.remedies import NARROW
from ..models.model import LoadedModel
from ..models.torch_errors import foreign_errors_stop
from ..paths.batch import ignore
from ..paths.grammar import Step
from ..paths.modifiers import MODIFIERS
from ..paths.neighbours import neighbour_rows
from ..paths.paths import Path, open_path, parse_path

TOKENS = 32
# with fewer no interval holds the median of the turns with 95 %: all of n turns lie on one side of it with 2^(1 - n)
LEAST_TURNS = 6
MOST_TURNS = 20
LONGEST_SECONDS = 20.0  # of turns beyond LEAST_TURNS
_OUTSIDE = 0.05

Clock = Callable[[], float]
Contender = Callable[[], float]
"""Runs once, and gives the seconds of what counts."""


@dataclass(frozen=True)
class Timing:
    """Timing of one contender among others. seconds: of every turn that counts; share: of the throughput of the one it
    is held against, as the ratio of their median seconds; low, high: between these the median of the turns' own ratios
    lies with 95 %, None of fewer than LEAST_TURNS turns.
    """

    seconds: tuple[float, ...]
    share: float
    low: float | None
    high: float | None

    @property
    def median_seconds(self) -> float:
        return statistics.median(self.seconds)

    @property
    def is_narrow(self) -> bool:
        return self.low is not None and self.high is not None and self.high - self.low <= NARROW * self.share


def by_turns(
    contenders: Sequence[Contender],
    against: Sequence[int],
    *,
    turns: int | None = None,
    longest: float = LONGEST_SECONDS,
    clock: Clock = time.perf_counter,
    on_turn: Callable[[int], None] = lambda _: None,
) -> list[Timing]:
    """All contenders once a turn, one after another, so that a busy moment of the machine meets all of them; a turn
    before the first does not count. against: the contender that each one's share is of.

    turns: so many; None: LEAST_TURNS, and more until every share is narrow, up to MOST_TURNS or `longest` seconds.
    """
    taken: list[list[float]] = [[] for _ in contenders]
    for run in contenders:
        run()
    began = clock()
    while True:
        on_turn(len(taken[0]) + 1)
        for run, seconds in zip(contenders, taken, strict=True):
            seconds.append(run())
        count = len(taken[0])
        if count < (LEAST_TURNS if turns is None else turns):
            continue
        found = [timing_of(taken[other], own) for own, other in zip(taken, against, strict=True)]
        is_over = turns is not None or count >= MOST_TURNS or clock() - began > longest
        if is_over or all(timing.is_narrow for timing in found):
            return found


def timing_of(plain: Sequence[float], own: Sequence[float]) -> Timing:
    """Seconds of the same turns, of what is held against and of what is held.

    The interval is that of the sign test: of n turns the k-th smallest and k-th largest ratio hold the median but with
    a probability of 2 P(binomial(n, 1/2) < k), whatever the distribution (Conover, Practical Nonparametric Statistics,
    3.2). It holds the share too: a ratio of medians lies between the smallest and the largest ratio.
    """
    share = statistics.median(plain) / statistics.median(own)
    if own is plain:
        return Timing(tuple(own), 1.0, 1.0, 1.0)
    ratios = sorted(before / after for before, after in zip(plain, own, strict=True))
    count = len(ratios)
    if count < LEAST_TURNS:
        return Timing(tuple(own), share, None, None)
    inner, tail = 0, 1.0  # tail: the sum of C(count, i) for i up to `inner`
    while 2 * (tail + math.comb(count, inner + 1)) <= _OUTSIDE * 2**count:
        inner += 1
        tail += math.comb(count, inner)
    return Timing(tuple(own), share, min(share, ratios[inner]), max(share, ratios[-1 - inner]))


@dataclass(frozen=True)
class Throughput:
    """Throughput of one path at one batch size.

    tokens: of all rows together, in one turn; seconds: median of the turns, all of which are in `round_seconds`; share:
    of the tokens a second of the first path at the same batch size; share_low, share_high: see Timing.
    """

    path: str
    batch: int
    tokens: int
    seconds: float
    round_seconds: tuple[float, ...]
    tokens_per_second: float
    share: float
    share_low: float | None
    share_high: float | None


def throughput(
    loaded: LoadedModel,
    paths: Sequence[str],
    batches: Sequence[int],
    *,
    tokens: int = TOKENS,
    rounds: int | None = None,
    longest: float = LONGEST_SECONDS,
    against: Sequence[int] = (),
    on_progress: Callable[[str], None] | None = None,
    clock: Clock = time.perf_counter,
) -> list[Throughput]:
    """Every path at every batch size, over prompts of `tokens` tokens of real text; by batch size, in the order of the
    paths.

    `prefill` computes all of a prompt's tokens in one forward, `decode` one token of every row a forward: its tokens a
    second are those of generation with a cache that grows from nothing to `tokens`. The paths take turns (by_turns),
    `rounds` or as many as it takes in `longest` seconds a batch size. against: the path that each one's share is of;
    the first, where nothing is said.
    """
    parsed = [parse_path(path) for path in paths]
    _check(parsed, batches, tokens, rounds)
    ids = neighbour_rows(loaded.tokenizer, [0] * tokens, 1)[0].tolist()
    wanted = [(batch, [_with_batch(path, batch) for path in parsed]) for batch in batches]
    for _, at_batch in wanted:
        for path in at_batch:
            refusal = path.refusal(loaded, tokens)
            if refusal:
                raise CaptureError(f"path '{path}': {refusal}.")
    found: list[Throughput] = []
    for batch, at_batch in wanted:

        def tell(turn: int, batch: int = batch) -> None:
            if on_progress is not None:
                on_progress(f"batch of {batch}, turn {turn}")

        contenders = [lambda path=path: walk_seconds(loaded, path, ids, clock) for path in at_batch]
        held_against = against or [0] * len(parsed)
        timings = by_turns(contenders, held_against, turns=rounds, longest=longest, clock=clock, on_turn=tell)
        found += [
            Throughput(
                str(asked),
                batch,
                batch * tokens,
                timing.median_seconds,
                timing.seconds,
                batch * tokens / timing.median_seconds,
                timing.share,
                timing.low,
                timing.high,
            )
            for asked, timing in zip(parsed, timings, strict=True)
        ]
    return found


def _check(paths: Sequence[Path], batches: Sequence[int], tokens: int, rounds: int | None) -> None:
    if not paths or not batches:
        raise UsageError("throughput takes at least one path and one batch size.")
    if min(batches) < 1 or tokens < 1 or (rounds is not None and rounds < 1):
        raise UsageError("batch sizes, tokens and rounds are whole numbers of at least 1.")
    for path in paths:
        if path.rows > 1:
            raise UsageError(f"path '{path}' has a batch of its own; name the batch sizes beside the paths.")


def _with_batch(path: Path, rows: int) -> Path:
    return path if rows == 1 else parse_path(str(Path(path.base, (*path.modifiers, Step("batch", (rows,))))))


def walk_seconds(loaded: LoadedModel, path: Path, ids: Sequence[int], clock: Clock = time.perf_counter) -> float:
    """Seconds of one walk along the path, its logits thrown away; making the model ready for it is not counted."""
    with (
        foreign_errors_stop(f"path '{path}'", "choose a smaller batch"),
        torch.inference_mode(),
        open_path(path, loaded) as run,
    ):
        if any(MODIFIERS[step.name].is_one_piece for step in path.modifiers):
            run(ids, ignore)  # it is compiled anew in every open path, and that would be on the clock
        _wait(loaded)
        began = clock()
        run(ids, ignore)
        _wait(loaded)
        return clock() - began


def _wait(loaded: LoadedModel) -> None:
    if loaded.device.startswith("cuda"):
        torch.cuda.synchronize(loaded.device)
