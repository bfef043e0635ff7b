"""Controls: what can be asked about a pair, and the records of the answers.

A model answers by running, a dump by reading. Nothing is judged by a constant number of logits or
ULPs: a difference is compared with what rounding does to this checkpoint on these prompts.
"""

# ruff: noqa: ARG002  (a control that is not available takes arguments for those that are)

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cause import Cause
from ..errors import CaptureError
from ..numerics.statistic import BLOCKS, FloorTest
from ..runs.file.evidence import Evidence, OtherPromptsFigures, OtherRowFigures
from .places import NotFinite

Squares = NDArray[np.float64]
"""Mean squares of differences, logits^2."""


@dataclass(frozen=True)
class Pair:
    """Two sides in one dtype. squares: mean squares of their difference [positions]; peaks: the
    largest difference over the others there [positions], None if not measured.
    """

    squares: Squares
    not_finite: NotFinite | None = None
    is_identical: bool = False
    peaks: NDArray[np.float64] | None = None

    @property
    def sizes(self) -> Squares:
        """`squares`, infinite if a logit is not finite on one side only."""
        if self.not_finite is None:
            return self.squares
        return np.where(self.not_finite.by_row > 0, np.inf, self.squares)


@dataclass(frozen=True)
class NoiseFloor:
    """What rounding does in one dtype. squares: mean squares of draws [draws, positions]; control:
    how they were made; maps: linear maps that were reordered; row_ulps: 99.9th percentile of the
    draws; None if not measured.
    """

    squares: Squares
    control: str
    maps: int | None = None
    row_ulps: float | None = None


@dataclass(frozen=True)
class Rerun:
    """Sides that were called twice. unstable: those whose bits differ; squares: the largest
    difference of a side from itself [positions], None if not measured; mismatches: logits that are
    not finite in one call only.
    """

    control: str
    sides: tuple[str, ...]
    unstable: tuple[str, ...]
    squares: Squares | None = None
    mismatches: int = 0
    figures: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class OtherRows:
    """A side computed with other prompts in the other rows, or in another row. figures: of the
    check; difference: of the logits in a dtype with a noise floor, None if the bits are the same or
    it cannot be measured.
    """

    side: str
    control: str
    figures: OtherPromptsFigures | OtherRowFigures
    dtype: str = ""
    difference: Pair | None = None


@dataclass(frozen=True)
class Errors:
    """Errors in 16 bits to the model's float32 forward. squares: their mean squares, infinite if a
    logit is not finite, unlike there [positions]; systematic: `SystematicError.size`.
    """

    squares: Squares
    systematic: float = 0.0


@dataclass(frozen=True)
class Exact:
    """Errors of each side, and of draws, which are forwards with randomized rounding.

    own_paths: errors of the model's own paths, which must look like one more draw, or the draws
    measure nothing; has_experts: a router that nearly ties may choose another expert at a position,
    in sound sides too.
    """

    errors: Mapping[str, Errors]
    draws: Sequence[Errors]
    own_paths: Callable[[], Mapping[str, Errors]]
    model: str = "the model"
    has_experts: bool = False


@dataclass(frozen=True)
class PrecisionVerdict:
    """Evidence on the lower precision of one side. place: (prompt, position) of a fault on top of
    it.
    """

    evidence: Evidence
    place: tuple[int, int] | None = None


class NotAvailableError(CaptureError):
    """A control that cannot be had, with the reason for a reader who can mend it; '' if there is
    nothing to say.
    """


class StaysInFloat32Error(NotAvailableError):
    """A side, or a part of it, computes in float32 whatever it is asked, so float64 shows nothing
    more.
    """


class Controls:
    """What can be asked about one pair; what a source cannot answer stays as it is here.

    A method raises NotAvailableError, or the CaptureError that stopped it. blocks: sizes that a
    fault may begin at multiples of; only_16_bits: sides that compute in 16 bits whatever they are
    asked, and the dtype; available: controls that were given; causes: common causes that explain
    the difference, best first.
    """

    names: tuple[str, str]
    lengths: list[int]
    dtype: str
    has_experts: bool = False
    blocks: Sequence[int] = BLOCKS
    available: tuple[str, ...] | None = None

    @property
    def only_16_bits(self) -> Mapping[str, str]:
        return {}

    @property
    def causes(self) -> Sequence[Cause]:
        return ()

    @property
    def chooses_keys(self) -> bool:
        """True if attention chooses its keys: near ties move a sound side by more than rounding."""
        return False

    def validity(self) -> list[Evidence]:
        """Can the sides be compared at all, and is each emitted token the argmax?"""
        return []

    def pair(self, dtype: str) -> Pair:
        """Both sides in a dtype."""
        raise NotAvailableError("")

    def floor(self, dtype: str) -> NoiseFloor:
        """Return what rounding does in a dtype."""
        raise NotAvailableError("")

    def rerun(self) -> Rerun:
        """Call the sides again."""
        raise NotAvailableError("")

    def neighbours(self) -> list[OtherRows]:
        """Compute a side with other prompts in the other rows of its batch, and in another row."""
        return []

    def exact(self) -> Exact:
        """Errors of the sides in 16 bits to the model's float32 forward."""
        raise NotAvailableError("")

    def from_model(self) -> Mapping[str, Squares]:
        """Mean squares of each recorded side to the model's own prefill, in the dtype of the pair.
        [positions]
        """
        raise NotAvailableError("")

    def without_floor(self, wide: Pair) -> list[Evidence]:
        """Return what the pair in float32 says without a noise floor."""
        return []

    def lower_precision(
        self,
        dtype: str,
        tests: Mapping[str, FloorTest],
        *,
        also_in_16_bits: bool,
    ) -> Sequence[PrecisionVerdict]:
        """Is a side that failed in a dtype the same function in a lower precision? tests: by dtype,
        or by side.
        """
        return []

    def modules(self, row: int, bugs: Sequence[str | None], dtype: str) -> list[Evidence]:
        """Which modules alone differ. row: the worst position; bugs: sides with a fault on top of a
        precision.
        """
        return []

    def differences(self, row: int, dtype: str) -> Squares | None:
        """Squared differences of the two sides at one position. [vocab]"""
        return None

    def source_of(self, mismatch: NotFinite) -> str:
        """Return the first module that is not finite; '' if unknown."""
        return ""

    def differing(self) -> list[Evidence]:
        """Positions that differ at all."""
        return []

    def arrays_alone(self) -> Evidence | None:
        """Return what the arrays say without any control."""
        return None
