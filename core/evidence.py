"""Evidence of a verdict: what a check declares, its figures, and the row that it reports.

`core/checks/` has a file for each check. A figure's label and unit are declared with its field.
Pages, JSON, the run file and docs/reference/checks.md read them there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, get_args, get_type_hints

import msgspec
from msgspec import structs

from .errors import UsageError
from .numerics.statistic import BLOCKS
from .text import clean

PASSED, FAILED, MISSING, NOTED = "passed", "failed", "not available", "informative"
EXPLAINED = "explained"  # of a pair that is `lower precision`: shown for a failed check, not stored
OUTCOMES = (PASSED, FAILED, MISSING, NOTED, EXPLAINED)

VALIDITY, SAMPLER, SCREENING = "validity", "sampler", "screening"
RERUN, NEIGHBOURS, STATE = "rerun", "neighbours", "state"
OWN_DTYPE, FLOAT32, PRECISION = "own dtype", "float32", "precision"
STRUCTURE, MODULES, ORDER = "structure", "modules", "order"
CHECK_GROUPS = {  # groups of checks in the order in which they run, with their titles
    VALIDITY: "validity",
    SAMPLER: "sampler",
    SCREENING: "arrays alone",
    RERUN: "rerun",
    NEIGHBOURS: "neighbors",
    STATE: "server state",
    OWN_DTYPE: "compute dtype",
    FLOAT32: "float32 comparison",
    PRECISION: "lower precision",
    ORDER: "cosine and order",
    STRUCTURE: "positions",
    MODULES: "modules",
}

# Figures that several checks have, with their labels.
Dtype = Annotated[str, "dtype"]
FirstPlace = Annotated[tuple[int, int] | None, "first (prompt, position)"]
Ratio = Annotated[float, "RMS difference / noise floor"]
WorstRatio = Annotated[float | None, "largest ratio at one position"]
Limit = Annotated[float, "its limit"]
Positions = Annotated[int, "positions"]
Outliers = Annotated[int, "outlier positions"]
Mismatches = Annotated[int, "logits NaN or infinite on one side only"]


class CheckFigures(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Figures of one check. A figure is written to JSON as null if it has no value, and left out if
    its default is None.
    """

    # 16 bits were compared: if the check is not available, their errors are beyond rounding, and
    # nothing measures them
    leaves_16_bits_open: ClassVar[bool] = False

    @property
    def ratio(self) -> float:
        """Noise ratio, infinite if the difference has no size."""
        ratio = getattr(self, "noise_ratio", None)
        return math.inf if ratio is None else ratio

    @property
    def names_position(self) -> bool:
        """Whether the sentence of a failed check says at which position it failed."""
        return False

    def present(self) -> list[tuple[str, str, Any]]:
        """Every figure there is: its key in JSON, its label and its value."""
        values = self.to_json()
        labels = labels_of(type(self))
        return [(key, label, values[key]) for key, label in labels.items() if key in values]

    def to_json(self) -> dict[str, Any]:
        """Return the figures as an object of JSON."""
        return msgspec.to_builtins(self)


class Unmeasured(CheckFigures):
    """Figures of a check that could not be run: the available controls, the dtype that rules it
    out.
    """

    controls: Annotated[tuple[str, ...] | None, "controls that were given"] = msgspec.field(
        default=None,
        name="tried",
    )
    computes_in: Annotated[Mapping[str, str] | None, "computes in, whatever the request"] = None


class RatioFigures(CheckFigures):
    """A noise ratio and the dtype it was measured in, with which figures of several checks
    begin.
    """

    compute_dtype: Dtype
    noise_ratio: Annotated[float | None, "RMS difference / noise floor"]


class Check(str):
    """Check that a row of evidence reports, in the words that are stored for it.

    group: what a failure of it means, as conclude.py says; record: of its figures; if_passed:
    verdict that it shows then, if nothing else decides, '' if none.
    """

    group: str
    record: type[CheckFigures]
    if_passed: str

    def __new__(
        cls,
        words: str,
        group: str = "",
        record: type[CheckFigures] = CheckFigures,
        if_passed: str = "",
    ) -> Check:
        """Make a check; a copy has its words alone, and then what it was copied from."""
        check = super().__new__(cls, words)
        check.group = group
        check.record = record
        check.if_passed = if_passed
        return check

    @property
    def order(self) -> int:
        """Index of its group in `CHECK_GROUPS`."""
        return list(CHECK_GROUPS).index(self.group)


@dataclass(frozen=True)
class Evidence:
    """Row of evidence: a check, its control, figures, outcome, and a sentence on it.

    side: name of the one side that the row is about, None if it is about the pair.
    """

    check: Check
    control: str
    figures: CheckFigures
    outcome: str
    says: str
    side: str | None = None

    def __post_init__(self) -> None:
        if self.outcome not in OUTCOMES:
            raise UsageError(
                f"the outcome of a check is one of {', '.join(OUTCOMES)}, not"
                f" '{clean(self.outcome)}'",
            )
        if type(self.figures) not in (self.check.record, Unmeasured):
            raise UsageError(
                f"{type(self.figures).__name__} are no figures of the check '{self.check}'",
            )

    @property
    def group(self) -> str:
        """Group that the check belongs to."""
        return self.check.group

    def to_json(self) -> dict[str, Any]:
        """Return the row as an object of JSON."""
        return {
            "group": self.group,
            "check": str(self.check),
            "side": self.side,
            "control": self.control,
            "figures": self.figures.to_json(),
            "outcome": self.outcome,
            "says": self.says,
        }


class Subject:
    """Two sides that are judged, as the row of a check may know them besides what was measured.

    names: of the reference and the variant; lengths: positions of each prompt; dtype: that they
    compute in; blocks: sizes that a fault may begin at multiples of; shares_scale: as of
    `floor_test`.
    """

    names: tuple[str, str]
    lengths: list[int]
    dtype: str
    has_experts: bool = False
    blocks: Sequence[int] = BLOCKS
    shares_scale: bool = False

    @property
    def replays(self) -> bool:
        """True if both sides are compared with the experts that the model takes."""
        return False

    @property
    def chooses_keys(self) -> bool:
        """True if attention chooses its keys: near ties move a sound side by more than rounding."""
        return False


@cache
def labels_of(record: type[CheckFigures]) -> dict[str, str]:
    """Labels of a record's figures, by their keys in JSON."""
    hints = get_type_hints(record, include_extras=True)
    return {each.encode_name: get_args(hints[each.name])[1] for each in structs.fields(record)}
