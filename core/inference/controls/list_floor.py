"""Lists that a model scores again: their noise floor, by the model's own reorderings on a run's
tokens, over the tokens that both sides sent; and a rollout's recorded experts in its forward: what
its routers choose instead, and what the tokens score with the rollout's choices.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from ...errors import DumpError, UsageError
from ...judging.explain.rescoring import Rescoring, Routing
from ...judging.explain.rows import PairRows, RowPair
from ...numerics.arrays import Floats
from ...numerics.recorded_choices import MISSING, is_choice
from ...numerics.recorded_choices import Choices as Experts
from ...progress import Progress
from ..models.model import Ids, LoadedModel, dimension
from ..models.module_state import restore_state
from ..models.torch_errors import model_errors_stop
from ..paths.batch import ignore
from ..paths.engines import PLAIN
from ..paths.hooks import ModuleTrace
from ..paths.sliced_head import columns_at_once, sliced_logits
from .choices import Choices, Replay, compare_choices, following_choices
from .reordering import reorder
from .rounding_floor import check_prompts

_SEEDS = range(4)
_ROUTER_SEEDS = range(2)  # draws that show how far rounding moves a router's scores
_MOST_TOKENS = 1 << 12  # of a batch with its padding, about all that `rows_of_rollouts` takes
Prompts = Sequence[Ids] | Mapping[int, Ids]  # by number
Scores = dict[tuple[int, int], tuple[Floats, float]]  # by prompt and position: values, entropy


def rescore(
    loaded: LoadedModel,
    prompts: Prompts,
    pair: PairRows,
    say: Progress,
) -> Rescoring:
    """Score the tokens of a pair's rows by a model, and by its reorderings. prompts: all tokens
    that were read.
    """
    rows = [row for row in pair.rows if len(row.token_ids)]
    lengths: dict[int, int] = {}
    for row in rows:
        lengths[row.prompt] = max(lengths.get(row.prompt, 0), row.position + 1)
    ids_of = {prompt: prompts[prompt][:length] for prompt, length in lengths.items()}
    check_prompts(loaded, list(ids_of.values()))
    largest = max(int(row.token_ids.max()) for row in rows)
    if largest >= loaded.vocab_size:
        raise UsageError(
            f"model '{loaded.name}' has {loaded.vocab_size:,} tokens, and the run token"
            f" {largest:,}.",
        )
    # those of like lengths together: reordering permutes all weights in every forward, so that
    # forwards are few
    batches: list[dict[int, Ids]] = [{}]
    for prompt, ids in sorted(ids_of.items(), key=lambda item: len(item[1])):
        if batches[-1] and (len(batches[-1]) + 1) * len(ids) > _MOST_TOKENS:
            batches.append({})
        batches[-1][prompt] = ids
    with model_errors_stop():

        def score(what: str) -> tuple[Floats, Floats]:
            scores: Scores = {}
            says = f"scoring by '{loaded.name}' in {loaded.dtype}, {what}"
            for number, batch in enumerate(batches):
                say(says, number, len(batches), "batches")
                scores |= _scores_of(loaded, batch, rows, are_logits=not pair.has_constants)
            of_rows = [scores[row.prompt, row.position] for row in rows]
            values, entropies = zip(*of_rows, strict=True)
            return np.concatenate(values), np.array(entropies)

        plain, entropy = score("as it is")
        draws = []
        for seed in _SEEDS:
            with reorder(loaded.model, seed):
                draws.append(score(f"reordering {seed + 1} of {len(_SEEDS)}")[0])
        routing: Routing | str | None = None
        if pair.experts:
            try:
                routing = _replay_experts(loaded, ids_of, pair, rows)
            except DumpError as error:
                routing = f"'{pair.names[0]}' {error}"
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


def _scores_of(
    loaded: LoadedModel,
    batch: Mapping[int, Ids],
    rows: Sequence[RowPair],
    *,
    are_logits: bool,
) -> Scores:
    """Return the values of each row of the batch's prompts, as an engine sends them:
    log-probabilities in float32; and its entropy.
    """
    prompts = list(batch)
    texts = [torch.tensor(ids) for ids in batch.values()]
    # padding on the right, which no position before it sees
    ids = pad_sequence(texts, batch_first=True).to(loaded.device)
    arguments: dict[str, Any] = {"input_ids": ids, "use_cache": False}
    if len(set(map(len, texts))) > 1:
        ones = [torch.ones_like(text) for text in texts]
        arguments["attention_mask"] = pad_sequence(ones, batch_first=True).to(loaded.device)
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
            chosen = of_rows if are_logits else logprobs
            chosen = chosen[np.repeat(np.arange(len(here)), counts), tokens].double().cpu()
            parts = np.split(chosen.numpy(), np.cumsum(counts)[:-1])
            for row, part, entropy in zip(here, parts, entropies, strict=True):
                scores[row.prompt, row.position] = part, entropy
        start = stop

    restore_state(loaded.start)
    size = columns_at_once(len(batch), loaded.row_bytes)
    sliced_logits(
        loaded.model,
        arguments,
        0,
        ids.shape[1],
        size,
        add,
    )
    return scores


def _replay_experts(
    loaded: LoadedModel,
    ids_of: Mapping[int, Ids],
    pair: PairRows,
    rows: Sequence[RowPair],
) -> Routing:
    """Compare a rollout's experts with the model's. DumpError, a clause, if they do not fit."""

    def forward(
        prompt: int, of_prompt: Sequence[RowPair], forced: Choices | None = None
    ) -> tuple[Choices, Scores]:
        """Return what the model chooses by itself, and its scores, if it makes the choices
        `forced`.
        """
        ids = ids_of[prompt]
        noted = Choices(len(ids))
        with following_choices(loaded, ModuleTrace(ids), noted.note, forced):
            return noted, _scores_of(
                loaded,
                {prompt: ids},
                of_prompt,
                are_logits=not pair.has_constants,
            )

    parts = []
    for prompt, recorded in pair.experts.items():
        ids = ids_of[prompt]
        of_prompt = [row for row in rows if row.prompt == prompt]
        positions = [row.position for row in of_prompt]
        own, scores = forward(prompt, of_prompt)
        forced = _forced(loaded, own, recorded)
        noted, replayed_scores = forward(prompt, of_prompt, forced)
        r, replayed = (
            np.concatenate([each[prompt, row.position][0] - row.x for row in of_prompt])
            for each in (scores, replayed_scores)
        )
        alike = []
        # earlier choices are the recorded ones
        merged = dict(noted.ids)
        for call, experts in forced.ids.items():
            both = own.ids[call].sort().values == experts.sort().values
            alike.append(both.all(-1).double().where(experts[..., 0] >= 0, torch.nan)[positions])
            merged[call] = torch.where(experts < 0, noted.ids[call], experts)
        made = replace(noted, ids=merged)
        replay = Replay({ids: made})
        for seed in _ROUTER_SEEDS:
            with reorder(loaded.model, seed):
                replay.of_rounding(PLAIN).run_on(loaded)(ids, ignore)
        others = compare_choices(noted, made, replay.moved[ids]).others
        gaps = np.array([gap for *_, gap in others])
        parts.append((r, replayed, torch.cat(alike, 1).numpy(), gaps))
    routers = [module for module, _ in forced.ids]
    return Routing(routers, *map(np.concatenate, zip(*parts, strict=True)))


def _forced(loaded: LoadedModel, own: Choices, recorded: Experts) -> Choices:
    """Return the recorded choices of each router, of the last call if it chooses groups of experts
    first. DumpError, a clause, if they do not fit.
    """
    _, layers, k = recorded.shape
    calls = [call for call in own.last_calls.values() if own.ids[call].shape[1:] == (1, k)]
    numbers = list(range(layers))
    if layers == dimension(loaded.text_config, "num_hidden_layers"):
        # also of layers without experts
        numbers = [int(re.findall(r"\d+", module)[0]) for module, _ in calls]
    most = max((own.scores[call].shape[-1] for call in calls), default=0)
    largest = int(recorded[:, numbers].max(initial=0))
    if len(numbers) != len(calls) or largest >= most:
        raise DumpError(
            f"recorded {k} of at least {largest + 1} experts in {layers} layers; the checkpoint has"
            f" {len(calls)} routers that take {k} of {most}.",
        )
    forced = Choices(own.positions)
    for call, number in zip(calls, numbers, strict=True):
        experts = recorded[: own.positions, number].astype(np.int64)
        usable = np.where(is_choice(experts)[:, None], experts, MISSING)
        forced.ids[call] = torch.full_like(own.ids[call], MISSING)
        forced.ids[call][: len(experts), 0] = torch.from_numpy(usable)
    return forced
