"""Noise floor of lists: the model's own reorderings on a run's tokens, over the tokens that both
sides sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from ...errors import DumpError, UsageError
from ...evidence import Evidence
from ...judging.explain.rescoring import Rescoring, Routing, floor_evidence
from ...judging.explain.rows import PairRows, RowPair
from ...numerics.arrays import Floats
from ...progress import Progress
from ..models.model import LoadedModel
from ..models.module_state import restore_state
from ..models.torch_errors import model_errors_stop
from ..paths.sliced_head import columns_at_once, sliced_logits
from .reordering import reorder
from .replayed_experts import Scores, replay_experts
from .rounding_floor import check_prompts

_SEEDS = range(4)
_MOST_TOKENS = 1 << 12  # of a batch with its padding, about all that `rows_of_rollouts` takes
Ids = tuple[int, ...]
Prompts = Sequence[Ids] | Mapping[int, Ids]  # by number


def floor_of_rows(loaded: LoadedModel, prompts: Prompts, pair: PairRows, say: Progress) -> Evidence:
    """Compare rows of a pair with a model's noise floor. prompts: all tokens that were read, or
    more.
    """
    return floor_evidence(rescore(loaded, prompts, pair, say))


def rescore(loaded: LoadedModel, prompts: Prompts, pair: PairRows, say: Progress) -> Rescoring:
    """Score the tokens of a pair's rows by a model, and by its reorderings. prompts: all tokens
    that were read.
    """
    rows = [row for row in pair.rows if len(row.token_ids)]
    lengths: dict[int, int] = {}
    for row in rows:
        lengths[row.prompt] = max(lengths.get(row.prompt, 0), row.position + 1)
    ids_of = {prompt: prompts[prompt][:length] for prompt, length in lengths.items()}
    check_prompts(loaded, list(ids_of.values()))
    largest = max(*(int(row.token_ids.max()) for row in rows), *map(max, ids_of.values()))
    if largest >= loaded.vocab_size:
        raise UsageError(
            f"model '{loaded.name}' has {loaded.vocab_size:,} tokens, and the run token"
            f" {largest:,}.",
        )
    batches = list(_batches(ids_of))
    with model_errors_stop():

        def score(what: str) -> tuple[Floats, Floats]:
            scores: Scores = {}
            says = f"scoring by '{loaded.name}' in {loaded.dtype}, {what}"
            for number, batch in enumerate(batches):
                say(says, number, len(batches), "batches")
                scores |= _scores_of(loaded, batch, rows, pair.values)
            values, entropies = zip(
                *(scores[row.prompt, row.position] for row in rows), strict=True
            )
            return np.concatenate(values), np.array(entropies)

        plain, entropy = score("as it is")
        draws = []
        for seed in _SEEDS:
            with reorder(loaded.model, seed):
                draws.append(score(f"reordering {seed + 1} of {len(_SEEDS)}")[0])
        routing: Routing | str | None = None
        if pair.experts:
            score_again = partial(_scores_of, loaded, rows=rows, values=pair.values)
            try:
                routing = replay_experts(loaded, ids_of, pair, score_again)
            except DumpError as error:
                routing = str(error)
    return Rescoring(
        loaded.name,
        loaded.dtype,
        pair.names,
        rows,
        plain,
        np.array(draws),
        entropy,
        pair.places,
        routing,
    )


def _batches(ids_of: Mapping[int, Ids]) -> Iterator[dict[int, Ids]]:
    """Yield the prompts in batches, those of like lengths together.

    Reordering permutes all weights in every forward, so that forwards are few.
    """
    batch: dict[int, Ids] = {}
    for prompt, ids in sorted(ids_of.items(), key=lambda item: len(item[1])):
        if batch and (len(batch) + 1) * len(ids) > _MOST_TOKENS:
            yield batch
            batch = {}
        batch[prompt] = ids
    yield batch


def _scores_of(
    loaded: LoadedModel,
    batch: Mapping[int, Ids],
    rows: Sequence[RowPair],
    values: str,
) -> Scores:
    """Return the values of each row of the batch's prompts, as an engine sends them:
    log-probabilities in float32; and its entropy.
    """
    prompts = list(batch)
    texts = [torch.tensor(ids) for ids in batch.values()]
    # padding on the right, which no position before it sees
    ids = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True).to(loaded.device)
    arguments: dict[str, Any] = {"input_ids": ids, "use_cache": False}
    if len(set(map(len, texts))) > 1:
        masks = [torch.ones_like(text) for text in texts]
        padded = torch.nn.utils.rnn.pad_sequence(masks, batch_first=True)
        arguments["attention_mask"] = padded.to(loaded.device)
    scores: Scores = {}
    start = 0

    def add(logits: torch.Tensor) -> None:
        """Score the rows in a slice of the columns, all at once: reordering costs each operation a
        dispatch. [prompts, columns, vocab]
        """
        nonlocal start
        stop = start + logits.shape[1]
        here = [row for row in rows if row.prompt in batch and start <= row.position < stop]
        if here:
            numbers = [prompts.index(row.prompt) for row in here]
            of_rows = logits[numbers, [row.position - start for row in here]].float()
            logprobs = of_rows.log_softmax(-1)
            entropies = torch.special.entr(logprobs.exp()).sum(-1).tolist()
            counts = [len(row.token_ids) for row in here]
            tokens = np.concatenate([row.token_ids for row in here])
            chosen = of_rows if values == "logit" else logprobs
            chosen = chosen[np.repeat(np.arange(len(here)), counts), tokens].double().cpu()
            parts = np.split(chosen.numpy(), np.cumsum(counts)[:-1])
            for row, part, entropy in zip(here, parts, entropies, strict=True):
                scores[row.prompt, row.position] = part, entropy
        start = stop

    restore_state(loaded.start)
    size = columns_at_once(len(batch), loaded.vocab_size, loaded.torch_dtype.itemsize)
    if ids.shape[1] <= size:
        add(loaded.model(**arguments).logits)
    else:
        sliced_logits(loaded.model, arguments, 0, ids.shape[1], size, add)
    return scores
