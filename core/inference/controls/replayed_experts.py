"""A rollout's recorded experts in a checkpoint's forward: what its routers choose instead, and what
the tokens score with the rollout's choices.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ...judging.explain.routing import SHIFTS, Routing
from ...judging.explain.rows import PairRows, RowPair
from ...numerics.arrays import Floats
from ...numerics.recorded_choices import MISSING, is_choice
from ...numerics.recorded_choices import Choices as Experts
from ..models.model import LoadedModel, dimension
from ..paths.batch import Emit, ignore
from ..paths.engines import PLAIN, RunnableSide
from .choices import Choices, Replay, compare_choices
from .reordering import reorder

_SEEDS = range(2)  # draws that show how far rounding moves a router's scores
Ids = tuple[int, ...]
Scores = dict[tuple[int, int], tuple[Floats, float]]  # by prompt and position: values, entropy
Score = Callable[[Mapping[int, Ids]], Scores]  # of prompts by number


def replay_experts(
    loaded: LoadedModel,
    sequences: Mapping[int, Ids],
    pair: PairRows,
    score: Score,
) -> Routing | str:
    """Compare a rollout's experts, or say in a sentence why they cannot be. sequences: tokens that
    were read, by prompt.
    """
    parts = []
    for prompt, recorded in pair.experts.items():
        rows = [row for row in pair.rows if row.prompt == prompt]
        part = _replay(loaded, sequences[prompt], rows, recorded, score)
        if isinstance(part, str):
            return f"'{pair.names[0]}' {part}"
        routers, *arrays = part
        parts.append(arrays)
    return Routing(routers, *map(np.concatenate, zip(*parts, strict=True)))


def _replay(
    loaded: LoadedModel,
    ids: Ids,
    rows: Sequence[RowPair],
    recorded: Experts,
    score: Score,
) -> tuple[Any, ...] | str:
    """Return what `Routing` has, of one prompt, or why its experts do not fit."""
    prompt = rows[0].prompt
    positions = [row.position for row in rows]
    rollout = np.concatenate([row.x for row in rows])

    def forward(forced: Choices) -> tuple[Choices, Floats]:
        """Return what the model chooses by itself, and r, if it makes the choices `forced`."""
        noted: dict[Ids, Choices] = {}
        scores = {}

        def run(ids: Sequence[int], _: Emit) -> None:
            scores.update(score({prompt: tuple(ids)}))

        side = RunnableSide("scores", lambda *_: nullcontext(run))
        Replay({ids: forced}).of(side, noted.__setitem__).run_on(loaded)(ids, ignore)
        values = [scores[prompt, position][0] for position in positions]
        return noted[ids], np.concatenate(values) - rollout

    own, r = forward(Choices(len(ids)))
    calls = _by_router(loaded, own, recorded)
    if isinstance(calls, str):
        return calls
    forced = _forced(own, calls)
    noted, replayed = forward(forced)
    alike = np.stack([_alike(own.ids[call], forced.ids[call]) for call in calls], axis=1)
    gaps = np.zeros(0)
    if (alike[..., 0] == 0).any():
        gaps = _gaps(loaded, ids, noted, forced)
    routers = [own.modules[call] for call in calls]
    return routers, r, replayed, alike[positions], gaps


def _by_router(
    loaded: LoadedModel,
    own: Choices,
    recorded: Experts,
) -> dict[int, Experts] | str:
    """Return the recorded experts of each router by its call, or why they do not fit. [positions,
    k] each
    """
    _, layers, k = recorded.shape
    # a router that chooses groups of experts first chooses experts last
    last = {module: call for call, module in enumerate(own.modules)}
    of_k = [call for call in last.values() if own.ids[call].shape[1:] == (1, k)]
    calls = of_k or list(last.values())
    numbers = list(range(layers))
    if of_k and layers == dimension(loaded.model.config.get_text_config(), "num_hidden_layers"):
        # also of layers without experts
        numbers = [int(re.findall(r"\d+", own.modules[call])[0]) for call in calls]
    experts = {own.scores[call].shape[-1] for call in calls}
    largest = int(recorded[:, numbers].max(initial=0))
    if not of_k or len(numbers) != len(calls) or largest >= max(experts):
        taken = sorted({own.ids[call].shape[-1] for call in calls})
        return (
            f"recorded {k} of at least {largest + 1} experts in {layers} layers; the checkpoint has"
            f" {len(calls)} routers that take {taken} of {sorted(experts)}."
        )
    return {call: recorded[:, number] for call, number in zip(calls, numbers, strict=True)}


def _forced(own: Choices, recorded: Mapping[int, Experts]) -> Choices:
    """Return recorded choices in the form of the model's own, -1 for all others."""
    ids = [torch.full_like(each, MISSING) for each in own.ids]
    for call, experts in recorded.items():
        experts = experts[: own.positions].astype(np.int64)
        usable = is_choice(experts)[:, None]
        ids[call][: len(experts), 0] = torch.from_numpy(np.where(usable, experts, MISSING))
    return replace(own, ids=ids)


def _alike(own: torch.Tensor, recorded: torch.Tensor) -> Floats:
    """Return whether a router takes the recorded experts, as in `Routing`. [positions, shifts]"""
    mine = own[:, 0].sort().values
    theirs = recorded[:, 0].sort().values
    alike = []
    for shift in SHIFTS:
        moved = theirs.roll(-shift, 0)
        is_same = (mine == moved).all(-1).double()
        alike.append(is_same.where(moved[:, 0] >= 0, torch.nan))
    return torch.stack(alike, dim=1).numpy()


def _gaps(
    loaded: LoadedModel,
    ids: Ids,
    noted: Choices,
    forced: Choices,
) -> Floats:
    """Return how far apart the router's scores are at every other choice, over what rounding moves
    them; earlier choices are the recorded ones.
    """
    both = zip(forced.ids, noted.ids, strict=True)
    recorded = replace(noted, ids=[torch.where(ids < 0, mine, ids) for ids, mine in both])
    replay = Replay({ids: recorded})
    for seed in _SEEDS:
        with reorder(loaded.model, seed):
            replay.of_rounding(PLAIN).run_on(loaded)(ids, ignore)
    return np.array(compare_choices(noted, recorded, replay.moved[ids]).gaps)
