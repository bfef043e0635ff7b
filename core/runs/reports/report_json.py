"""The JSON shape of the metric contract, from stored figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ...errors import StoreError, UsageError
from ...evidence import ORDER
from ...numerics.arrays import Record
from ...numerics.metrics import METRICS, Summary
from ...text import clean
from ..dumps.shapes import VALUES
from ..file.records import RunHeader, StoredPair
from ..queries.verdicts import Answer, answer_of

if TYPE_CHECKING:
    from ..measured import MemoryRun
    from ..reader import RunReader

_POSITION_FIELDS = tuple(metric.name for metric in METRICS if metric.is_reported)
_FLIP_FIELDS = tuple(
    name
    for name in _POSITION_FIELDS
    if name not in ("neq", "nonfinite_mismatch", "is_flip", "near_tie", "could_flip")
)


def plain_number(value: Any) -> Any:
    """Return a value as JSON knows it; undefined numbers become null."""
    if value is None or value != value or (isinstance(value, float) and math.isinf(value)):
        return None
    # json takes no numbers of numpy
    return value.item() if isinstance(value, np.generic) else value


def _plain(values: Mapping[str, Any]) -> Record:
    return {name: plain_number(value) for name, value in values.items()}


def over_positions(summary: Summary, rows: int) -> str:
    """`over 14 of 40 positions; infinite at 26`: what mean and largest KL are over, '' if that is
    all of them.
    """
    over = over_some(summary.kl_positions, rows, "positions")
    if summary.kl_infinite:
        over += f"; infinite at {summary.kl_infinite:,}"
    if undefined := rows - summary.kl_positions - summary.kl_infinite:
        over += f"; undefined at {undefined:,}"
    return over


def over_some(count: int, of: int, what: str) -> str:
    """`over 280 of 24,000 logits`: what a figure is over, '' if that is all of them."""
    return "" if count == of else f"over {count:,} of {of:,} {what}"


@dataclass(frozen=True)
class PairReport:
    """One pair's share of the report: summary, histogram, one dict per row, and its verdict.

    mismatch: figures of trainer vs. rollout, if they were asked for.
    """

    reference: str
    variant: str
    summary: Summary
    histogram: dict[int, int]
    rows: list[Record]
    answer: Answer
    unit: str
    is_list: bool
    positions: int
    mismatch: Record | None = None
    has_tokens: bool = True

    @property
    def sides(self) -> str:
        return f"'{clean(self.variant, 200)}' vs '{clean(self.reference, 200)}'"

    @property
    def figures(self) -> Record:
        """The summary, with null for what is undefined."""
        return _plain(vars(self.summary))


def report_of_run(
    run: RunReader | MemoryRun,
    only: int | None = None,
) -> tuple[list[PairReport], list[list[str]]]:
    """Return the pairs of a run, from the figures in its file, and its classes of sides with equal
    bits.

    only: the pair of which rows and histogram are read; those of the others are left empty then.
    """
    pairs = []
    header = run.header
    for pair in run.pairs:
        is_read = only in (None, pair.index)
        records = run.records(pair.index) if is_read else []
        rows = [_plain(row) for row in records]
        places = [(row["prompt"], row["position"]) for row in rows]
        if is_read and not header.is_list and places != header.places():
            raise StoreError(
                f"{run.path.name}: its figures are of other positions than its prompts have; the"
                " file is damaged.",
            )
        report = PairReport(
            pair.reference,
            pair.variant,
            pair.summary,
            run.histogram(pair.index) if is_read else {},
            rows,
            answer_of(run, pair),
            header.unit,
            header.is_list,
            run.compared_positions(pair.index) if header.is_list else header.rows,
            has_tokens=header.has_tokens,
        )
        pairs.append(report)
    return pairs, run.classes


_Pair = TypeVar("_Pair", StoredPair, PairReport)


def of_variant(pairs: Sequence[_Pair], variant: str | None) -> list[_Pair]:
    """Return the pairs of a variant, all if it is None; UsageError if it has none."""
    found = [pair for pair in pairs if variant in (None, pair.variant)]
    if variant is not None and not found:
        there = ", ".join(pair.variant for pair in pairs)
        raise UsageError(f"no variant '{variant}'; there are {there}.")
    return found


def _verdict_json(pair: PairReport) -> Record:
    answer = pair.answer
    result = {
        "reference": pair.reference,
        "variant": pair.variant,
        "verdict": answer.name,
        "because": answer.sentence if answer.is_judged else None,
        "first_place": answer.first_place,
        "next_command": answer.next_command or None,
    }
    # of values that are no logits
    orders = [row.figures.to_json() for row in answer.checks if row.group == ORDER]
    return result | ({"order": orders[0]} if orders else {})


def as_json(
    pairs: list[PairReport],
    classes: list[list[str]],
    header: RunHeader,
    *,
    variant: str | None = None,
    with_positions: bool = False,
) -> Record:
    """Return the object of the contract. variant: side of the pair in `summary` (default: the
    first).
    """
    selection = of_variant(pairs, variant)[0]

    def with_place(row: Record, names: tuple[str, ...]) -> Record:
        # a run of one prompt names none, as the contract has it
        place = {"prompt": row["prompt"]} if header.has_several_prompts else {}
        return {**place, "position": row["position"], **{name: row[name] for name in names}}

    result: Record = {
        "reference": selection.reference,
        "variant": selection.variant,
        "compute_dtype": header.compute_dtype or None,
        "positions": selection.positions,
        "vocab": header.vocab or None,
        **_verdict_json(selection),
        "summary": selection.figures,
        "ulp_histogram": {f"{ulps}": count for ulps, count in selection.histogram.items()},
        "flips": [with_place(row, _FLIP_FIELDS) for row in selection.rows if row["is_flip"]],
    }
    if not header.has_tokens:
        result["holds"] = VALUES
    if selection.mismatch:
        result["mismatch"] = selection.mismatch
    if with_positions:
        result["by_position"] = [with_place(row, _POSITION_FIELDS) for row in selection.rows]
    if len(pairs) > 1:
        result["pairs"] = [_verdict_json(pair) | pair.figures for pair in pairs]
        result["classes"] = classes
    return result
