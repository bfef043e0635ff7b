"""Noise floor of lists: the model's own reorderings on a run's tokens, over the tokens that both
sides sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

import numpy as np
import torch

from ...errors import UsageError
from ...judging.explain.rescoring import Floats, Rescoring, floor_evidence
from ...judging.explain.rows import PairRows, RowPair
from ...progress import Progress
from ...runs.file.evidence import Evidence
from ..models.model import LoadedModel
from ..paths.batch import Run
from ..paths.engines import PLAIN
from .judge_model import model_errors_stop
from .reordering import reorder
from .rounding_floor import check_prompts

_SEEDS = range(4)
Prompts = Sequence[tuple[int, ...]] | Mapping[int, tuple[int, ...]]  # by number


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
    with model_errors_stop(), PLAIN.open(loaded, None) as run:

        def score(what: str) -> tuple[Floats, Floats]:
            parts = []
            for number, (prompt, of_prompt) in enumerate(rows_of.items()):
                say(
                    f"scoring by '{loaded.name}' in {loaded.dtype}, {what}",
                    number,
                    len(rows_of),
                    "prompts",
                )
                parts.append(_values_of(run, ids_of[prompt], of_prompt, pair.values))
            values, entropies = zip(*parts, strict=True)
            return np.concatenate(values), np.concatenate(entropies)

        plain, entropy = score("as it is")
        draws = []
        for seed in _SEEDS:
            with reorder(loaded.model, seed):  # which permutes all weights: once for all prompts
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


def _values_of(
    run: Run,
    ids: Sequence[int],
    rows: Mapping[int, RowPair],
    values: str,
) -> tuple[Floats, Floats]:
    """Return the values of these rows one after another, as an engine sends them: log-probabilities
    in float32; and the entropy of each row.
    """
    pieces, entropies = [], []

    def add(start: int, logits: torch.Tensor) -> None:
        for at, row in enumerate(logits, start=start):
            if at in rows:
                row, tokens = row.float(), torch.from_numpy(rows[at].token_ids).to(row.device)
                logprobs = row.log_softmax(-1)
                pieces.append(
                    (row if values == "logit" else logprobs)[tokens].double().cpu().numpy(),
                )
                entropies.append(float(torch.special.entr(logprobs.exp()).sum()))

    run(ids, add)
    return np.concatenate(pieces), np.array(entropies)
