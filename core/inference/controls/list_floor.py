"""Noise floor of lists: the model's own reorderings on a run's tokens, over the tokens that both
sides sent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import groupby

import numpy as np
import torch

from ...errors import UsageError
from ...judging.explain.rescoring import Floats, Rescoring, floor_evidence
from ...judging.explain.rows import PairRows, RowPair
from ...progress import Progress
from ...runs.file.evidence import Evidence
from ..models.model import LoadedModel
from ..models.module_state import restore_state
from ..paths.sliced_head import columns_at_once, sliced_logits
from .judge_model import model_errors_stop
from .reordering import reorder
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
    rows_of = {
        prompt: {row.position: row for row in group}
        for prompt, group in groupby(rows, lambda row: row.prompt)
    }
    ids_of = {
        prompt: prompts[prompt][: max(of_prompt) + 1] for prompt, of_prompt in rows_of.items()
    }
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
            says, done = f"scoring by '{loaded.name}' in {loaded.dtype}, {what}", 0
            scores: dict[int, tuple[Floats, Floats]] = {}
            for batch in batches:
                say(says, done, len(rows_of), "prompts")
                scores |= _scores_of(loaded, batch, rows_of, pair.values)
                done += len(batch)
            values, entropies = zip(*(scores[prompt] for prompt in rows_of), strict=True)
            return np.concatenate(values), np.concatenate(entropies)

        plain, entropy = score("as it is")
        draws = []
        for seed in _SEEDS:
            with reorder(loaded.model, seed):
                draws.append(score(f"reordering {seed + 1} of {len(_SEEDS)}")[0])
    return Rescoring(
        loaded.name,
        loaded.dtype,
        pair.names,
        rows,
        plain,
        np.array(draws),
        entropy,
        pair.places,
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
    rows_of: Mapping[int, Mapping[int, RowPair]],
    values: str,
) -> dict[int, tuple[Floats, Floats]]:
    """Return the values of the rows of each prompt one after another, as an engine sends them:
    log-probabilities in float32; and the entropy of each row.
    """
    lengths = [len(ids) for ids in batch.values()]
    columns = max(lengths)
    # padding on the right, which no position before it sees
    ids = torch.tensor([[*ids, *[0] * (columns - len(ids))] for ids in batch.values()])
    arguments = {"input_ids": ids.to(loaded.device), "use_cache": False}
    if min(lengths) < columns:
        is_token = torch.arange(columns) < torch.tensor(lengths)[:, None]
        arguments["attention_mask"] = is_token.long().to(loaded.device)
    pieces: dict[int, list[tuple[Floats, Floats]]] = {prompt: [] for prompt in batch}
    start = 0

    def add(logits: torch.Tensor) -> None:
        """Score the rows in a slice of the columns. [prompts, columns, vocab]"""
        nonlocal start
        for of_prompt, prompt in zip(logits, batch, strict=True):
            rows = {at - start: row for at, row in rows_of[prompt].items() if at >= start}
            rows = {at: row for at, row in rows.items() if at < len(of_prompt)}
            if rows:
                pieces[prompt].append(_scores_of_rows(of_prompt[list(rows)], rows.values(), values))
        start += logits.shape[1]

    restore_state(loaded.start)
    size = columns_at_once(len(batch), loaded.vocab_size, loaded.torch_dtype.itemsize)
    if columns <= size:
        add(loaded.model(**arguments).logits)
    else:
        sliced_logits(loaded.model, arguments, 0, columns, size, add)
    scores = {}
    for prompt, parts in pieces.items():
        scored, entropies = zip(*parts, strict=True)
        scores[prompt] = np.concatenate(scored), np.concatenate(entropies)
    return scores


def _scores_of_rows(
    logits: torch.Tensor,
    rows: Collection[RowPair],
    values: str,
) -> tuple[Floats, Floats]:
    """Return the values of the rows' tokens, and entropies. logits: [rows, vocab]"""
    logits = logits.float()
    logprobs = logits.log_softmax(-1)
    tokens = torch.from_numpy(np.concatenate([row.token_ids for row in rows])).to(logits.device)
    counts = torch.tensor([len(row.token_ids) for row in rows], device=logits.device)
    row_of = torch.arange(len(rows), device=logits.device).repeat_interleave(counts)
    scored = (logits if values == "logit" else logprobs)[row_of, tokens]
    entropies = torch.special.entr(logprobs.exp()).sum(-1)
    return scored.double().cpu().numpy(), entropies.double().cpu().numpy()
