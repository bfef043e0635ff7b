"""Simple causes that explain a pair before it is called rounding or a bug: fitted on half of the positions, scored on
the other half.

A cause is a pure function of two sides' rows, so far one: a temperature, with the constant a row that log-probabilities
come with.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..numerics.formats import FloatFormat, values_of
from ..runs.file.evidence import NOTED, Check, Evidence, TemperatureFigures
from ..runs.file.records import RunHeader
from ..text import floored_percent, three_digits

_ROWS = 256  # of a side that are kept, evenly spread, and as many tokens of each as make _ELEMENTS
_ELEMENTS, _ELEMENTS_TOGETHER = 1 << 17, 1 << 24
_LEAST_TOKENS = 16  # of a row that is fitted
_EXPLAINED = 0.9  # of the squared difference, at more than half of the positions that were not fitted
# To what single differences shrink, and how many: of noise of either sign hardly more than half can, while the rounding
# of one sure token outweighs the squares of all others.
_SHRUNK, _SHRUNK_SHARE = 1 / 3, 0.6


class Sample:
    """Evenly spread rows and tokens of a side, kept as its rows pass by. values [rows, tokens]"""

    def __init__(self, header: RunHeader) -> None:
        self._fmt = header.format
        self._rows = np.unique(np.linspace(0, header.rows - 1, min(header.rows, _ROWS)).astype(np.int64))
        tokens = max(1, min(_ELEMENTS, _ELEMENTS_TOGETHER // len(header.sides)) // len(self._rows))
        self._tokens = np.unique(np.linspace(0, header.vocab - 1, min(header.vocab, tokens)).astype(np.int64))
        self._kept: list[NDArray[np.float32]] = []
        self._seen = 0

    def see(self, bits: NDArray[np.unsignedinteger]) -> None:
        """The next rows. [rows, vocab] bits of the compute dtype."""
        here = self._rows[(self._rows >= self._seen) & (self._rows < self._seen + len(bits))] - self._seen
        if len(here):
            self._kept.append(values_of(bits[here[:, None], self._tokens], self._fmt))
        self._seen += len(bits)

    @property
    def values(self) -> NDArray[np.float64]:
        return np.concatenate(self._kept).astype(np.float64)


@dataclass(frozen=True)
class Temperature:
    """variant = factor x reference + a constant a row, as fitted. explained: share of the squared difference, and rows:
    of the positions that were not fitted, at which it is nine tenths of it; left_rms, constant_rms: of what is left and
    of the constants, logits; left_grids: left_rms in what rounding both sides to their dtype leaves.
    """

    factor: float
    explained: float
    rows: int
    rows_checked: int
    left_rms: float
    left_grids: float
    constant_rms: float

    @property
    def has_constant(self) -> bool:
        return self.constant_rms > self.left_rms


def temperature_of(
    reference: NDArray[np.float64], variant: NDArray[np.float64], fmt: FloatFormat
) -> Temperature | None:
    """The temperature that parts two sides, [rows, tokens] of both, None where none explains them. Values not finite on
    both are left out.

    The factor is the median over every other row of its least-squares slope, which a fault at some of them does not
    move. It is claimed where it explains nine tenths of the squared difference at more than half of the other rows, and
    where most of the single differences there shrink to a third.
    """
    is_known = np.isfinite(reference) & np.isfinite(variant)
    usable = is_known.sum(axis=1) >= _LEAST_TOKENS
    is_known = is_known[usable]
    x, y = (np.where(is_known, side[usable], np.nan) for side in (reference, variant))
    slopes, varied = _slopes(x, y)
    fitted, checked = varied[::2], varied[1::2]
    if not len(checked):
        return None
    factor = float(np.median(slopes[fitted]))
    x, y, elements = x[checked], y[checked], int(is_known[checked].sum())
    # Constants are medians: a mean is moved by one large logit, and then all others seem to move with it.
    constants = np.nanmedian(y - factor * x, axis=1)
    left = y - factor * x - constants[:, None]
    apart = y - x - np.nanmedian(y - x, axis=1)[:, None]
    squares, apart_squares = np.nansum(left**2, axis=1), np.nansum(apart**2, axis=1)
    is_explained = (squares <= (1 - _EXPLAINED) * apart_squares) & (apart_squares > 0)
    differing = np.abs(apart) > 0  # NaN is not
    shrunk = (np.abs(left[differing]) <= _SHRUNK * np.abs(apart[differing])).mean() if differing.any() else 0.0
    if factor <= 0 or 2 * is_explained.sum() <= len(checked) or shrunk < _SHRUNK_SHARE:
        return None
    steps = factor**2 * _spacing(x, fmt) ** 2 + _spacing(y, fmt) ** 2
    rounding = math.sqrt(float(np.nansum(steps)) / 12 / elements)  # an error uniform within half a step
    left_rms = math.sqrt(float(squares.sum()) / elements)
    return Temperature(
        factor,
        1 - float(squares.sum() / np.nansum((y - x) ** 2)),
        int(is_explained.sum()),
        len(checked),
        left_rms,
        left_rms / rounding,
        float(np.sqrt((constants**2).mean())),
    )


def _slopes(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """(least-squares slope of y over x in every row, NaN left out; the rows that have one)."""
    if not len(x):
        return np.zeros(0), np.zeros(0, np.int64)
    x, y = (side - np.nanmean(side, axis=1, keepdims=True) for side in (x, y))
    spread = np.nansum(x * x, axis=1)
    return np.nansum(x * y, axis=1) / np.where(spread > 0, spread, 1.0), np.flatnonzero(spread > 0)


def _spacing(values: NDArray[np.float64], fmt: FloatFormat) -> NDArray[np.float64]:
    """Spacing of the format at every value: 2^(e - mantissa bits), e no less than that of its smallest normal number;
    NaN at NaN.
    """
    least = 2 - (1 << (fmt.bits - fmt.mantissa_bits - 2))
    return np.where(
        np.isnan(values), np.nan, np.ldexp(1.0, np.maximum(np.frexp(values)[1] - 1, least) - fmt.mantissa_bits)
    )


def causes_of(header: RunHeader, samples: Sequence[Sample]) -> list[list[Evidence]]:
    """Evidence of what explains every pair, a noted row each; `samples`: of every side."""
    reference = samples[0].values
    return [
        _row(header, side, temperature_of(reference, samples[side].values, header.format))
        for side in range(1, len(samples))
    ]


def _row(header: RunHeader, side: int, found: Temperature | None) -> list[Evidence]:
    if found is None:
        return []
    names = header.sides[0].name, header.sides[side].name
    figures = TemperatureFigures(
        cause="temperature",
        factor=found.factor,
        temperature=1 / found.factor,
        explained_share=found.explained,
        positions_explained=found.rows,
        positions_checked=found.rows_checked,
        left_rms_logits=found.left_rms,
        left_in_rounding_to_dtype=found.left_grids,
        constant_rms_logits=found.constant_rms,
    )
    constant = " plus a constant at each position" if found.has_constant else ""
    where = (
        ""
        if found.rows == found.rows_checked
        else f" at {found.rows:,} of {found.rows_checked:,} positions it was checked at"
    )
    says = (
        f"The logits of '{names[1]}' are {found.factor:.3g} times those of '{names[0]}'{constant}{where}, as a"
        f" temperature of {1 / found.factor:.2f} makes them (or of {found.factor:.2f} on '{names[0]}'); it explains"
        f" {floored_percent(found.explained)} of the squared difference and leaves {found.left_rms:.3g} logits (rms),"
        f" {three_digits(found.left_grids)} times what rounding to {header.compute_dtype} leaves."
    )
    control = "one factor for all logits, fitted at every other position, at those between"
    return [Evidence(Check.TEMPERATURE, control, figures, NOTED, says)]
