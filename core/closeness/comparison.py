"""Compare errors: those of one tensor with those of trusted ones, all against an exact result.

Rounding is told from a fault without a tolerance, by four figures: the size of all errors over the
trusted ones', the same at each row, column and index of an axis, each element over what is usual
around it, and whether the errors have a direction (`coherence`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import NormalDist
from typing import Any

import numpy as np

from ..errors import UsageError
from ..numerics.arrays import Floats, Ints, Values
from ..numerics.formats import FLOAT32, FORMATS, FloatFormat
from ..numerics.statistic import FALSE_ALARM, Limits, floor_test, scale_of
from ..text import multiple, percent, plural
from ..verdict import (
    BUG_SUSPECTED,
    IDENTICAL,
    LIKELY_ROUNDING,
    ROUNDING,
    UNDECIDED,
    Checked,
)
from .coherence import (
    IN_16_BITS,
    IN_FLOAT32,
    OVER_TRUSTED,
    PATTERN,
    Direction,
    compare_directions,
    directions,
    most_telling,
    sample_of,
)
from .tensors import dtype_of_values, read_tensor

# times the trusted errors, over all: FlashAttention's bound, as in `checks.drawn`
_LIMIT = 2.0
# at a row or column: sound kernels that round at each step reach 2.4 times eight trusted results,
# and 9.3 times a single one, which may be nearly exact there
_AT_A_PLACE, _AT_A_PLACE_OF_FEW = 3.0, 10.0
# trusted results from which on that decides: fewer may have rounded less by luck
_SEVERAL = 4
# of few: kernels that round at each step reach 4.2 times those that round once
_BEYOND_LUCK = 8.0
_AT_FEW = 2.0  # as much again for an element of few trusted results
# and in float32, whose sums have terms larger than the result: sound kernels reach 11.9 standard
# deviations at one element of 32,768
_IN_FLOAT32 = 2.0
# elements of a row, from which on its mean square is a measure
_FEWEST = 16
# times all other values: a constant that fills masked elements
_FILL = 100.0
_CHUNK = 1 << 16  # elements at a time: they stay in the cache


@dataclass(frozen=True)
class Place:
    """A place with the errors there. kind: 'row', 'column', 'axis 1', 'element'; index: in the
    tensor; ratio: to the trusted errors.
    """

    kind: str
    index: tuple[int, ...]
    ratio: float

    def __str__(self) -> str:
        numbers = ", ".join(map(str, self.index))
        if self.kind.startswith("axis"):
            return f"index {numbers} of {self.kind}"
        return f"{self.kind} {numbers}" if len(self.index) == 1 else f"{self.kind} ({numbers})"


@dataclass(frozen=True)
class ErrorComparison(Checked):
    """Errors of a tensor compared with trusted errors.

    verdict: 'identical', 'rounding', 'likely rounding' (no trusted tensor), 'bug suspected' or
    'undecided'; because: one sentence; dtype: of the computation; differing: elements unlike the
    first trusted tensor; ratio: rms of all errors over the trusted ones'; rows, columns: the same
    at each, rows in the order of the leading axes; worst: the largest of each kind of place;
    places: those that stand out; directions: of the errors, sizes in rms of the trusted ones.
    """

    verdict: str
    because: str
    dtype: str
    shape: tuple[int, ...]
    differing: int
    ratio: float = 1.0
    rows: Floats | None = field(default=None, repr=False)
    columns: Floats | None = field(default=None, repr=False)
    worst: tuple[Place, ...] = ()
    places: tuple[Place, ...] = ()
    directions: tuple[Direction, ...] = ()

    def __str__(self) -> str:
        lines = [
            f"{self.verdict}: {self.because}",
            "",
            f"Elements that differ: {self.differing:,} of {math.prod(self.shape):,}, {self.dtype}",
            f"Errors over those of rounding: {multiple(self.ratio)}",
            *(
                f"Largest by {each.kind}: {multiple(each.ratio)}, {each}"
                for each in self.worst
                if each.ratio
            ),
        ]
        return "\n".join(lines)

    def check(self) -> ErrorComparison:
        """Return the comparison if the errors are those of rounding.

        Raises:
            AssertionError: they are not, or that is undecided; the message has the figures.
        """
        __tracebackhide__ = True
        if self.verdict not in (IDENTICAL, ROUNDING, LIKELY_ROUNDING):
            raise AssertionError(str(self))
        return self


def close(
    actual: Any,
    expected: Any = None,
    exact: Any = None,
    *,
    dtype: Any = None,
    may_be_rounded: bool = True,
) -> None:
    """Raise AssertionError unless the errors of `actual` are those of rounding.

    Args: as of `compare_errors`.
    """
    __tracebackhide__ = True
    compare_errors(
        actual,
        expected,
        exact,
        dtype=dtype,
        may_be_rounded=may_be_rounded,
    ).check()


def compare_errors(
    actual: Any,
    expected: Any = None,
    exact: Any = None,
    *,
    dtype: Any = None,
    may_be_rounded: bool = True,
) -> ErrorComparison:
    """Compare the errors of `actual` with those of `expected`, both against `exact`.

    Args:
        actual: a result, of NumPy, PyTorch, MLX or JAX; any shape, rows along the last axis.
        expected: a trusted result in the same dtype, or a list of several: other kernels, other
            roundings. None: rounding the exact result is the measure.
        exact: the same computed in float32 or float64, more exact than the others.
        dtype: of the computation, if it is not that of `actual`: a name, or torch's.
        may_be_rounded: refuse an 'exact' that holds values of the dtype alone: it was rounded too.
            False if the function rounds nothing, as sums of small integers.

    Raises:
        UsageError: shapes differ, a dtype is unknown, or 'exact' is no more exact than the others.
    """
    if exact is None:
        raise UsageError("'exact' is missing; pass the result computed in float32 or float64.")
    values, own_dtype = read_tensor("actual", actual)
    exact_values = _read_alike("exact", exact, values)
    trusted = _read_trusted(expected, values)
    fmt = _format_of(values, own_dtype, trusted, dtype)
    is_given = bool(trusted)
    if not is_given:
        trusted = [_rounded(exact_values, fmt)]
    is_equal = (values == trusted[0]) | (np.isnan(values) & np.isnan(trusted[0]))
    differing = int(np.count_nonzero(~is_equal))
    conclude = partial(
        ErrorComparison,
        dtype=fmt.name,
        shape=values.shape,
        differing=differing,
    )
    if not differing and (is_given or not may_be_rounded):
        return conclude(IDENTICAL, "it equals the trusted result, bit for bit.")
    if may_be_rounded:
        _refuse_inexact(exact_values, fmt)

    place = _first_nonfinite(values, trusted, exact_values)
    more = ""
    if place is None:
        exact_values = _without_fill(exact_values, [values, *trusted])
        with np.errstate(invalid="ignore", over="ignore"):
            differences = (each - exact_values for each in (values, *trusted))
            # 0 if either is not finite
            errors = [np.where(np.isfinite(each), each, 0) for each in differences]
        if any(each.any() for each in errors[1:]):
            return _conclude(_in_one_unit(errors, exact_values, fmt), differing, is_given=is_given)
        if may_be_rounded:
            raise UsageError(
                "'expected' has no error: it equals 'exact' everywhere. Pass a result in the"
                " working dtype as 'expected', one in float32 or float64 as 'exact'.",
            )
        place = _index_of(np.argmax(np.abs(errors[0])), values.shape)
        more = " The trusted result has no error."
    element = Place("element", place, 1.0)
    says = f"{element} is {values[place]}; 'exact' has {exact_values[place]}.{more}"
    return conclude(BUG_SUSPECTED, says)


def _index_of(number: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(each) for each in np.unravel_index(number, shape))


def _format_of(
    actual: Values,
    own_dtype: str,
    trusted: Sequence[Values],
    dtype: Any,
) -> FloatFormat:
    """Return the format of the computation; that of values which were upcast is the narrower."""
    name = str(dtype or dtype_of_values(actual, own_dtype)).removeprefix("torch.")
    if name not in FORMATS:
        raise UsageError(f"'actual' is {name}; errors are compared in {', '.join(FORMATS)}.")
    # of float8, upcast values say nothing
    is_narrow = dtype_of_values(actual, "float32") == name != "float32"
    if not is_narrow or all(dtype_of_values(each, "float32") == name for each in trusted):
        return FORMATS[name]
    if own_dtype == "float32" and not dtype:
        # zeros, or ones, are values of every format
        return FLOAT32
    raise UsageError(
        f"'expected' has values that {name} does not have, 'actual' has none; pass a result in"
        " the same dtype.",
    )


def _read_alike(name: str, tensor: Any, actual: Values) -> Values:
    values, _ = read_tensor(name, tensor)
    if values.shape != actual.shape:
        raise UsageError(f"'{name}' has shape {values.shape}, 'actual' {actual.shape}.")
    if not values.size:
        raise UsageError(f"'{name}' has no elements.")
    return values


def _rounded(values: Values, fmt: FloatFormat) -> Values:
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(fmt.values).astype(np.float32)


def _refuse_inexact(exact: Values, fmt: FloatFormat) -> None:
    """Raise UsageError if all exact values are values of the format: they were rounded too."""
    # a few values settle it in nearly every tensor
    for values in (exact.ravel()[:_CHUNK], exact):
        if not np.array_equal(_rounded(values, fmt), values, equal_nan=True):
            return
    raise UsageError(
        f"'exact' holds {fmt.name} values alone, so it may be no more exact than 'actual'; compute"
        " it in float64. If the function rounds nothing, pass may_be_rounded=False.",
    )


def _read_trusted(expected: Any, actual: Values) -> list[Values]:
    """Return the trusted tensors, those that are equal once: a rerun is no other rounding."""
    if expected is None:
        return []
    several = expected if isinstance(expected, list | tuple) else [expected]
    if not several:
        raise UsageError("'expected' is an empty list; pass a tensor, or None.")
    trusted: list[Values] = []
    for tensor in several:
        values = _read_alike("expected", tensor, actual)
        if not any(np.array_equal(values, each, equal_nan=True) for each in trusted):
            trusted.append(values)
    return trusted


def _first_nonfinite(
    actual: Values,
    trusted: Sequence[Values],
    exact: Values,
) -> tuple[int, ...] | None:
    """Return the index of the first element that is finite on one side only, or another infinity.

    A trusted result that overflows there too excuses it.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        total = actual.sum(dtype=np.float64) + exact.sum(dtype=np.float64)
    if np.isfinite(total):
        return None
    is_finite = np.isfinite(actual)
    is_alike = is_finite & np.isfinite(exact)
    for each in (exact, *trusted):
        are_nan = np.isnan(each) & np.isnan(actual)
        is_alike |= ~is_finite & (are_nan | (each == actual))
    return None if is_alike.all() else _index_of(np.argmin(is_alike), actual.shape)


