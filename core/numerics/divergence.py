"""Compare two sides, row by row: every metric of `METRICS` and their sum
over a pair.

`compare(a, b, fmt)` works on any number of rows held in memory; a whole run is a loop over chunks
of rows whose figures go into a `PairTotal`, so that memory stays bounded whatever the size of a
dump.
"""

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from .arrays import Bits, Flags, Floats, Ints
from .differences import Differences, as_compiled
from .formats import FloatFormat, ordinals
from .metrics import OF_TOKENS
from .sizes import BINS, BLOCK, DENSE, GROUP, TOP_K

ROWS_A_TASK = 8  # rows a thread takes at a time
# a property of the model, whatever the pair differs by
NEAR_TIE_ROW_ULPS = 2
COMPILING = "compiling kernels, once"
_log = logging.getLogger(__name__)
# of the bins of a histogram
_LEAST_DISTANCES = np.concatenate([np.arange(DENSE), 1 << np.arange(16, 32)])


def is_compiled(fmt: FloatFormat) -> bool:
    """Return whether numba keeps the comparison compiled for elements of this width; else it takes
    10 to 15 s.
    """
    # numba takes a third of a second to load, and viewing a run rarely needs it
    from .kernel import compare_rows

    try:
        index = compare_rows._cache._cache_file._load_index()  # type: ignore[attr-defined]
        return any(types[0].dtype.bitwidth == fmt.bits for types, *_ in index)
    except Exception:
        # private to numba, other versions differ: then report nothing
        return True


@cache
def _tell_of_compiling(fmt: FloatFormat) -> None:
    """Log, which without further ado is a line on stderr, why the first comparison takes so
    long.
    """
    if not is_compiled(fmt):
        _log.warning("%s: the first comparison of %s takes 10 to 15 s longer.", COMPILING, fmt.name)


@cache
def prepare(fmt: FloatFormat) -> None:
    """Compile the comparison for a format, or load it compiled."""
    bits = np.zeros((1, 2), fmt.carrier)
    compare(bits, bits, fmt)


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(
        max(1, len(os.sched_getaffinity(0))),
        thread_name_prefix="ulpscope-kernel",
    )


@dataclass(frozen=True)
class SideRows:
    """Figures of one side by row: logsumexp [rows] in nats; top-k token ids [rows, k] (-1: fewer
    than k numbers) and logits [rows, k].
    """

    logsumexp: Floats
    top_ids: NDArray[np.int32]
    top_logits: NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class RowFigures(Differences):
    """The figures of a pair for some rows; every array is [rows] unless it says otherwise.

    `max_ulps_token`: the lowest with that distance. `kl` in nats (NaN if undefined). `group_ulps`
    [rows, ceil(vocab / 32)] holds the largest distance of each 32 tokens, `group_row_ulps` the
    largest difference over `spacing`, float32 as its bits; all ones in either: a NaN or infinity
    mismatch.
    `distances` [BINS] counts the elements of all rows at each distance; those of 65536 and more by
    powers of two. `has_tokens`: whether rows are over a vocabulary.
    """

    fmt: FloatFormat
    vocab: int
    bit_identical: Flags
    max_ulps_token: Ints
    kl: Floats
    reference: SideRows
    variant: SideRows
    group_ulps: Bits
    group_row_ulps: NDArray[np.uint32]
    distances: Ints
    has_tokens: bool = True

    def figure(self, name: str) -> NDArray:
        """Return a figure of each row by its name, NaN if it needs tokens and there are none."""
        if name in OF_TOKENS and not self.has_tokens:
            return np.full(len(self.neq), np.nan)
        return getattr(self, name)

    @property
    def reference_token(self) -> NDArray[np.int32]:
        """Argmax of the reference, lowest id on ties, -1 if every value is NaN."""
        return self.reference.top_ids[:, 0]

    @property
    def variant_token(self) -> NDArray[np.int32]:
        return self.variant.top_ids[:, 0]

    @property
    def is_flip(self) -> Flags:
        return self.reference_token != self.variant_token

    @property
    def rms(self) -> Floats:
        """Root mean square of the difference over elements finite on both sides, in logits; 0 if
        there is none.
        """
        return np.sqrt(self.sum_squares / np.maximum(self.finite, 1))

    @property
    def mean_ulps(self) -> Floats:
        """Mean distance over the same elements; 0 if there is none."""
        return self.sum_ulps / np.maximum(self.finite, 1)

    @property
    def rms_row_ulps(self) -> Floats:
        """rms in row ULPs; NaN if undefined."""
        return self.rms / self.spacing

    @property
    def elements(self) -> Ints:
        return np.full(len(self.neq), self.vocab)

    @property
    def is_kl_infinite(self) -> Flags:
        """Return whether the variant has -inf at a token to which the reference gives mass."""
        is_finite = np.isfinite(self.reference.logsumexp) & np.isfinite(self.variant.logsumexp)
        return np.isnan(self.kl) & is_finite & self.has_tokens

    @property
    def reference_margin(self) -> Floats:
        return margin_logits(self.reference)

    @property
    def variant_margin(self) -> Floats:
        return margin_logits(self.variant)

    @property
    def reference_margin_ulps(self) -> Floats:
        return margin_ulps(self.reference, self.fmt)

    @property
    def variant_margin_ulps(self) -> Floats:
        return margin_ulps(self.variant, self.fmt)

    @property
    def smaller_margin(self) -> Floats:
        """The smaller of the two margins, in logits; NaN only if neither is defined."""
        return np.fmin(self.reference_margin, self.variant_margin)

    @property
    def is_tie(self) -> Flags:
        return self.smaller_margin == 0

    @property
    def near_tie(self) -> Flags:
        """The smaller margin is at most NEAR_TIE_ROW_ULPS row ULPs.

        False if the reference has no finite element.
        """
        return self.smaller_margin <= NEAR_TIE_ROW_ULPS * self.spacing

    @property
    def could_flip(self) -> Flags:
        """The smaller margin is at most twice the largest difference: a flip is possible."""
        return self.smaller_margin <= 2 * self.max_abs


