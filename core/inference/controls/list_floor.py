"""Rounding floor of lists: the model's own reorderings on a run's tokens, over the very tokens that both sides sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from ...errors import UsageError
from ...judging.explain.rows import RowPair, rows_of_lists
from ...judging.judge_lists import ListFloor
from ...runs.topk.alignment import sequence
from ...runs.topk.pairing import ListPair
from ...runs.topk.records import UNKNOWN_TOKEN, ListSide
from ..models.model import LoadedModel
from ..models.torch_errors import foreign_errors_stop, quiet
from ..paths.paths import Run, open_path, parse_path
from .reordering import reordered
from .rounding_floor import check_prompts

SEEDS = range(4)


def floor_of_pair(
    loaded: LoadedModel,
    pair: ListPair,
    sides: Sequence[ListSide],
    *,
    seeds: Sequence[int] = SEEDS,
    on_progress: Callable[[str], None] | None = None,
) -> ListFloor:
    """Mean squares at every compared position of a pair, see `floor_of_rows`; sides: the reference and the variant.

    UsageError where the run does not say its tokens by id, or a token is beyond the model's vocabulary.
    """
    found = rows_of_lists(pair, sides[0], sides[1], len(pair.positions))
    rows = [row for row in found.rows if len(row.token_ids)]
    return floor_of_rows(loaded, tokens_read(pair, sides[0]), rows, found.values, seeds=seeds, on_progress=on_progress)


def tokens_read(pair: ListPair, reference: ListSide) -> list[tuple[int, ...]]:
    """Tokens of each prompt up to the last compared position of it; one token where none is compared. UsageError where
    the run does not say them by id.
    """
    ends: dict[int, int] = {}
    for place in pair.positions:
        ends[place.prompt] = max(ends.get(place.prompt, 0), place.position + 1)
    found = []
    for number, response in enumerate(reference.responses):
        tokens = sequence(response)[: ends.get(number, 1)]
        if pair.keys != "token_id" or UNKNOWN_TOKEN in tokens or len(tokens) < ends.get(number, 1):
            raise UsageError("this run does not say all tokens that were read by their ids, so no model can read them.")
        found.append(tokens)
    return found


def floor_of_rows(
    loaded: LoadedModel,
    prompts: Sequence[tuple[int, ...]],
    rows: Sequence[RowPair],
    values: str,
    *,
    seeds: Sequence[int] = SEEDS,
    on_progress: Callable[[str], None] | None = None,
) -> ListFloor:
    """Mean squares at every row, over the tokens that both sides sent: of the pair, of the model's reorderings against
    its plain prefill, and of each side against that. Differences of log-probabilities, or logits.

    prompts: the tokens that were read, up to the last row's at least; values: 'logit' or 'logprob'.
    """
    check_prompts(loaded, prompts)
    tokens = [int(row.token_ids.max(initial=0)) for row in rows] + [max(prompt) for prompt in prompts]
    if (largest := max(tokens)) >= loaded.vocab_size:
        raise UsageError(f"model '{loaded.name}' has {loaded.vocab_size:,} tokens, and the run token {largest:,}.")
    of_prompt: dict[int, dict[int, int]] = {}
    for index, row in enumerate(rows):
        if len(row.token_ids):
            of_prompt.setdefault(row.prompt, {})[row.position] = index
    floor, apart = np.zeros(len(rows)), np.zeros(len(rows))
    own = np.zeros((2, len(rows)))
    steps = parse_path("prefill")
    with (
        quiet(),
        torch.inference_mode(),
        foreign_errors_stop("the model's floor on a run", "choose a smaller model or another device"),
        open_path(steps, loaded) as forward,
    ):
        for prompt, places in of_prompt.items():
            if on_progress is not None:
                on_progress(f"{len(seeds)} reorderings of prompt {prompt} in {loaded.dtype}")
            wanted = {position: rows[index].token_ids for position, index in places.items()}
            plain = _values_of(forward, prompts[prompt], wanted, values)
            changed = []
            for seed in seeds:
                with reordered(loaded.model, seed):
                    changed.append(_values_of(forward, prompts[prompt], wanted, values))
            for position, index in places.items():
                row, model = rows[index], plain[position]
                floor[index] = float(np.mean([((each[position] - model) ** 2).mean() for each in changed]))
                own[:, index] = [float(((side - model) ** 2).mean()) for side in (row.x, row.y)]
                apart[index] = float(((row.y - row.x) ** 2).mean())
    return ListFloor(f"'{loaded.name}'", loaded.dtype, apart, floor, own)


def _values_of(
    run: Run, prompt: Sequence[int], wanted: Mapping[int, NDArray[np.int64]], values: str
) -> dict[int, NDArray[np.float64]]:
    """Values of the wanted tokens at each wanted position of a prompt. No whole row is kept."""
    found = {}

    def keep(position: int, logits: torch.Tensor) -> None:
        for at, row in enumerate(logits, start=position):
            if at in wanted:
                found[at] = _values(row, wanted[at], values)

    run(prompt, keep)
    return found


def _values(row: torch.Tensor, ids: NDArray[np.int64], values: str) -> NDArray[np.float64]:
    """Values of some tokens of a row of logits, as an engine sends them: log-probabilities in float32, or logits."""
    logits = row.float()
    sent = logits if values == "logit" else torch.log_softmax(logits, -1)
    return sent[torch.from_numpy(ids).to(sent.device)].double().cpu().numpy()
