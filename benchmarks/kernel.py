"""All metrics of the contract over a pair: ULPscope's kernel, a numpy notebook, torch in chunks.
All three must agree.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.logits import POSITIONS, VOCAB, pair
from benchmarks.timing import Line, interleaved
from core.numerics.divergence import compare
from core.numerics.formats import BFLOAT16, FLOAT16, FLOAT32, FloatFormat
from core.numerics.top_tokens import largest

TOP_K = 20
TORCH_TRIES = (
    (1, 1),
    (1, 2),
    (2, 1),
    (2, 2),
    (2, 4),
    (2, 8),
)  # (threads, rows a chunk): the fastest of them counts as torch


# what every contender must find, per row: columns of `_figures`; then the histogram
EQUAL = ("neq", "max_abs", "max_ulps", "nonfinite", "margin_ulps_a", "margin_ulps_b")
CLOSE = {"mean_ulps": 1e-6, "kl": 1e-6, "logsumexp_a": 1e-9, "logsumexp_b": 1e-9}
TOPS = ("top_ids_a", "top_ids_b")
Figures = dict[str, NDArray]


def notebook(a: NDArray, b: NDArray, fmt: FloatFormat) -> Figures:
    """As a competent user writes it in numpy: whole arrays, upcast once, wide ordinals, partition
    for the top 20, float64 KL.
    """
    x, y = a.view(fmt.values).astype(np.float32), b.view(fmt.values).astype(np.float32)

    def ordinals(bits):
        # widened before subtracting: distances of 16-bit ordinals wrap in int16
        signed = bits.view(f"i{fmt.itemsize}").astype(np.int64)
        return np.where(signed < 0, -(1 << (fmt.bits - 1)) - signed, signed)

    finite = np.isfinite(x) & np.isfinite(y)
    is_same = (x == y) | (np.isnan(x) & np.isnan(y))
    x_ordinals, y_ordinals = ordinals(a), ordinals(b)
    ulps = np.where(finite, np.abs(x_ordinals - y_ordinals), 0)
    max_abs = np.where(finite, np.abs(x.astype(np.float64) - y), 0).max(axis=1)
    near, elements = np.unique(ulps, return_counts=True)
    histogram = np.zeros(1 << 16, np.int64)
    histogram[near[near < 1 << 16]] = elements[near < 1 << 16]

    def top(values):
        return np.array([largest(row, TOP_K) for row in values])

    def log_softmax(values):
        wide = values.astype(np.float64)
        highest = wide.max(axis=1, keepdims=True)
        total = highest + np.log(np.exp(wide - highest).sum(axis=1, keepdims=True))
        return wide - total, total[:, 0]

    x_log, x_total = log_softmax(x)
    y_log, y_total = log_softmax(y)
    ids = top(x), top(y)
    gaps = [
        np.take_along_axis(o, i[:, :2], 1)
        for o, i in zip((x_ordinals, y_ordinals), ids, strict=True)
    ]
    rows = (
        (~is_same).sum(axis=1),
        max_abs,
        ulps.max(axis=1),
        (~finite & ~is_same).sum(axis=1),
        *(gap[:, 0] - gap[:, 1] for gap in gaps),
        ulps.sum(axis=1) / finite.sum(axis=1),
        (np.exp(x_log) * (x_log - y_log)).sum(axis=1),
        x_total,
        y_total,
        *ids,
    )
    return _figures(rows, histogram)


def chunked_torch(
    a: NDArray,
    b: NDArray,
    fmt: FloatFormat,
    threads: int = 1,
    rows: int = 1,
) -> Figures:
    """The same in torch, a few rows at a time: 32-bit ordinals where they fit, topk, float64 only
    for the sums.
    """
    torch.set_num_threads(threads)
    signed, dtype = torch.int16 if fmt.bits == 16 else torch.int32, getattr(torch, fmt.name)
    whole = [torch.from_numpy(side.view(f"i{fmt.itemsize}")) for side in (a, b)]
    # a distance of ordinals takes one bit more than the format
    wide = torch.int32 if fmt.bits == 16 else torch.int64
    parts = []
    histogram = torch.zeros(1 << 16, dtype=torch.int64)

    def ordinals(bits):
        steps = bits.to(wide)
        return torch.where(steps < 0, -(1 << (fmt.bits - 1)) - steps, steps)

    for start in range(0, len(a), rows):
        bits = [side[start : start + rows] for side in whole]
        x, y = (part.view(dtype).float() for part in bits)
        x_ordinals, y_ordinals = (ordinals(part.view(signed)) for part in bits)
        finite = torch.isfinite(x) & torch.isfinite(y)
        is_same = (x == y) | (x.isnan() & y.isnan())
        ulps = torch.where(finite, (x_ordinals - y_ordinals).abs(), 0)
        near = ulps if fmt.bits == 16 else ulps[ulps < 1 << 16]
        histogram += torch.bincount(near.flatten(), minlength=1 << 16)
        x_double, y_double = x.double(), y.double()
        max_abs = torch.where(finite, (x_double - y_double).abs(), 0).amax(dim=1)
        x_log, y_log = x_double.log_softmax(1), y_double.log_softmax(1)
        kl = (x_log.exp() * (x_log - y_log)).sum(dim=1)
        ids = [_ordered_top(values) for values in (x, y)]
        gaps = [o.gather(1, i[:, :2]) for o, i in zip((x_ordinals, y_ordinals), ids, strict=True)]
        totals = [v[:, 0] - log[:, 0] for v, log in ((x_double, x_log), (y_double, y_log))]
        parts.append(
            (
                (~is_same).sum(1),
                max_abs,
                ulps.amax(1),
                (~finite & ~is_same).sum(1),
                *(gap[:, 0] - gap[:, 1] for gap in gaps),
                ulps.sum(1) / finite.sum(1),
                kl,
                *totals,
                *ids,
            ),
        )
    columns = [torch.cat(column).numpy() for column in zip(*parts, strict=True)]
    return _figures(columns, histogram.numpy())


def _ordered_top(values: torch.Tensor) -> torch.Tensor:
    """Ids of the 20 largest, the lowest id first if values are equal. [rows, 20]"""
    top = values.topk(TOP_K, dim=1)
    ids = top.indices.sort(dim=1).values
    # topk picks among equal values as it likes
    is_tied = (values >= top.values[:, -1:]).sum(dim=1) > TOP_K
    if is_tied.any():
        order = values[is_tied].sort(dim=1, descending=True, stable=True).indices
        ids[is_tied] = order[:, :TOP_K].sort(dim=1).values
    return ids.gather(1, values.gather(1, ids).argsort(dim=1, descending=True, stable=True))


def ours(a: NDArray, b: NDArray, fmt: FloatFormat) -> Figures:
    f = compare(a, b, fmt)
    rows = (
        f.neq,
        f.max_abs,
        f.max_ulps,
        f.nonfinite_mismatch,
        f.reference_margin_ulps,
        f.variant_margin_ulps,
        f.sum_ulps / f.finite,
        f.kl,
        f.reference.logsumexp,
        f.variant.logsumexp,
        f.reference.top_ids,
        f.variant.top_ids,
    )
    return _figures(rows, f.distances[:65536])


def _figures(rows: Iterable[NDArray], histogram: NDArray) -> Figures:
    """histogram: at distances below 65536."""
    return dict(zip((*EQUAL, *CLOSE, *TOPS, "histogram"), (*rows, histogram), strict=True))


def check_agreement(a: NDArray, b: NDArray, fmt: FloatFormat) -> None:
    """All contenders find the same. Of the top 20 the first only: which of several equal tokens
    comes 20th is our rule alone.
    """
    mine = ours(a, b, fmt)
    for other in (notebook(a, b, fmt), chunked_torch(a, b, fmt)):
        for name in (*EQUAL, "histogram"):
            np.testing.assert_array_equal(mine[name], other[name], err_msg=name)
        for name, rtol in CLOSE.items():
            np.testing.assert_allclose(mine[name], other[name], rtol=rtol, atol=1e-12)
        for name in TOPS:
            np.testing.assert_array_equal(mine[name][:, 0], other[name][:, 0])


def _measure(
    fmt: FloatFormat,
    rows: int,
    rounds: dict[str, int],
) -> tuple[dict[str, float], tuple[int, int], int]:
    """Median seconds of each, torch's best (threads, rows a chunk), bytes of the pair."""
    a, b = pair(fmt, rows)
    # before anything is timed, since it compiles the kernel
    check_agreement(a[:8], b[:8], fmt)
    few = 16
    # torch at its best: which setting is fastest depends on the machine
    tries = {str(x): partial(chunked_torch, a[:few], b[:few], fmt, *x) for x in TORCH_TRIES}
    spent = interleaved(tries, 5)
    best = min(TORCH_TRIES, key=lambda setting: spent[str(setting)])
    contenders = {
        "ours": lambda: compare(a, b, fmt),
        "torch": lambda: chunked_torch(a, b, fmt, *best),
        "numpy": lambda: notebook(a, b, fmt),
    }
    return interleaved(contenders, rounds), best, a.nbytes + b.nbytes


