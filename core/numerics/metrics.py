"""The registry of metrics: one entry per figure, from which come the columns of a run file, the
JSON of reports and the tables in docs/reference/metrics.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .divergence import RowFigures


@dataclass(frozen=True)
class Metric:
    """A figure of a pair at each position.

    dtype: numpy's name of it; is_nullable: undefined at some positions, which `RowFigures` says by
    NaN, or by a token id of -1; is_reported: in the JSON of reports and the tables of pages; value:
    what it is of rows, None if `RowFigures` has it under this name.
    """

    name: str
    unit: str
    dtype: str
    help: str
    is_nullable: bool = False
    is_reported: bool = True
    value: Callable[[RowFigures], NDArray] | None = None

    def of(self, figures: RowFigures) -> NDArray:
        """Return the figure of each row. [rows]"""
        return self.value(figures) if self.value else figures.figure(self.name)


_SAME = "over the same elements"
METRICS = (
    Metric(
        "neq",
        "elements",
        "int64",
        "values differ; +0 equals -0; NaN equals NaN and differs from everything else",
    ),
    Metric(
        "bit_identical",
        "",
        "bool",
        "every bit pattern equal, so +0 and -0 are not",
        is_reported=False,
    ),
    Metric(
        "max_abs",
        "logits",
        "float64",
        "largest absolute difference over elements finite on both sides, in float64",
    ),
    Metric(
        "rms",
        "logits",
        "float64",
        f"root mean square of the difference {_SAME}",
        is_reported=False,
    ),
    Metric("max_ulps", "ULPs", "int64", f"largest distance {_SAME}"),
    Metric(
        "max_ulps_token",
        "token id",
        "int32",
        "lowest token id with that distance",
        is_reported=False,
    ),
    Metric("mean_ulps", "ULPs", "float64", f"mean distance {_SAME}", is_reported=False),
    Metric(
        "max_row_ulps",
        "row ULPs",
        "float64",
        "max_abs over the spacing of the compute dtype at the reference row's largest finite"
        " magnitude; null if the reference has no finite element",
        is_nullable=True,
    ),
    Metric(
        "rms_row_ulps",
        "row ULPs",
        "float64",
        "rms over that spacing; null if that is",
        is_nullable=True,
    ),
    Metric(
        "nonfinite_mismatch",
        "elements",
        "int64",
        "NaN on one side only, or an infinity that is not met by the same infinity",
    ),
    Metric(
        "reference_token",
        "token id",
        "int32",
        "argmax of the reference; lowest id on ties; NaN never wins; null if every value is NaN",
        is_nullable=True,
    ),
    Metric("variant_token", "token id", "int32", "the same of the variant", is_nullable=True),
    Metric("is_flip", "", "bool", "the two argmax differ"),
    Metric(
        "reference_margin",
        "logits",
        "float64",
        "top-1 minus runner-up of the reference; 0 is a tie, or two equal infinities; null if it is"
        " not finite",
        is_nullable=True,
    ),
    Metric("variant_margin", "logits", "float64", "the same of the variant", is_nullable=True),
    Metric("reference_margin_ulps", "ULPs", "int64", "reference_margin in ULPs", is_nullable=True),
    Metric("variant_margin_ulps", "ULPs", "int64", "variant_margin in ULPs", is_nullable=True),
    Metric(
        "near_tie",
        "",
        "bool",
        "smaller margin of the two sides at most 2 row ULPs; false if the reference has no finite"
        " element",
    ),
    Metric(
        "could_flip",
        "",
        "bool",
        "smaller margin at most twice max_abs: only there can an argmax change. True of every flip,"
        " so it is a check of the code and never evidence for rounding",
    ),
    Metric("is_tie", "", "bool", "a margin of 0 on either side", is_reported=False),
    Metric(
        "kl",
        "nats",
        "float64",
        "KL(reference ‖ variant) in float64; a token at -inf on the reference contributes 0; null"
        " if NaN, +inf, or the variant has -inf where the reference has mass",
        is_nullable=True,
    ),
)


# of a figure over the rows of a pair; rows with an undefined figure are left out
Reduction = Literal["sum", "mean", "1 - mean", "root of mean", "largest", "least", "rows defined"]


@dataclass(frozen=True)
class SummaryRule:
    """Reduction of a figure of `RowFigures`. denominator: figure that a mean is over, '' for the
    rows.
    """

    reduction: Reduction
    figure: str
    denominator: str = ""


def _total(unit: str, reduction: Reduction, figure: str, help: str, denominator: str = "") -> Any:
    return field(
        metadata={"unit": unit, "rule": SummaryRule(reduction, figure, denominator), "help": help},
    )


@dataclass(frozen=True)
class Summary:
    """A pair in one row: the `summary` object of the metric contract, same names, same order. None
    if nothing defines the figure.
    """

    bit_identical: bool = _total(
        "",
        "least",
        "bit_identical",
        "every bit pattern equal, so +0 and -0 are not",
    )
    neq: int = _total("elements", "sum", "neq", "values differ, at all positions together")
    neq_share: float = _total("", "mean", "neq", "neq over positions x vocab", "elements")
    max_abs: float = _total(
        "logits",
        "largest",
        "max_abs",
        "largest absolute difference of all positions",
    )
    rms: float = _total(
        "logits",
        "root of mean",
        "sum_squares",
        "root mean square of the difference over the finite elements",
        "finite",
    )
    max_ulps: int = _total(
        "ULPs",
        "largest",
        "max_ulps",
        "largest distance of all positions",
    )
    mean_ulps: float = _total(
        "ULPs",
        "mean",
        "sum_ulps",
        "mean distance over the finite elements",
        "finite",
    )
    max_row_ulps: float | None = _total(
        "row ULPs",
        "largest",
        "max_row_ulps",
        "largest max_row_ulps of all positions; null if it is undefined everywhere",
    )
    rms_row_ulps: float | None = _total(
        "row ULPs",
        "root of mean",
        "row_squares",
        "root mean square of the difference in row ULPs over the finite elements; null if there are"
        " none",
        "finite",
    )
    nonfinite_mismatch: int = _total(
        "elements",
        "sum",
        "nonfinite_mismatch",
        "NaN or infinity not met by the same, at all positions together",
    )
    flips: int = _total("positions", "sum", "is_flip", "the two argmax differ")
    ties: int = _total("positions", "sum", "is_tie", "a margin of 0 on either side")
    near_ties: int = _total(
        "positions",
        "sum",
        "near_tie",
        "smaller margin at most 2 row ULPs",
    )
    could_flip: int = _total(
        "positions",
        "sum",
        "could_flip",
        "smaller margin at most twice max_abs: only there can an argmax change",
    )
    mean_kl: float | None = _total(
        "nats",
        "mean",
        "kl",
        "mean kl over kl_positions; null if there are none",
    )
    max_kl: float | None = _total(
        "nats",
        "largest",
        "kl",
        "largest kl; null if there is none",
    )
    same_top1: float = _total(
        "",
        "1 - mean",
        "is_flip",
        "share of positions with the same argmax",
    )
    min_margin: float | None = _total(
        "logits",
        "least",
        "smaller_margin",
        "smallest margin over both sides and all positions; null if there is none",
    )
    kl_positions: int = _total(
        "positions",
        "rows defined",
        "kl",
        "what mean_kl and max_kl are over. If fewer than all, every table, page and issue text"
        " shows it next to the figure",
    )
    kl_infinite: int = _total(
        "positions",
        "sum",
        "is_kl_infinite",
        "KL is infinite: the variant has -inf where the reference has mass",
    )
    margin_positions: int = _total(
        "positions",
        "rows defined",
        "smaller_margin",
        "what min_margin is over",
    )
    finite: int = _total(
        "elements",
        "sum",
        "finite",
        "finite on both sides: what max_abs, rms, ULPs and row ULPs are over",
    )


# of a summary: what its other figures are over
COUNTS = ("kl_positions", "kl_infinite", "margin_positions", "finite")

NULLABLE = frozenset(
    [metric.name for metric in METRICS if metric.is_nullable]
    + [total.name for total in fields(Summary) if "None" in str(total.type)],
)

# What only rows over a vocabulary have, by its name in `RowFigures`: of other values there is no
# argmax, no margin and no softmax.
OF_TOKENS = frozenset(
    {
        "reference_token",
        "variant_token",
        "is_flip",
        "reference_margin",
        "variant_margin",
        "reference_margin_ulps",
        "variant_margin_ulps",
        "smaller_margin",
        "near_tie",
        "could_flip",
        "is_tie",
        "kl",
    },
)
# counts of a summary that are unknown without them
COUNTS_OF_TOKENS = frozenset({"flips", "ties", "near_ties", "could_flip", "same_top1"})

# What lists of top tokens leave open: statements on whole rows, and what no token that both sides
# sent defines.
OPEN_IN_LISTS = frozenset(
    {
        "bit_identical",
        "neq_share",
        "max_abs",
        "rms",
        "max_ulps",
        "max_ulps_token",
        "mean_ulps",
        "is_flip",
        "near_tie",
        "could_flip",
        "is_tie",
        "near_ties",
        "same_top1",
    },
)
