"""Prints a digest of the bits of every figure of some pairs, as JSON; run by itself, with whatever processor numba is
told to compile for.

Arguments: widths in bits, separated by a space, and `threads,rows` of the kernel and of a chunk, as often as one likes;
or 'spoilt' for sums whose order is left to the compiler.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path

import numpy as np
from numba import njit

from core.numerics import divergence
from core.numerics.differences import differences
from core.numerics.formats import FloatFormat, format_named
from core.numerics.totals import PairTotal
from core.runs.dumps.dump import open_dump
from tests.core.numerics.rows import ALL_FORMATS, rows_of_all_kinds

_BY_ROW = ("spacing", "max_row_ulps", "rms_row_ulps", "row_squares")
_SUMMED = ("max_abs", "rms", "mean_ulps", "mean_kl", "max_kl", "min_margin", "neq_share", "same_top1", "could_flip")
CASES = sorted((Path(__file__).parents[2] / "cases").glob("*.npz"))


@njit(fastmath=True)
def any_order(values: np.ndarray) -> float:
    total = 0.0
    for i in range(len(values)):
        total += values[i] * values[i]
    return total


class Digest:
    """Of arrays and numbers, with their types and shapes."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, value: object) -> None:
        if isinstance(value, np.ndarray):
            self._hash.update(f"{value.dtype}{value.shape}".encode())
            is_nan = value != value
            self._hash.update(
                np.where(is_nan, value.dtype.type(0), value).tobytes()
            )  # of NaN the place counts, not the payload
            self._hash.update(is_nan.tobytes())
        else:
            self._hash.update(repr(value).encode())

    def text(self) -> str:
        return self._hash.hexdigest()


def add_rows(digest: Digest, in_row_ulps: Digest, found: object) -> None:
    """Every array of a record of arrays."""
    for field in fields(found):
        (in_row_ulps if field.name == "spacing" else digest).add(getattr(found, field.name))
    for name in ("max_row_ulps", "row_squares"):
        in_row_ulps.add(getattr(found, name))


def add_pair(digest: Digest, in_row_ulps: Digest, a: np.ndarray, b: np.ndarray, fmt: FloatFormat, rows: int) -> None:
    """By row, and the totals: the rows' figures are put together again, so that only the totals know of the chunks."""
    total = PairTotal()
    parts = [
        divergence.compare(a[start : start + rows], b[start : start + rows], fmt) for start in range(0, len(a), rows)
    ]
    for part in parts:
        total.add(part)
    for name in ("neq", "max_abs", "sum_squares", "max_ulps", "sum_ulps", "nonfinite_mismatch", "kl"):
        digest.add(np.concatenate([getattr(part, name) for part in parts]))
    for side in ("reference", "variant"):
        for name in ("logsumexp", "top_ids", "top_logits"):
            digest.add(np.concatenate([getattr(getattr(part, side), name) for part in parts]))
    summary = total.summary()
    digest.add([getattr(summary, name) for name in _SUMMED])
    digest.add(total.histogram)
    for name in (*_BY_ROW, "row_tiles"):
        in_row_ulps.add(np.concatenate([getattr(part, name) for part in parts]))
    in_row_ulps.add([summary.max_row_ulps, summary.rms_row_ulps])


def figures(rows: int, formats: Sequence[FloatFormat]) -> dict[str, str]:
    """Two digests a case of the oracle, of row ULPs one of their own, and two a format of rows of all kinds."""
    found = {}
    for path in CASES:
        digest, in_row_ulps = Digest(), Digest()
        with open_dump([path]) as dump:
            if format_named(dump.compute_dtype).bits not in {fmt.bits for fmt in formats}:
                continue
            sides = [np.concatenate(parts) for parts in zip(*(sides for _, sides in dump.chunks()), strict=True)]
            for variant in sides[1:]:
                add_pair(digest, in_row_ulps, sides[0], variant, format_named(dump.compute_dtype), rows)
        found[path.stem], found[f"{path.stem} in row ULPs"] = digest.text(), in_row_ulps.text()
    for fmt in formats:
        digest, in_row_ulps = Digest(), Digest()
        a, b = rows_of_all_kinds(5, 24, 2500, fmt)
        add_pair(digest, in_row_ulps, a, b, fmt, rows)
        add_rows(digest, in_row_ulps, differences(a, b, fmt))
        found[fmt.name], found[f"{fmt.name} in row ULPs"] = digest.text(), in_row_ulps.text()
    return found


def main() -> None:
    if "spoilt" in sys.argv:
        print(json.dumps([{"spoilt": float(any_order(np.random.default_rng(0).standard_normal(10_000))).hex()}]))
        return
    found = []
    formats = [fmt for fmt in ALL_FORMATS if str(fmt.bits) in sys.argv[1].split()]
    for threads, rows in (map(int, argument.split(",")) for argument in sys.argv[2:]):
        pool = ThreadPoolExecutor(threads)
        divergence._threads = lambda pool=pool: pool
        found.append(figures(rows, formats))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
