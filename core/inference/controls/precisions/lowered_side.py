"""A side that may be in a lower precision, and what was found of it; the floor that such a precision has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ....judging.divergence import Divergence, mean_squares
from ....runs.file.evidence import Evidence
from ...models.model import LoadedModel
from ...paths.batch import Run
from ...paths.engines import RunnableSide
from ...paths.hooks import ModuleTrace
from ..reordering import reordered
from ..rounding_floor import divergence, groups_of, whole_side
from .catalogue import Precision


@dataclass(frozen=True)
class Lowered:
    """The row of evidence, and what judging needs of it. place: (prompt, position) of a fault on top; side, precision:
    which is what, None of a whole model in 16 bits.
    """

    evidence: Evidence
    place: tuple[int, int] | None = None
    side: RunnableSide | None = None
    precision: Precision | None = None


@dataclass(frozen=True)
class Far:
    """A side that is not the model's own. distance: mean squares to the model's own forward [positions]; scale: mean
    square of the floor.
    """

    side: RunnableSide
    distance: NDArray[np.float64]
    scale: float

    @property
    def ratio(self) -> float:
        """rms of the distance over that of the floor."""
        return float(np.sqrt(self.distance.mean() / max(self.scale, np.finfo(np.float64).tiny)))

    @property
    def control(self) -> str:
        return f"'{self.side.name}' against the model's own forward in precisions that engines offer"


def floor_beside(
    loaded: LoadedModel, prompts: Sequence[Sequence[int]], own: RunnableSide, seeds: Sequence[int]
) -> NDArray[np.float64]:
    """Mean squares of the reorderings of the model in a precision. [seeds, positions]"""
    floor: list[list[Divergence]] = [[] for _ in seeds]
    for group in groups_of(loaded, prompts):
        add_reorderings(floor, loaded, own, group, [whole_side(own.run_on(loaded), ids) for ids in group], seeds)
    return np.stack([mean_squares(of_seed) for of_seed in floor])


def add_reorderings(
    floor: list[list[Divergence]],
    loaded: LoadedModel,
    own: RunnableSide,
    group: Sequence[Sequence[int]],
    plain: Sequence[torch.Tensor],
    seeds: Sequence[int],
) -> None:
    """Adds to each seed's divergences those of `own` with its linear maps reordered, to itself as it is: `plain`
    [positions, vocab], a prompt each.
    """
    for of_seed, seed in zip(floor, seeds, strict=True):
        with own.open(loaded, None) as run, reordered(loaded.model, seed):
            of_seed += [divergence(each, run, ids) for each, ids in zip(plain, group, strict=True)]


def answering(name: str, prompts: Sequence[Sequence[int]], answers: Sequence[torch.Tensor]) -> RunnableSide:
    """A side that gives what was recorded of each of these prompts. A prompt is known as the object that it is, for
    the same tokens may have been answered twice, each time otherwise.
    """
    recorded = {id(ids): (ids, answer) for ids, answer in zip(prompts, answers, strict=True)}

    @contextmanager
    def opened(_: LoadedModel, __: ModuleTrace | None) -> Iterator[Run]:
        yield lambda ids, emit: emit(0, recorded[id(ids)][1])

    return RunnableSide(name, opened)
