"""Simple causes of a stored pair, and what each leaves in units of the pair's rounding floor."""

from __future__ import annotations

from dataclasses import replace

from ...runs.file.evidence import PairFigures
from ...runs.reader import RunReader
from ...runs.topk.pairing import ListPair
from ...runs.topk.placeholders import clauses
from ...runs.topk.records import ListSide
from ...text import number
from .hypotheses import Explanation, explain
from .rows import rows_of_lists, rows_of_run
from .scoring import Cause


def explain_pair(run: RunReader, pair: int) -> Explanation:
    """Causes that are claimed, best first; of a judged pair each says how many rounding floors it leaves. A pair whose
    sides have the same bits has none, and nothing is looked for.
    """
    if run.pairs[pair].summary.bit_identical:
        return Explanation([], 0, run.header.rows, [], {})
    floors = {
        row.figures.compute_dtype: row.figures.floor_rms_logits
        for row in run.evidence(pair)
        if isinstance(row.figures, PairFigures) and row.figures.floor_rms_logits > 0
    }
    floor = floors.get(run.header.compute_dtype)
    found = explain(rows_of_run(run, pair))
    return found if floor is None else replace(found, causes=[in_floors(cause, floor) for cause in found.causes])


def causes_of_pair(run: RunReader, pair: int) -> list[Cause]:
    return explain_pair(run, pair).causes


def explain_lists(pair: ListPair, reference: ListSide, variant: ListSide) -> Explanation:
    """Causes that are claimed of a pair of lists, values that are no values of a model before all."""
    found = explain(rows_of_lists(pair, reference, variant))
    seen = clauses(pair.placeholders)
    placeholders = [Cause("placeholders", f"{clause[:1].upper()}{clause[1:]}.") for clause in seen]
    return replace(found, causes=[*placeholders, *found.causes])


def in_floors(cause: Cause, floor_rms: float) -> Cause:
    """The cause with what it leaves over a floor. floor_rms: in the values' unit."""
    if cause.left_rms is None:
        return cause
    left = cause.left_rms / floor_rms
    return replace(cause, left_floors=left, says=f"{cause.says[:-1]}, {number(left, 3)} rounding floors.")
