"""What a path costs: tokens a second by batch size, the paths taking turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from core.errors import CaptureError, UsageError
from core.inference.edge import foreign_errors_stop
from core.inference.grammar import Step
from core.inference.models import LoadedModel
from core.inference.modifiers import MODIFIERS
from core.inference.neighbours import neighbour_rows
from core.inference.paths import Path, open_path, parse_path

ROUNDS = 5
TOKENS = 32


@dataclass(frozen=True)
class Throughput:
    """One path at one batch size.

    tokens: of all rows together, in one round; seconds: median of the rounds, all of which are in `round_seconds`; share: of the tokens a
    second of the first path at the same batch size.
    """

    path: str
    batch: int
    tokens: int
    seconds: float
    round_seconds: tuple[float, ...]
    tokens_per_second: float
    share: float


def throughput(
    loaded: LoadedModel,
    paths: Sequence[str],
    batches: Sequence[int],
    *,
    tokens: int = TOKENS,
    rounds: int = ROUNDS,
    on_progress: Callable[[str], None] | None = None,
) -> list[Throughput]:
    """Every path at every batch size, over prompts of `tokens` tokens of real text; by batch size, in the order of the paths.

    `prefill` computes all of a prompt's tokens in one forward, `decode` one token of every row a forward: its tokens a second are those
    of generation with a cache that grows from nothing to `tokens`. Within a round each path runs once, so that a busy moment of the machine meets
    all of them; a round before the first is not counted.
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
        if on_progress is not None:
            on_progress(f"batch of {batch}")
        seconds: list[list[float]] = [[] for _ in at_batch]
        for number in range(rounds + 1):
            for path, taken in zip(at_batch, seconds, strict=True):
                one = _seconds(loaded, path, ids)
                if number:
                    taken.append(one)
        rates = [batch * tokens / statistics.median(taken) for taken in seconds]
        found += [
            Throughput(str(asked), batch, batch * tokens, statistics.median(taken), tuple(taken), rate, rate / rates[0])
            for asked, taken, rate in zip(parsed, seconds, rates, strict=True)
        ]
    return found


def _check(paths: Sequence[Path], batches: Sequence[int], tokens: int, rounds: int) -> None:
    if not paths or not batches:
        raise UsageError("throughput takes at least one path and one batch size.")
    if min(batches) < 1 or tokens < 1 or rounds < 1:
        raise UsageError("batch sizes, tokens and rounds are whole numbers of at least 1.")
    for path in paths:
        if path.rows > 1:
            raise UsageError(f"path '{path}' has a batch of its own; name the batch sizes beside the paths.")


def _with_batch(path: Path, rows: int) -> Path:
    return path if rows == 1 else parse_path(str(Path(path.base, (*path.modifiers, Step("batch", (rows,))))))


def _seconds(loaded: LoadedModel, path: Path, ids: Sequence[int]) -> float:
    """Of one walk along the path, its logits thrown away; making the model ready for the path is not counted."""
    with (
        foreign_errors_stop(f"path '{path}'", "choose a smaller batch"),
        torch.inference_mode(),
        open_path(path, loaded) as pieces_of,
    ):
        if any(MODIFIERS[step.name].is_one_piece for step in path.modifiers):
            for _ in pieces_of(ids):  # or the compiler would be on the clock
                pass
        _wait(loaded)
        began = time.perf_counter()
        for _ in pieces_of(ids):
            pass
        _wait(loaded)
        return time.perf_counter() - began


def _wait(loaded: LoadedModel) -> None:
    if loaded.device.startswith("cuda"):
        torch.cuda.synchronize(loaded.device)