def run() -> list[Line]:
    lines = []
    for fmt, rows, rounds in (
        (BFLOAT16, POSITIONS, {"ours": 15, "torch": 5, "numpy": 3}),
        (FLOAT16, 32, {"ours": 15, "torch": 5, "numpy": 3}),
        (FLOAT32, 32, {"ours": 15, "torch": 5, "numpy": 3}),
    ):
        seconds, best, size = _measure(fmt, rows, rounds)
        is_target = fmt is BFLOAT16
        rates = {name: size / median / 1e6 for name, median in seconds.items()}
        lines += [
            Line(
                f"kernel, {rows} x {VOCAB} {fmt.name}",
                "",
                f"{rates['ours'] / 1e3:.2f} GB/s",
                f"{seconds['ours'] * 1e3:.1f} ms, median of {rounds['ours']}",
            ),
            Line(
                "  over a numpy notebook",
                "120x" if is_target else "",
                f"{seconds['numpy'] / seconds['ours']:.0f}x",
                f"numpy {rates['numpy']:.0f} MB/s, median of {rounds['numpy']}",
            ),
            Line(
                "  over chunked torch",
                "10x" if is_target else "",
                f"{seconds['torch'] / seconds['ours']:.1f}x",
                f"torch {rates['torch']:.0f} MB/s, median of {rounds['torch']}; its best: {best[0]}"
                f" threads, {best[1]} rows a chunk",
            ),
        ]
    return lines
