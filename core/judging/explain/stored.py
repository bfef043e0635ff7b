"""Simple causes of a stored pair, and what each leaves in units of the pair's rounding floor."""

from __future__ import annotations

from dataclasses import replace

from ...runs.file.evidence import PairFigures
from ...runs.reader import RunReader
from ...runs.sparse.pairing import SparsePair
from ...runs.sparse.records import SparseSide
from ...text import number
from .hypotheses import causes_of
from .rows import rows_of_lists, rows_of_run
from .scoring import Cause


def causes_of_pair(run: RunReader, pair: int) -> list[Cause]:
    """Causes that are claimed, best first; of a judged pair each says how many rounding floors it leaves. A pair whose
    sides have the same bits has none.
    """
    if run.pairs[pair].summary.bit_identical:
        return []
    floors = {
        row.figures.compute_dtype: row.figures.floor_rms_logits
        for row in run.evidence(pair)
        if isinstance(row.figures, PairFigures) and row.figures.floor_rms_logits > 0
    }
    floor = floors.get(run.header.compute_dtype)
    return [cause if floor is None else in_floors(cause, floor) for cause in causes_of(rows_of_run(run, pair))]


def causes_of_lists(pair: SparsePair, reference: SparseSide, variant: SparseSide) -> list[Cause]:
    """Causes that are claimed of a pair of lists, values that are no values of a model before all."""
    return [*placeholders_of(pair), *causes_of(rows_of_lists(pair, reference, variant))]


def placeholders_of(pair: SparsePair) -> list[Cause]:
    """Observations of values that are no values of a model."""
    return [
        Cause("placeholders", f"{one.says[:1].upper()}{one.says[1:]}.", {"tokens": one.tokens, "of": one.of})
        for one in pair.placeholders
    ]


def in_floors(cause: Cause, floor_rms: float) -> Cause:
    """The cause with what it leaves over a floor. floor_rms: in the values' unit."""
    if cause.left_rms is None:
        return cause
    left = cause.left_rms / floor_rms
    return replace(cause, left_floors=left, says=f"{cause.says[:-1]}, {number(left, 3)} rounding floors.")
