"""Noise floor of lists: the model's own reorderings on a run's tokens, over the tokens that both sides sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

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
from ..paths.batch import Run
from ..paths.paths import open_path, parse_path
from .reordering import reordered
from .rounding_floor import check_prompts

_SEEDS = range(4)
Tell = Callable[[str], None]


def floor_of_pair(
    loaded: LoadedModel, pair: ListPair, sides: Sequence[ListSide], on_progress: Tell | None = None
) -> ListFloor:
    """Measure a model's floor at every compared position of a pair. sides: the reference and the variant."""
    rows = rows_of_lists(pair, sides[0], sides[1], len(pair.positions))
    return floor_of_rows(loaded, tokens_read(pair, sides[0]), rows.rows, rows.values, on_progress)


def tokens_read(pair: ListPair, reference: ListSide) -> list[tuple[int, ...]]:
    """Return the tokens of each prompt up to its last compared position. UsageError if the run lacks their ids."""
    ends = [1] * len(reference.responses)
    for place in pair.positions:
        ends[place.prompt] = max(ends[place.prompt], place.position + 1)
    prompts = [sequence(response)[:end] for response, end in zip(reference.responses, ends, strict=True)]
    is_known = all(
        len(tokens) == end and UNKNOWN_TOKEN not in tokens for tokens, end in zip(prompts, ends, strict=True)
    )
    if pair.keys != "token_id" or not is_known:
        raise UsageError("this run does not hold all tokens that were read by their ids, so no model can read them.")
    return prompts


def floor_of_rows(
    loaded: LoadedModel,
    prompts: Sequence[tuple[int, ...]],
    rows: Sequence[RowPair],
    values: str,
    on_progress: Tell | None = None,
) -> ListFloor:
    """Measure mean squares at every row: of the pair, of reorderings of the model to its prefill, and of sides to that.

    prompts: the tokens that were read, up to the last row's at least; values: 'logit' or 'logprob'.
    """
    check_prompts(loaded, prompts)
    rows = [row for row in rows if len(row.token_ids)]
    largest = max(*(int(row.token_ids.max()) for row in rows), *map(max, prompts))
    if largest >= loaded.vocab_size:
        raise UsageError(f"model '{loaded.name}' has {loaded.vocab_size:,} tokens, and the run token {largest:,}.")
    apart, floor, own = [], [], []
    with (
        quiet(),
        torch.inference_mode(),
        foreign_errors_stop("the model's floor on a run", "choose a smaller model or another device"),
        open_path(parse_path("prefill"), loaded) as forward,
    ):
        for prompt, group in groupby(rows, lambda row: row.prompt):
            if on_progress is not None:
                on_progress(f"{len(_SEEDS)} reorderings of prompt {prompt} in {loaded.dtype}")
            wanted = {row.position: row for row in group}
            plain, changed = _values_of(forward, prompts[prompt], wanted, values), []
            for seed in _SEEDS:
                with reordered(loaded.model, seed):
                    changed.append(_values_of(forward, prompts[prompt], wanted, values))
            for position, row in wanted.items():
                model = plain[position]
                apart.append(((row.y - row.x) ** 2).mean())
                floor.append(np.mean([((each[position] - model) ** 2).mean() for each in changed]))
                own.append([((side - model) ** 2).mean() for side in (row.x, row.y)])
    return ListFloor(f"'{loaded.name}'", loaded.dtype, np.array(apart), np.array(floor), np.array(own).T)


def _values_of(
    run: Run, prompt: Sequence[int], wanted: Mapping[int, RowPair], values: str
) -> dict[int, NDArray[np.float64]]:
    """Return the wanted rows' values, as an engine sends them: logits, or log-probabilities in float32."""
    read = {}

    def keep(position: int, logits: torch.Tensor) -> None:
        for at, row in enumerate(logits, start=position):
            if at in wanted:
                sent = row.float() if values == "logit" else torch.log_softmax(row.float(), -1)
                read[at] = sent[torch.from_numpy(wanted[at].token_ids).to(sent.device)].double().cpu().numpy()

    run(prompt, keep)
    return read