def margin_logits(side: SideRows) -> Floats:
    """Top-1 minus runner-up, in logits. [rows]; equal infinities are a tie (0); NaN if the gap is
    not finite.
    """
    best, second = side.top_logits[:, :2].astype(np.float64).T
    with np.errstate(invalid="ignore"):
        gap = np.where(best == second, 0.0, best - second)
    return np.where(np.isfinite(gap), gap, np.nan)


def margin_ulps(side: SideRows, fmt: FloatFormat) -> Floats:
    """Top-1 minus runner-up, in ULPs of `fmt`. [rows]; NaN if the margin in logits is."""
    pair = side.top_logits[:, :2].astype(fmt.values).view(fmt.carrier)
    steps = ordinals(pair[:, 0], fmt) - ordinals(pair[:, 1], fmt)
    return np.where(np.isnan(margin_logits(side)), np.nan, steps.astype(np.float64))


def histogram_of(distances: Ints) -> dict[int, int]:
    """ULP distance to number of elements, ascending; distances of 65536 and more are rounded down
    to powers of two.

    distances: elements by bin [BINS], as in RowFigures.
    """
    bins = np.flatnonzero(distances)
    return dict(zip(_LEAST_DISTANCES[bins].tolist(), distances[bins].tolist(), strict=True))


def compare(
    a: Bits,
    b: Bits,
    fmt: FloatFormat,
    *,
    has_tokens: bool = True,
) -> RowFigures:
    """Compare bits `a` (reference) and `b` (variant), both [rows, vocab] of `fmt`, on all cores.

    has_tokens: whether rows are over a vocabulary; other values may be one a row.
    """
    from .kernel import compare_rows

    # compiled loops check no bounds
    assert a.shape == b.shape
    assert a.dtype == b.dtype == fmt.carrier
    _tell_of_compiling(fmt)
    rows, vocab = a.shape
    k = min(TOP_K, vocab)
    counts = np.zeros((rows, 6), np.int64)
    figures = np.zeros((rows, 6), np.float64)
    is_bit_identical = np.zeros(rows, np.bool_)
    # of both sides
    logits = np.empty((2, rows, k), np.float32)
    ids = np.empty((2, rows, k), np.int32)
    group_ulps = np.zeros((rows, -(-vocab // GROUP)), fmt.carrier)
    group_row_ulps = np.zeros(group_ulps.shape, np.uint32)
    of_rows = (is_bit_identical, counts, figures, *logits, *ids, group_ulps, group_row_ulps)

    def work(worker: int) -> Ints:
        histogram = np.zeros((4, BINS), np.int64)
        ulps = np.empty(BLOCK, fmt.carrier)
        for start in range(worker * ROWS_A_TASK, rows, workers * ROWS_A_TASK):
            part = slice(start, start + ROWS_A_TASK)
            outputs = tuple(each[part] for each in of_rows)
            bits = as_compiled(a[part]), as_compiled(b[part])
            compare_rows(*bits, fmt.code, outputs, histogram, ulps)
        return histogram.sum(axis=0)

    pool = _threads()
    workers = min(pool._max_workers, -(-rows // ROWS_A_TASK))
    results = [work(0)] if workers <= 1 else list(pool.map(work, range(workers)))
    return RowFigures(
        *counts[:, :5].T,
        *figures[:, :3].T,
        fmt=fmt,
        vocab=vocab,
        bit_identical=is_bit_identical,
        max_ulps_token=counts[:, 5],
        kl=figures[:, 3],
        reference=SideRows(figures[:, 4], ids[0], logits[0]),
        variant=SideRows(figures[:, 5], ids[1], logits[1]),
        group_ulps=group_ulps,
        group_row_ulps=group_row_ulps,
        distances=sum(results, np.zeros(BINS, np.int64)),
        has_tokens=has_tokens,
    )