def _without_fill(exact: Values, others: Sequence[Values]) -> Values:
    """Return the exact values, infinite where all tensors hold the same large constant.

    Masks of -1e9 say nothing about rounding, and the rounding of such a value hides all others.
    """
    magnitudes = np.abs(np.where(np.isfinite(exact), exact, 0))
    largest = magnitudes.max()
    # near the largest: scores were added to it
    is_large = magnitudes > largest / 2
    rest = magnitudes.max(where=~is_large, initial=0)
    if not 0 < rest < largest / _FILL:
        return exact
    filled = np.stack([each[is_large] for each in others])
    return np.where(is_large, np.inf, exact) if (filled == filled[0]).all() else exact


@dataclass(frozen=True)
class _Errors:
    """Errors in units of the largest of all, so that no square vanishes. [rows, columns] each

    shape: of the tensor; all: errors of the tensor and of each trusted one; exact: exact values,
    same unit.
    """

    shape: tuple[int, ...]
    fmt: FloatFormat
    all: Sequence[Values]
    exact: Values

    @property
    def of_value(self) -> float:
        """Rms of rounding a value, over the value, at the upper end of a binade."""
        return 0.5 ** (self.fmt.mantissa_bits + 1) / math.sqrt(12)

    def place(self, kind: str, number: int, ratio: float) -> Place:
        """Return a place by its number among those of its kind."""
        shapes = {"row": self.shape[:-1], "element": self.shape}
        return Place(kind, _index_of(number, shapes.get(kind, (number + 1,))), ratio)


