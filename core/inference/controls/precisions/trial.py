"""The rung on lower precisions of a model's pair: settings of engines first, then what engines offer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ....runs.file.evidence import FAILED, NOTED, PASSED, Check
from ...models.float64 import in_float64
from ...models.torch_errors import foreign_errors_stop
from ...paths.engines import RunnableSide
from ..answer_precision import PLAIN
from ..judging_session import JudgingSession
from ..rounding_floor import in_float32
from .catalogue import Precision
from .engine_settings import coarse_activation, narrow_settings, taken_apart
from .lower_precision import checked_in_16_bits, lowered, wholly_lowered
from .lowered_side import Lowered


@dataclass(frozen=True)
class PrecisionTrial:
    """A pair that is beyond its floor: is a side of it the same function in a lower precision?

    measured: mean squares of the reorderings [seeds, positions] by dtype, float32 at least; blocks: sizes that a fault
    may begin at multiples of; given: precisions of the caller's own.
    """

    session: JudgingSession
    sides: tuple[RunnableSide, RunnableSide]
    measured: Mapping[str, NDArray[np.float64]]
    seeds: Sequence[int]
    blocks: Sequence[int]
    given: Sequence[Precision]
    say: Callable[[str], None]

    def run(self, seeds_of_own: Sequence[int]) -> list[Lowered]:
        """Findings on each side. seeds_of_own: of reorderings in the model's own 16 bits, where the pair fails
        too and what explains it in float32 is held as well; none where it does not.
        """
        found = self._settings() or self._precisions()
        if any(each.evidence.check == Check.SETTINGS for each in found):
            return found  # measured in float32; what a forward in 16 bits adds is the run's own dtype, not the engine's
        if not seeds_of_own:
            return found
        loaded, prompts = self.session.loaded, self.session.prompts
        return [checked_in_16_bits(loaded, prompts, each, seeds_of_own, self.say) for each in found]

    def _settings(self) -> list[Lowered]:
        """Sides of other engines by their settings, and the other side by the precisions that engines offer; empty
        where no engine rounds coarser than float32.
        """
        if not any(narrow_settings(side) or coarse_activation(self.session.loaded, side) for side in self.sides):
            return []
        floor = self.measured["float32"]
        with (
            foreign_errors_stop("engine settings", "choose a smaller model"),
            in_float32(self.session.loaded) as widened,
        ):
            found = [
                taken_apart(widened, self.session.prompts, side, floor, self.seeds, self.session.kept, self.say)
                for side in self.sides
            ]
            others = [
                side for side, one in zip(self.sides, found, strict=True) if one is None and side.path != PLAIN.path
            ]
            beyond = (
                []
                if not others
                else lowered(
                    widened, self.session.prompts, (PLAIN, others[0]), floor, self.seeds, self.blocks, self.say
                )
            )
        is_far = [each for each in beyond if each.evidence.side != PLAIN.name and each.evidence.outcome != NOTED]
        return [*(one for one in found if one is not None), *is_far]

    def _precisions(self) -> list[Lowered]:
        dtype, widening = ("float64", in_float64) if "float64" in self.measured else ("float32", in_float32)
        with (
            foreign_errors_stop("lower precisions", "choose a smaller model"),
            widening(self.session.loaded) as widened,
        ):
            floor, given = self.measured[dtype], self.given
            found = lowered(
                widened, self.session.prompts, self.sides, floor, self.seeds, self.blocks, self.say, given=given
            )
        if dtype == "float32" or all(each.evidence.outcome == PASSED for each in found):
            return found
        # near ties of a router tear the floor of float32, so that nothing else is asked there
        with foreign_errors_stop("16 bits", "choose a smaller model"), in_float32(self.session.loaded) as widened:
            whole = wholly_lowered(
                widened, self.session.prompts, self.sides, self.measured["float32"], self.blocks, self.say
            )
        by_side = {each.evidence.side: each for each in whole}

        def better(each: Lowered) -> Lowered:
            other = by_side.pop(each.evidence.side, each)
            is_decided = each.evidence.outcome in (PASSED, FAILED)
            return each if is_decided and other.evidence.outcome != PASSED else other

        return [*map(better, found), *by_side.values()]
