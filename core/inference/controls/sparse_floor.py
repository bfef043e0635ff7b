"""Rounding floor of lists: the model's own reorderings on a run's tokens, over the very tokens that both sides sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from ...errors import UsageError
from ...judging.judge_sparse import ListFloor
from ...runs.sparse.pairing import SparsePair
from ...runs.sparse.records import UNKNOWN_TOKEN
from ...runs.sparse_run import SparseRun
from ..models.model import LoadedModel
from ..models.torch_errors import foreign_errors_stop, quiet
from ..paths.paths import open_path, parse_path
from .reordering import reordered
from .rounding_floor import check_prompts, whole_side

SEEDS = range(4)


def floor_of_lists(
    loaded: LoadedModel,
    run: SparseRun,
    pair: SparsePair,
    *,
    seeds: Sequence[int] = SEEDS,
    on_progress: Callable[[str], None] | None = None,
) -> ListFloor:
    """Mean squares at every compared position, over the tokens that both sides sent: of the pair, of the model's
    reorderings against its plain prefill, and of each side against that. Differences of log-probabilities, or logits.

    UsageError where the run does not say its tokens by id, or a token is beyond the model's vocabulary.
    """
    prompts = _prompts(run, pair)
    check_prompts(loaded, prompts)
    if (largest := max(int(place.reference.token_ids.max(initial=0)) for place in pair.positions)) >= loaded.vocab_size:
        raise UsageError(f"model '{loaded.name}' has {loaded.vocab_size:,} tokens, and the run token {largest:,}.")
    of_prompt: dict[int, list[int]] = {}
    for index, place in enumerate(pair.positions):
        of_prompt.setdefault(place.prompt, []).append(index)
    floor = np.zeros(len(pair.positions))
    own = np.zeros((2, len(pair.positions)))
    apart = np.zeros(len(pair.positions))
    steps = parse_path("prefill")
    with (
        quiet(),
        torch.inference_mode(),
        foreign_errors_stop("the floor of a run of lists", "choose a smaller model or another device"),
        open_path(steps, loaded) as forward,
    ):
        for prompt, places in of_prompt.items():
            if on_progress is not None:
                on_progress(f"{len(seeds)} reorderings of prompt {prompt} in {loaded.dtype}")
            plain = whole_side(forward, prompts[prompt])
            changed = []
            for seed in seeds:
                with reordered(loaded.model, seed):
                    changed.append(whole_side(forward, prompts[prompt]))
            for index in places:
                place = pair.positions[index]
                ids, here, there = np.intersect1d(
                    place.reference.token_ids, place.variant.token_ids, assume_unique=True, return_indices=True
                )
                if not len(ids):
                    continue
                sent = place.reference.values[here], place.variant.values[there]
                model = _values(plain[place.position], ids, pair.values)
                moved = [_values(each[place.position], ids, pair.values) - model for each in changed]
                floor[index] = float(np.mean([(one**2).mean() for one in moved]))
                own[:, index] = [float(((side - model) ** 2).mean()) for side in sent]
                apart[index] = float(((sent[1] - sent[0]) ** 2).mean())
    return ListFloor(f"'{loaded.name}'", loaded.dtype, apart, floor, own)


def _prompts(run: SparseRun, pair: SparsePair) -> list[tuple[int, ...]]:
    """Tokens of each prompt up to the last compared position of it; one token where none is compared."""
    ends: dict[int, int] = {}
    for place in pair.positions:
        ends[place.prompt] = max(ends.get(place.prompt, 0), place.position + 1)
    found = []
    for number, response in enumerate(run.sides[0].responses):
        tokens = response.tokens[: ends.get(number, 1)]
        if pair.keys != "token_id" or UNKNOWN_TOKEN in tokens or not tokens or len(tokens) < ends.get(number, 1):
            raise UsageError("this run does not say all tokens that were read by their ids, so no model can read them.")
        found.append(tokens)
    return found


def _values(row: torch.Tensor, ids: NDArray[np.int64], values: str) -> NDArray[np.float64]:
    """Values of some tokens of a row of logits, as an engine sends them: log-probabilities in float32, or logits."""
    logits = row.float()
    sent = logits if values == "logit" else torch.log_softmax(logits, -1)
    found = sent[torch.from_numpy(ids).to(sent.device)].double().cpu().numpy()
    return np.exp(found) if values == "prob" else found