def _in_one_unit(errors: Sequence[Values], exact: Values, fmt: FloatFormat) -> _Errors:
    rows = (-1, exact.shape[-1] if exact.ndim else 1)
    unit = max(float(np.abs(each).max()) for each in errors)
    scaled = [(each / unit).astype(np.float32).reshape(rows) for each in errors]
    # one impossible number makes float32 values vanish in its unit
    finite = np.where(np.isfinite(exact), exact, 0).astype(np.float64)
    return _Errors(
        exact.shape,
        fmt,
        scaled,
        finite.reshape(rows) / unit,
    )


def _conclude(errors: _Errors, differing: int, *, is_given: bool) -> ErrorComparison:
    """Decide what the errors are. is_given: there is a trusted tensor, not the dtype's rounding."""
    is_several = len(errors.all) > _SEVERAL
    most = _LIMIT if is_several else _BEYOND_LUCK
    if not is_given:
        most = math.inf
    limits = Limits(most, _AT_A_PLACE if is_several else _AT_A_PLACE_OF_FEW)

    by_row = _by_place(errors, "ij,ij->i")
    by_column = _by_place(errors, "ij,ij->j")
    rounding = math.sqrt(by_row[1:].mean())
    ratio = math.sqrt(by_row[0].mean()) / rounding

    worst = []
    places = []
    for kind, squares, numbers in _kinds_of_places(errors, by_row, by_column):
        test = floor_test(squares[0], squares[1:], limits)
        largest, *others = [
            errors.place(kind, int(numbers[place]), float(test.by_position[place]))
            for place in (int(np.argmax(test.by_position)), *test.outliers)
        ]
        worst.append(largest)
        places += others

    # all errors may be larger than the trusted ones, up to the limit
    larger = min(max(1.0, ratio), most)
    element, limit = _largest_element(errors, by_row, by_column)
    limit *= larger * (1 if is_several else _AT_FEW)
    worst.append(element)
    if element.ratio > limit:
        places.append(element)

    sample = sample_of(errors.exact)
    actual, *trusted = [directions(each, sample) for each in errors.all]
    direction_limits = IN_16_BITS if errors.fmt.bits <= 16 else IN_FLOAT32
    found = compare_directions(actual, trusted, rounding, larger, direction_limits)
    verdict, because = _verdict(
        errors,
        ratio,
        places,
        [each for each in found if each.is_fault],
        most,
        is_given=is_given,
    )
    return ErrorComparison(
        verdict,
        because,
        errors.fmt.name,
        errors.shape,
        differing,
        ratio,
        rows=_ratios(by_row),
        columns=_ratios(by_column),
        worst=tuple(worst),
        places=tuple(places),
        directions=tuple(found),
    )


