"""A rollout's recorded experts in a checkpoint's forward: what its routers choose instead, and what
the tokens score with the rollout's choices.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from ...judging.explain.rescoring import Rescoring
from ...judging.explain.routing import SHIFTS, Routing
from ...numerics.arrays import Floats, Ints
from ...numerics.recorded_choices import MISSING, is_choice
from ...numerics.recorded_choices import Choices as Experts
from ..models.model import LoadedModel, dimension
from ..models.torch_errors import model_errors_stop
from ..paths.batch import ignore
from ..paths.engines import PLAIN
from .choices import Choices, Replay, compare_choices, replaying
from .reordering import reorder

_SEEDS = range(2)  # draws that show how far rounding moves a router's scores
Ids = tuple[int, ...]


def replay_experts(
    loaded: LoadedModel,
    sequences: Mapping[int, Ids],
    experts: Mapping[int, Experts],
    scores: Rescoring,
) -> Routing | str:
    """Compare the experts, or say in a sentence why they cannot be.

    sequences, experts: by number; scores: of a rollout's tokens by this model.
    """
    routers: list[str] = []
    parts = []
    for prompt, recorded in experts.items():
        rows = [row for row in scores.rows if row.prompt == prompt]
        positions = np.array([row.position for row in rows])
        tokens = np.array([row.token_ids[0] for row in rows])
        rollout = np.array([row.x[0] for row in rows])
        ids = sequences[prompt][: max(positions) + 1]
        with model_errors_stop():
            own, plain = _score(loaded, ids, Choices(len(ids)), positions, tokens)
            chosen = _by_router(loaded, scores, own, recorded)
            if isinstance(chosen, str):
                return chosen
            forced = _forced(own, chosen)
            noted, replayed = _score(loaded, ids, forced, positions, tokens)
            of_routers = [_alike(own.ids[call], forced.ids[call]) for call in chosen]
            alike = np.stack(of_routers, axis=1)
            gaps = np.zeros(0)
            if (alike[..., 0] == 0).any():
                gaps = _gaps(loaded, ids, noted, forced)
        routers = [own.modules[call] for call in chosen]
        parts.append((plain - rollout, replayed - rollout, alike[positions], gaps))
    return Routing(scores, routers, *map(np.concatenate, zip(*parts, strict=True)))


def _score(
    loaded: LoadedModel, ids: Ids, forced: Choices, positions: Ints, tokens: Ints
) -> tuple[Choices, Floats]:
    """Return what the model chooses by itself, and the log-probabilities of tokens at positions,
    while it makes the choices `forced`.
    """
    noted: dict[Ids, Choices] = {}
    values = np.zeros(len(positions))

    def take(start: int, logits: torch.Tensor) -> None:
        is_here = (start <= positions) & (positions < start + len(logits))
        rows = logits[positions[is_here] - start].float().log_softmax(-1)
        places = torch.from_numpy(tokens[is_here])[:, None].to(rows.device)
        values[is_here] = rows.gather(1, places)[:, 0].cpu()

    replaying(PLAIN, {ids: forced}, noted.__setitem__).run_on(loaded)(ids, take)
    return noted[ids], values


def _by_router(
    loaded: LoadedModel, scores: Rescoring, own: Choices, recorded: Experts
) -> dict[int, Experts] | str:
    """Return the recorded experts of each router by its call, or why they do not fit. [positions,
    k] each
    """
    _, layers, k = recorded.shape
    rollout = f"Experts are not compared: '{scores.names[0]}' recorded"
    # a router that chooses groups of experts first chooses experts last
    last = {module: call for call, module in enumerate(own.modules)}
    calls = [call for call in last.values() if own.ids[call].shape[1:] == (1, k)]
    if not calls:
        chosen = sorted({own.ids[call].shape[-1] for call in last.values()})
        return f"{rollout} {k} a token and layer; the routers of {scores.model} take {chosen}."
    numbers = list(range(layers))
    if layers == dimension(loaded.model.config.get_text_config(), "num_hidden_layers"):
        # also of layers without experts
        numbers = [int(re.findall(r"\d+", own.modules[call])[0]) for call in calls]
    experts = own.scores[calls[0]].shape[-1]
    largest = int(recorded[:, numbers].max(initial=0))
    if len(numbers) != len(calls) or largest >= experts:
        return (
            f"{rollout} {layers} layers and experts up to number {largest}; {scores.model} has"
            f" {len(calls)} routers of {experts} experts."
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


def _gaps(loaded: LoadedModel, ids: Ids, noted: Choices, forced: Choices) -> Floats:
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
