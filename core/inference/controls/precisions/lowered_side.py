"""A side that may be in a lower precision: what is asked, and what was found of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from ....judging import judge
from ....judging.divergence import Divergence, mean_squares
from ....judging.statistic import BLOCKS
from ...models.model import LoadedModel
from ...paths.batch import Emit, Run, ignore
from ...paths.engines import RunnableSide, divergence, seen_by, whole_side
from ...paths.hooks import ModuleTrace
from ..reordering import reordered
from ..rounding_floor import groups_of
from .catalogue import Precision


@dataclass(frozen=True)
class Question:
    """Prompts that sides are asked on. seeds: of reorderings; blocks: sizes that a fault may begin at multiples of;
    given: precisions of the caller's own, tried before those that engines offer.
    """

    prompts: Sequence[Sequence[int]]
    seeds: Sequence[int] = ()
    blocks: Sequence[int] = BLOCKS
    say: Callable[[str], None] = lambda _: None
    given: Sequence[Precision] = field(default=())

    @property
    def lengths(self) -> list[int]:
        return [len(ids) for ids in self.prompts]

    def shortest(self, differs: NDArray[np.bool_]) -> tuple[Sequence[int], NDArray[np.bool_]] | None:
        """(the shortest prompt that differs, its positions), or None. differs: over all prompts"""
        of_prompts = np.split(differs, np.cumsum(self.lengths)[:-1])
        in_order = sorted(zip(self.prompts, of_prompts, strict=True), key=lambda each: len(each[0]))
        return next((each for each in in_order if each[1].any()), None)


@dataclass(frozen=True)
class Lowered(judge.Lowered):
    """side, precision: which is what, None of a whole model in 16 bits."""

    side: RunnableSide | None = None
    precision: Precision | None = None


@dataclass(frozen=True)
class Far:
    """A side that is not the model's own: mean squares to the model [positions], and the mean square of the floor."""

    side: RunnableSide
    distance: NDArray[np.float64]
    scale: float

    @property
    def ratio(self) -> float:
        """rms of the distance over that of the floor."""
        return rms_ratio(self.distance.mean(), self.scale)

    @property
    def control(self) -> str:
        return f"'{self.side.name}' against the model's own forward in precisions that engines offer"


def rms_ratio(square: float, measure: float) -> float:
    """Ratio of rms, of two mean squares."""
    return float(np.sqrt(square / max(measure, np.finfo(np.float64).tiny)))


def beside_reorderings(
    loaded: LoadedModel,
    prompts: Sequence[Sequence[int]],
    own: RunnableSide,
    side: RunnableSide | None,
    seeds: Sequence[int],
    see_of: Callable[[torch.Tensor], Emit] = lambda _: ignore,
) -> tuple[list[Divergence], NDArray[np.float64], bool]:
    """(a side against the model in a precision, `own`; mean squares of that one's reorderings [seeds, positions]; all
    of it is finite on both sides). see_of: logits of `own` -> what is shown the side's.
    """
    pair: list[Divergence] = []
    floor: list[list[Divergence]] = [[] for _ in seeds]
    for group in groups_of(loaded, prompts):
        plain = [whole_side(own.run_on(loaded), ids) for ids in group]
        if side is not None:
            run = side.run_on(loaded)
            pair += [divergence(each, seen_by(run, see_of(each)), ids) for each, ids in zip(plain, group, strict=True)]
        for of_seed, seed in zip(floor, seeds, strict=True):
            with own.open(loaded, None) as run, reordered(loaded.model, seed):
                of_seed += [divergence(each, run, ids) for each, ids in zip(plain, group, strict=True)]
    is_finite = not any(one.nonfinite_mismatch for of in (pair, *floor) for one in of)
    return pair, np.stack([mean_squares(of_seed) for of_seed in floor]), is_finite


def answering(name: str, prompts: Sequence[Sequence[int]], answers: Sequence[torch.Tensor]) -> RunnableSide:
    """A side that gives what was recorded of each of these prompts, known as the objects that they are."""
    recorded = {id(ids): (ids, answer) for ids, answer in zip(prompts, answers, strict=True)}

    @contextmanager
    def opened(_: LoadedModel, __: ModuleTrace | None) -> Iterator[Run]:
        yield lambda ids, emit: emit(0, recorded[id(ids)][1])

    return RunnableSide(name, opened)