def _by_place(errors: _Errors, over: str) -> Floats:
    """Return the mean squares of the errors of each tensor at each row or column.

    No trusted tensor counts as more exact than one rounding of the values there, which a row with
    one large value is by luck. Zeros are rounded nowhere: other sums of them are as large as any.
    """
    squares = np.stack([np.einsum(over, each, each) for each in errors.all]).astype(np.float64)
    rounded = np.einsum(over, errors.exact, errors.exact) * errors.of_value**2
    trusted = np.maximum(squares[1:], rounded)
    squares[1:] = np.where(
        trusted,
        trusted,
        trusted.mean(),
    )
    return squares * squares.shape[1] / errors.exact.size


def _ratios(squares: Floats) -> Floats:
    """Return the ratio of rms of the first to the mean of the others. [n, places] -> [places]"""
    return np.sqrt(squares[0] / scale_of(squares[1:].mean(axis=0)))


def _kinds_of_places(
    errors: _Errors,
    by_row: Floats,
    by_column: Floats,
) -> Iterator[tuple[str, Floats, Ints]]:
    """Return kinds of places with enough elements, mean squares at each and their numbers."""
    size = errors.exact.size
    largest = np.abs(errors.exact).max() or 1.0
    weights = np.square((errors.exact / largest).astype(np.float32))
    for kind, axis, squares in (("row", 1, by_row), ("column", 0, by_column)):
        # how many equal elements a place is worth: a few large ones are few, zeros are all alike
        sums = weights.sum(axis, np.float64)
        fourth = np.square(weights).sum(axis, np.float64)
        elements = np.full(len(sums), size / len(sums))
        np.divide(
            sums**2,
            fourth,
            out=elements,
            where=fourth > 0,
        )
        enough = np.flatnonzero(elements >= _FEWEST)
        if len(enough) > 1:
            yield kind, squares[:, enough], enough
    leading = errors.shape[:-1]
    for axis, length in enumerate(leading):
        rows = len(by_row[0]) // length
        if len(leading) > 1 and length > 1 and size >= _FEWEST * length:
            of_index = np.moveaxis(by_row.reshape(-1, *leading), 1 + axis, 1)
            squares = of_index.reshape(len(by_row), length, rows)
            if rows > 1:
                # without its largest row: one score that cancels moves a whole row of an attention
                largest_row = squares[:1].argmax(axis=2, keepdims=True)
                squares = squares.sum(axis=2, keepdims=True)
                squares -= np.take_along_axis(of_index.reshape(-1, length, rows), largest_row, 2)
                squares /= rows - 1
            yield f"axis {axis}", squares[..., 0], np.arange(length)


