"""A slow second opinion on the figures of the metric contract: torch for values, scipy for sums,
ranks instead of bit tricks.

It shares no line with core.numerics but the names of the formats. `differences` is the judge that
every test and every planted fault goes through.
"""

import math
from collections import Counter
from dataclasses import dataclass
from functools import cache

import numpy as np
import scipy.special
import torch
from numpy.typing import NDArray

from core.numerics.divergence import histogram_of

TOP_K = 20
TORCH = {
    "float32": (torch.float32, np.int32),
    "float16": (torch.float16, np.int16),
    "bfloat16": (torch.bfloat16, np.int16),
    "float8_e4m3fn": (torch.float8_e4m3fn, np.uint8),
    "float8_e5m2": (torch.float8_e5m2, np.uint8),
}


def values(bits, fmt):
    """What the bits mean, by torch. Same shape."""
    dtype, carrier = TORCH[fmt.name]
    tensor = torch.from_numpy(np.ascontiguousarray(bits).view(carrier))
    return tensor.view(dtype).to(torch.float64).numpy()


@cache
def _distinct(fmt):
    """Every finite value of a format of at most 16 bits, ascending, zero once."""
    every = values(np.arange(1 << fmt.bits, dtype=fmt.carrier), fmt)
    return np.unique(every[np.isfinite(every)])


def ordinal(finite, fmt):
    """How many values of the format lie between 0 and this one, negative below 0. Same shape.

    At most 16 bits: the rank among all values there are. float32: from exponent and mantissa as
    frexp gives them.
    """
    if fmt.bits <= 16:
        distinct = _distinct(fmt)
        return np.searchsorted(distinct, finite) - int(np.searchsorted(distinct, 0.0))
    # frexp's mantissa is in [0.5, 1): its exponent is one more than IEEE's, and 2**24 times it
    # holds the hidden bit, which adds a binade
    mantissa, exponent = np.frexp(np.abs(finite))
    normal = (exponent + 125) * 2.0**23 + mantissa * 2.0**24
    subnormal = np.abs(finite) * 2.0**149
    steps = np.where(np.abs(finite) >= 2.0**-126, normal, subnormal)
    return (np.sign(finite) * steps).astype(np.int64)


def spacing(magnitude, fmt):
    """How far the next larger value of the format is from a finite one of it; the next smaller one
    from the largest.
    """
    if fmt.bits <= 16:
        distinct = _distinct(fmt)
        # the largest value has no next one
        place = min(int(np.searchsorted(distinct, magnitude)), len(distinct) - 2)
        return float(distinct[place + 1] - distinct[place])
    # numpy's spacing of the largest value is infinite; 2**127 begins the same binade
    return float(np.spacing(np.float32(min(magnitude, 2.0**127))))


_CELLS = float(np.finfo(np.float32).smallest_subnormal), float(np.finfo(np.float32).max)


@dataclass
class Expected:
    """Figures of some rows, named as in RowFigures."""

    exact: dict[str, NDArray]
    close: dict[str, NDArray]  # to 1e-9 relative
    row_cells: NDArray[np.float64]  # to a step of float32; NaN: a mismatch
    kl: NDArray[np.float64]  # to 1e-6 relative or 1e-12 absolute
    histogram: dict[int, int]


def _top(x):
    # a stable order: NaNs last, equal values by id
    is_number = [value == value for value in x]
    keys = [(-value if value == value else math.inf, i) for i, value in enumerate(x)]
    order = [i for i in sorted(range(len(x)), key=keys.__getitem__) if is_number[i]]
    k = min(TOP_K, len(x))
    best = order[:k]
    missing = k - len(best)
    ids = best + [-1] * missing
    values_of_ids = [x[i] for i in best] + [math.nan] * missing
    return ids, values_of_ids


def kl_of(x, y):
    """KL(x || y) in nats of two rows of logits, NaN if undefined."""
    has_nan = np.isnan(x).any() or np.isnan(y).any()
    if has_nan or np.isposinf(x).any() or np.isposinf(y).any():
        return math.nan
    has_mass = x > -np.inf
    if not has_mass.any() or np.isneginf(y[has_mass]).any():
        return math.nan
    # a token without mass adds 0, not 0 times infinity
    p = scipy.special.softmax(x)[has_mass]
    ratio = scipy.special.log_softmax(x)[has_mass] - scipy.special.log_softmax(y)[has_mass]
    # equal rows may round to just below 0
    return max(0.0, math.fsum(p * ratio))


def _margin(top, ids, fmt):
    if len(ids) < 2 or ids[1] < 0:
        return math.nan, math.nan
    if top[0] == top[1]:
        return 0.0, 0.0
    if not (math.isfinite(top[0]) and math.isfinite(top[1])):
        return math.nan, math.nan
    steps = ordinal(np.array(top[:2]), fmt)
    return top[0] - top[1], float(steps[0] - steps[1])


