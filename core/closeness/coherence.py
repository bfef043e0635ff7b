"""Directions of an error. Rounding has none: its mean is 0 at every value and in every column, and
no scale, constant or pattern explains much of it. A wrong scale, constant, epsilon, a missing term
or a dropped tail has one, also far below the size of rounding.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ..numerics.arrays import Floats, Ints, Values
from ..numerics.statistic import TINY, rms_of

# elements that are looked at: so many show a direction of a hundredth of the rounding, and ten
# times as much by column
_SAMPLE = 1 << 18
PATTERN = "pattern"
# times what the trusted errors have, of the same direction and of the largest element
OVER_TRUSTED = 1.5
# consecutive elements are a part: errors may carry over from one row to the next, as a scan's do,
# so a direction counts only if these parts have it in common
_PARTS = 64
_BINADES = 15  # of values, from the largest one down; smaller ones are together
_BINS = 4 * _BINADES + 2  # two per binade and sign; zeros
_FEWEST_FOR_PATTERN = 8  # rows and columns
_ITERATIONS = 6  # of the power method, which converges at once if a pattern stands out

_IN_WORDS = {
    "constant": "a constant",
    "value": "the same at equal values",
    "column": "the same in all rows",
    PATTERN: "one pattern of rows and columns",
}


class Limit(NamedTuple):
    """From where on a direction is a fault: its size in rms of the trusted errors, its evidence."""

    size: float
    evidence: float


Limits = Mapping[str, Limit]


def limits_of(size: float, evidence: float = 6.0, column: float = 0.25) -> Limits:
    """Return the limits of each direction. size, evidence: of most, of a scale and a constant.

    Of evidence sound kernels reach 3.2 (of 8 that there are); by value 9.5; in a column, where
    errors of a scan carry over from row to row, 15; of a pattern 3.0 times that of noise.
    """
    return {
        "scale": Limit(size, evidence),
        "constant": Limit(size, evidence),
        "value": Limit(size, 12.0),
        "column": Limit(column, 20.0),
        PATTERN: Limit(0.2, 5.0),
    }


# constants and polynomials that kernels compute in float32 reach 0.29; in 16 bits far less
IN_FLOAT32 = limits_of(0.4)
IN_16_BITS = limits_of(0.1)


@dataclass(frozen=True)
class Direction:
    """One direction of an error. kind: 'scale', 'constant', 'value', 'column', 'pattern'.

    size: its rms, in the tensor's unit; evidence: standard deviations from none, of 'pattern' the
    ratio to the largest pattern of noise; coefficient: of 'scale' and 'constant'; is_fault:
    rounding has none of this size.
    """

    kind: str
    size: float
    evidence: float
    coefficient: float = 0.0
    is_fault: bool = False

    def __str__(self) -> str:
        if self.kind == "scale":
            return f"a scale of 1{self.coefficient:+.3g}"
        return _IN_WORDS[self.kind]


@dataclass(frozen=True)
class Sample:
    """Elements that are looked at. rows: [rows]; exact: their exact values [rows, columns]; parts:
    number of the part of each element; bins: its range of values [elements]; is_varied: most values
    differ. Equal values have equal errors, whose common part is no direction.
    """

    rows: Ints
    exact: Floats
    parts: Ints
    bins: Ints
    is_varied: bool


def sample_of(exact: Values) -> Sample:
    """Choose the rows to look at, spread evenly. exact: [rows, columns], finite"""
    rows, columns = exact.shape
    step = max(1, min(rows * columns // _SAMPLE, rows // _PARTS))
    chosen = np.arange(0, rows, step)
    values = exact[chosen].astype(np.float64)
    parts = np.arange(values.size) * _PARTS // values.size
    nonzero = values[values != 0]
    is_varied = 2 * len(np.unique(nonzero)) > len(nonzero)
    # the half binade of each value below the largest, by sign; zeros are the last
    flat = values.ravel()
    magnitudes = np.abs(flat)
    fraction, exponent = np.frexp(magnitudes / (magnitudes.max() or 1.0))
    bins = 2 * np.clip(-exponent, 0, _BINADES - 1) + (fraction < 0.75)
    bins += 2 * _BINADES * (flat < 0)
    bins[magnitudes == 0] = _BINS - 1
    return Sample(
        chosen,
        values,
        parts,
        bins.astype(np.int64),
        is_varied,
    )


def directions(error: Values, sample: Sample) -> list[Direction]:
    """Measure each direction of an error [rows, columns]. None is evident if values are equal."""
    at_sample = error[sample.rows].astype(np.float64)
    flat = at_sample.ravel()
    exact = sample.exact.ravel()
    found = [
        _regression("scale", flat, exact, sample.parts),
        _regression("constant", flat, np.ones_like(exact), sample.parts),
        _by_label("value", flat, sample.bins, sample.parts),
    ]
    rows, columns = at_sample.shape
    if rows >= _PARTS and columns > 1:
        labels = np.tile(np.arange(columns), rows)
        # one sign in a column, or that of each value: an offset of the column, or a scale
        ways = (flat, flat * np.sign(exact))
        of_columns = [_by_label("column", each, labels, sample.parts) for each in ways]
        found.append(max(of_columns, key=lambda each: each.evidence))
    if min(rows, columns) >= _FEWEST_FOR_PATTERN:
        found.append(_pattern(at_sample))
    return [each if sample.is_varied else replace(each, evidence=0.0) for each in found]


def _regression(kind: str, error: Floats, on: Floats, parts: Ints) -> Direction:
    """Fit `error` by a multiple of `on`."""
    sums = np.bincount(parts, error * on)
    total = float(sums.sum())
    # if one of these is 0, so is the total
    norm = float(on @ on) or 1.0
    spread = float(np.linalg.norm(sums)) or 1.0
    size = abs(total) / math.sqrt(norm * len(error))
    return Direction(
        kind,
        size,
        abs(total) / spread,
        total / norm,
    )


def _by_label(kind: str, error: Floats, labels: Ints, parts: Ints) -> Direction:
    """Measure the mean error of the elements of each label. evidence: chi squared of all."""
    count = labels.max() + 1
    sums = np.bincount(parts * count + labels, error, _PARTS * count).reshape(_PARTS, count)
    squares = np.square(sums.sum(axis=0))
    variances = np.square(sums).sum(axis=0)
    known = variances > 0
    freedom = int(known.sum())
    chi = float((squares[known] / variances[known]).sum())
    # without what noise alone gives
    means = np.maximum(squares - variances, 0.0)[known] / np.bincount(labels)[known]
    size = math.sqrt(means.sum() / len(error))
    evidence = (chi - freedom) / math.sqrt(2 * freedom or 1)
    return Direction(kind, size, evidence)


def _pattern(error: Floats) -> Direction:
    """Measure the largest part of an error that is one column of numbers times one row."""
    row = np.random.default_rng(0).standard_normal(error.shape[1:])
    for _ in range(_ITERATIONS):
        column = error @ row
        column = column / max(float(np.linalg.norm(column)), TINY)
        row = column @ error
        size = float(np.linalg.norm(row))
        row = row / max(size, TINY)
    rms = rms_of(np.square(error))
    # the largest singular value of white noise: Geman, Annals of Probability 8 (1980)
    of_noise = rms * sum(math.sqrt(each) for each in error.shape)
    return Direction(
        PATTERN,
        size / math.sqrt(error.size),
        size / (of_noise or 1.0),
    )


def compare_directions(
    actual: Sequence[Direction],
    trusted: Sequence[Sequence[Direction]],
    rounding: float,
    larger: float,
    limits: Limits,
) -> list[Direction]:
    """Return the directions of an error, sizes in `rounding`, the rms of the trusted errors.

    larger: how many times larger a direction may be, because all errors are.
    """
    result = []
    for number, each in enumerate(actual):
        limit = limits[each.kind]
        of_trusted = max(one[number].size for one in trusted)
        is_large = each.size > max(limit.size * larger * rounding, OVER_TRUSTED * of_trusted)
        is_fault = is_large and each.evidence > limit.evidence
        result.append(replace(each, size=each.size / rounding, is_fault=is_fault))
    return result


def most_telling(found: Sequence[Direction]) -> Direction:
    """Return the simplest direction that says nearly all that the largest says."""
    largest = max(each.size for each in found)
    return next(each for each in found if each.size >= 0.8 * largest)
