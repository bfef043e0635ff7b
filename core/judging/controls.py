"""Controls: what can be asked about a pair.

A model answers by running, a dump by reading. Nothing is judged by a constant number of logits or
ULPs: a difference is compared with what rounding does to this checkpoint on these prompts.
"""

# ruff: noqa: ARG002  (a control that is not available takes arguments for those that are)

from collections.abc import Mapping, Sequence

from ..cause import Cause
from ..checks.drawn import Exact
from ..checks.lower_precision import PrecisionVerdict
from ..checks.other_rows import OtherRows
from ..checks.pair import NoiseFloor, Pair
from ..checks.rerun import Rerun
from ..errors import CaptureError
from ..evidence import Evidence, Subject
from ..numerics.arrays import Floats
from ..numerics.statistic import FloorTest
from ..places import NotFinite


class NotAvailableError(CaptureError):
    """A control that cannot be had, with the reason for a reader who can mend it; '' if there is
    nothing to say.
    """


class StaysInFloat32Error(NotAvailableError):
    """A side, or a part of it, computes in float32 whatever it is asked, so float64 shows nothing
    more.
    """


class Controls(Subject):
    """What can be asked about one pair; what a source cannot answer stays as it is here.

    A method raises NotAvailableError, or the CaptureError that stopped it. only_16_bits: sides
    that compute in 16 bits whatever they are asked, and the dtype; available: controls that were
    given; causes: common causes that explain the difference, best first.
    """

    available: tuple[str, ...] | None = None

    @property
    def only_16_bits(self) -> Mapping[str, str]:
        return {}

    @property
    def causes(self) -> Sequence[Cause]:
        return ()

    def validity(self) -> list[Evidence]:
        """Can the sides be compared at all, and is each emitted token the argmax?"""
        return []

    def pair(self, dtype: str) -> Pair:
        """Both sides in a dtype."""
        raise NotAvailableError("")

    def floor(self, dtype: str) -> NoiseFloor:
        """Return what rounding does in a dtype."""
        raise NotAvailableError("")

    def larger_floor(self, dtype: str) -> NoiseFloor:
        """Return what rounding does in a dtype, over four times as many draws."""
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

    def choices(self) -> list[Evidence]:
        """Compare the experts that each side would have taken with those that the model takes."""
        return []

    def module_rounding(self) -> list[Evidence]:
        """Compare each module of the sides in 16 bits with its rounding."""
        return []

    def from_model(self) -> Mapping[str, Floats]:
        """Mean squares of each recorded side to the model's own prefill, in the dtype of the pair.
        [positions]
        """
        return {}

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

    def differences(self, row: int, dtype: str) -> Floats | None:
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