def expected_figures(a, b, fmt):
    """Every figure of rows `a` against `b`, bits [rows, vocab]."""
    rows = []
    kls = []
    histogram = Counter()
    row_cells = []
    for x, y, x_bits, y_bits in zip(values(a, fmt), values(b, fmt), a, b, strict=True):
        is_same = (x == y) | (np.isnan(x) & np.isnan(y))
        finite = np.isfinite(x) & np.isfinite(y)
        mismatch = ~finite & ~is_same
        distance = np.zeros(len(x), np.int64)
        steps = ordinal(x[finite], fmt) - ordinal(y[finite], fmt)
        distance[finite] = np.abs(steps)
        gaps = np.abs(x[finite] - y[finite])
        cells = np.where(mismatch, (1 << fmt.bits) - 1, distance)
        step = math.nan
        if np.isfinite(x).any():
            largest = np.abs(x[np.isfinite(x)]).max()
            step = spacing(largest, fmt)
        in_steps = np.where(mismatch, np.inf, 0.0)
        in_steps[finite] = np.where(gaps > 0, np.clip(gaps / step, *_CELLS), 0.0)
        starts = range(0, len(cells), 32)
        of_groups = np.array([in_steps[i : i + 32].max() for i in starts])
        row_cells.append(np.where(np.isinf(of_groups), np.nan, of_groups))
        x_ids, x_top = _top(x)
        y_ids, y_top = _top(y)
        x_margin = _margin(x_top, x_ids, fmt)
        y_margin = _margin(y_top, y_ids, fmt)
        margins = [margin for margin in (x_margin[0], y_margin[0]) if margin == margin]
        smaller = min(margins, default=math.nan)
        max_abs = gaps.max(initial=0.0)
        # no gap and no spacing: the sum is 0, and the figure undefined
        row_squares = math.fsum((gaps / step) ** 2) + step * 0
        rows.append(
            {
                "neq": np.count_nonzero(~is_same),
                "bit_identical": bool((x_bits == y_bits).all()),
                "max_abs": max_abs,
                "max_ulps": distance.max(),
                "max_ulps_token": int(np.flatnonzero(distance == distance.max())[0]),
                "sum_ulps": distance.sum(),
                "finite": np.count_nonzero(finite),
                "spacing": step,
                "max_row_ulps": max_abs / step,
                "nonfinite_mismatch": np.count_nonzero(mismatch),
                "group_ulps": [cells[i : i + 32].max() for i in starts],
                "reference.top_ids": x_ids,
                "variant.top_ids": y_ids,
                "reference.top_logits": x_top,
                "variant.top_logits": y_top,
                "reference_token": x_ids[0],
                "variant_token": y_ids[0],
                "is_flip": x_ids[0] != y_ids[0],
                "reference_margin": x_margin[0],
                "variant_margin": y_margin[0],
                "reference_margin_ulps": x_margin[1],
                "variant_margin_ulps": y_margin[1],
                "is_tie": smaller == 0,
                "near_tie": smaller <= 2 * step,
                "could_flip": smaller <= 2 * max_abs,
                "sum_squares": math.fsum(gaps * gaps),
                "rms_row_ulps": math.sqrt(row_squares / max(1, len(gaps))),
                "row_squares": row_squares,
                "reference.logsumexp": torch.logsumexp(torch.from_numpy(x), 0).item(),
                "variant.logsumexp": torch.logsumexp(torch.from_numpy(y), 0).item(),
            },
        )
        kls.append(kl_of(x, y))
        # Of 65536 and more the least power of two that is not above it.
        histogram.update(
            d if d < 65536 else 1 << (d.bit_length() - 1) for d in distance[finite].tolist()
        )
    names = rows[0].keys()
    columns = {name: np.array([row[name] for row in rows]) for name in names}
    summed = (
        "sum_squares",
        "rms_row_ulps",
        "row_squares",
        "reference.logsumexp",
        "variant.logsumexp",
    )
    close = {name: columns.pop(name) for name in summed}
    return Expected(
        columns,
        close,
        np.array(row_cells),
        np.array(kls),
        dict(histogram),
    )


def _is_close(got, want, relative, absolute):
    # infinity less infinity, which equal values below make up for
    with np.errstate(invalid="ignore"):
        near = np.abs(got - want) <= np.maximum(absolute, relative * np.abs(want))
    is_same = (got == want) | (np.isnan(got) & np.isnan(want))
    return bool((near | is_same).all())


def differences(got, want):
    """Names of the figures that are not as expected; empty when all are."""

    def figure(name):
        side, _, rest = name.partition(".")
        return getattr(getattr(got, side), rest) if rest else getattr(got, name)

    wrong = []
    for name, column in want.exact.items():
        found = figure(name)
        if found.dtype.kind in "iu":
            same = np.array_equal(found.astype(np.int64), column)
        else:
            same = np.array_equal(found, column, equal_nan=found.dtype.kind == "f")
        if not same:
            wrong.append(name)
    for name, column in want.close.items():
        # A log-sum is the largest value plus the logarithm of a sum of at least 1, whose last bit
        # is 2**-52.
        smallest = 2.0**-50 if name.endswith("logsumexp") else 1e-300
        if not _is_close(figure(name), column, 1e-9, smallest):
            wrong.append(name)
    cells = got.group_row_ulps.view(np.float32).astype(np.float64)
    # a step of float32: the kernel subtracts in float32, and so rounds once more
    if not _is_close(cells, want.row_cells, 2.0**-23, 2.0**-149):
        wrong.append("group_row_ulps")
    if not _is_close(got.kl, want.kl, 1e-6, 1e-12):
        wrong.append("kl")
    if histogram_of(got.distances) != want.histogram:
        wrong.append("histogram")
    return wrong
