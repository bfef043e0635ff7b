"""A rollout's recorded experts in a checkpoint's forward: what its routers choose instead, and what
the tokens score with the rollout's choices.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ...errors import DumpError
from ...judging.explain.rescoring import Routing
from ...judging.explain.rows import PairRows, RowPair
from ...numerics.arrays import Floats
from ...numerics.recorded_choices import MISSING, is_choice
from ...numerics.recorded_choices import Choices as Experts
from ..models.model import LoadedModel, dimension
from ..paths.batch import ignore
from ..paths.engines import PLAIN
from ..paths.hooks import ModuleTrace
from .choices import Choices, Ids, Replay, compare_choices, following_choices
from .reordering import reorder

_SEEDS = range(2)  # draws that show how far rounding moves a router's scores
Scores = dict[tuple[int, int], tuple[Floats, float]]  # by prompt and position: values, entropy
Score = Callable[[Mapping[int, Ids]], Scores]  # of prompts by number


def replay_experts(
    loaded: LoadedModel,
    sequences: Mapping[int, Ids],
    pair: PairRows,
    score: Score,
) -> Routing:
    """Compare a rollout's experts with the model's. sequences: tokens that were read, by prompt.

    DumpError, a sentence, if they cannot be compared.
    """
    parts = []
    for prompt, recorded in pair.experts.items():
        rows = [row for row in pair.rows if row.prompt == prompt]
        try:
            routers, *arrays = _replay(loaded, sequences[prompt], rows, recorded, score)
        except DumpError as error:
            raise DumpError(f"'{pair.names[0]}' {error}") from error
        parts.append(arrays)
    return Routing(routers, *map(np.concatenate, zip(*parts, strict=True)))


def _replay(
    loaded: LoadedModel,
    ids: Ids,
    rows: Sequence[RowPair],
    recorded: Experts,
    score: Score,
) -> tuple[Any, ...]:
    """Return what `Routing` has, of one prompt."""
    prompt = rows[0].prompt
    positions = [row.position for row in rows]
    rollout = np.concatenate([row.x for row in rows])

    def forward(forced: Choices | None = None) -> tuple[Choices, Floats]:
        """Return what the model chooses by itself, and r, if it makes the choices `forced`."""
        noted = Choices(len(ids))
        with following_choices(loaded, ModuleTrace(ids), noted.note, forced):
            scores = score({prompt: ids})
        values = [scores[prompt, position][0] for position in positions]
        return noted, np.concatenate(values) - rollout

    own, r = forward()
    forced = _forced(loaded, own, recorded)
    noted, replayed = forward(forced)
    alike = []
    for call, experts in forced.ids.items():
        both = own.ids[call].sort().values == experts.sort().values
        alike.append(both.all(-1).double().where(experts[..., 0] >= 0, torch.nan)[positions])
    routers = [module for module, _ in forced.ids]
    return routers, r, replayed, torch.cat(alike, 1).numpy(), _gaps(loaded, ids, noted, forced)


def _forced(loaded: LoadedModel, own: Choices, recorded: Experts) -> Choices:
    """Return the recorded choices of each router, of the last call if it chooses groups of experts
    first. DumpError, a clause, if they do not fit.
    """
    _, layers, k = recorded.shape
    calls = [call for call in own.last_calls.values() if own.ids[call].shape[1:] == (1, k)]
    numbers = list(range(layers))
    if layers == dimension(loaded.model.config.get_text_config(), "num_hidden_layers"):
        # also of layers without experts
        numbers = [int(re.findall(r"\d+", module)[0]) for module, _ in calls]
    most = max((own.scores[call].shape[-1] for call in calls), default=0)
    largest = int(recorded[:, numbers].max(initial=0))
    if len(numbers) != len(calls) or largest >= most:
        raise DumpError(
            f"recorded {k} of at least {largest + 1} experts in {layers} layers; the checkpoint has"
            f" {len(calls)} routers that take {k} of {most}.",
        )
    ids = {}
    for call, number in zip(calls, numbers, strict=True):
        experts = recorded[: own.positions, number].astype(np.int64)
        usable = np.where(is_choice(experts)[:, None], experts, MISSING)
        ids[call] = torch.full_like(own.ids[call], MISSING)
        ids[call][: len(experts), 0] = torch.from_numpy(usable)
    return Choices(own.positions, ids=ids)


def _gaps(
    loaded: LoadedModel,
    ids: Ids,
    noted: Choices,
    forced: Choices,
) -> Floats:
    """Return how far apart the router's scores are at every other choice, over what rounding moves
    them; earlier choices are the recorded ones.
    """
    merged = dict(noted.ids)
    for call, experts in forced.ids.items():
        merged[call] = torch.where(experts < 0, noted.ids[call], experts)
    recorded = replace(noted, ids=merged)
    replay = Replay({ids: recorded})
    for seed in _SEEDS:
        with reorder(loaded.model, seed):
            replay.of_rounding(PLAIN).run_on(loaded)(ids, ignore)
    found = compare_choices(noted, recorded, replay.moved[ids])
    return np.array([gap for *_, gap in found.others])