def _largest_element(
    errors: _Errors,
    by_row: Floats,
    by_column: Floats,
) -> tuple[Place, float]:
    """Return the element whose error is furthest beyond what is usual there, and the limit.

    Usual is the rms of the trusted errors in its row or its column, or that of rounding the value,
    whichever is largest.
    """
    rows = np.sqrt(by_row[1:].mean(axis=0)).astype(np.float32)
    columns = np.sqrt(by_column[1:].mean(axis=0)).astype(np.float32)
    step = max(1, _CHUNK // len(columns))
    largest = [(0.0, 0)] * len(errors.all)
    for start in range(0, len(rows), step):
        chunk = slice(start, start + step)
        usual = np.maximum(rows[chunk, None], columns)
        rounded = np.abs(errors.exact[chunk]) * (2 * errors.of_value)
        np.maximum(
            usual,
            rounded,
            out=usual,
            casting="same_kind",
        )
        for number, each in enumerate(errors.all):
            ratios = np.abs(each[chunk]) / np.maximum(usual, np.finfo(np.float32).tiny)
            place = int(ratios.argmax())
            found = float(ratios.flat[place]), start * len(columns) + place
            largest[number] = max(largest[number], found)
    (ratio, place), *trusted = largest
    by_chance = NormalDist().inv_cdf(1 - FALSE_ALARM / errors.exact.size)
    if errors.fmt.bits == 32:
        by_chance *= _IN_FLOAT32
    limit = OVER_TRUSTED * max(by_chance, *(each for each, _ in trusted))
    return errors.place("element", place, ratio), limit


def _verdict(
    errors: _Errors,
    ratio: float,
    places: Sequence[Place],
    faults: Sequence[Direction],
    most: float,
    *,
    is_given: bool,
) -> tuple[str, str]:
    measure = "the trusted ones" if is_given else f"those of rounding to {errors.fmt.name}"
    size = f"errors are {multiple(ratio)} {measure}"
    fault = most_telling(faults) if faults else None
    share = min(1.0, (fault.size / ratio) ** 2) if fault else 0.0
    # a few places make a pattern too
    if fault and (not places or (share > 0.5 and fault.kind != PATTERN)):
        return BUG_SUSPECTED, f"{size}, and {percent(share)} of their square is {fault}."
    if places:
        worst = max(places, key=lambda each: each.ratio)
        more = f", and at {plural(len(places) - 1, 'more place')}" if len(places) > 1 else ""
        return BUG_SUSPECTED, f"{size}, at {worst} {multiple(worst.ratio)}{more}."
    if ratio > most:
        return BUG_SUSPECTED, f"{size}; rounding reaches {multiple(most)}."
    if ratio <= _LIMIT:
        return (ROUNDING if is_given else LIKELY_ROUNDING), f"{size}, and have no direction."
    if is_given:
        return UNDECIDED, (
            f"{size}, which may have rounded less; pass {_SEVERAL} or more trusted results."
        )
    return UNDECIDED, f"{size}; a function of several steps has more: pass a trusted 'expected'."
