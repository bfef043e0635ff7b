"""Figures and logits of compared sides, as judging and explaining ask for them: in memory, or of a
file (`figures.py`).
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from ..command_name import UNSTORED
from ..evidence import Evidence
from ..numerics.arrays import Array, Bits, Floats, Ints, Record, Span
from ..numerics.divergence import SideRows, compare
from ..numerics.formats import values_of
from ..numerics.metrics import METRICS
from ..numerics.sizes import TOP_K
from ..numerics.totals import PairTotal
from ..verdict import Verdict
from .file.records import ALL, RunHeader, StoredPair

CHUNK_BYTES = 8 << 20  # of one side's logits, read at a time


class Measured:
    """Sides with the figures of every pair; a subclass reads them."""

    header: RunHeader

    def columns(self, pair: int) -> Mapping[str, Array]:
        """Return the figures of a pair by position (docs/reference/metrics.md), an array each of
        every position of all prompts, NaN if undefined. Do not change them.
        """
        raise NotImplementedError

    def logsumexp(self, side: int) -> Floats:
        """Logsumexp of every row of a side, in nats, NaN if undefined or not sent. [rows]"""
        raise NotImplementedError

    def best_tokens(self, side: int) -> tuple[Ints, Floats]:
        """Return the tokens with the largest logits of every row of a side, largest first, and
        those logits, NaN if a row has fewer numbers. [rows, TOP_K] each
        """
        raise NotImplementedError

    def read_rows(self, side: int, start: int, stop: int) -> Bits:
        """Return the bits of rows [start, stop) of a side; rows are the positions of all prompts,
        one after another.

        Returns:
            [stop - start, vocab], unsigned integers of the width of `header.compute_dtype`; see
            `numerics.formats.values_of`.

        Raises:
            StoreError: the run has no logits.
        """
        raise NotImplementedError

    def chunks(self, side: int) -> Iterator[tuple[int, Bits]]:
        """Yield all rows of a side in order, a few at a time: (first row, bits)."""
        header = self.header
        step = max(1, CHUNK_BYTES // (header.vocab * header.format.itemsize))
        for start in range(0, header.rows, step):
            yield start, self.read_rows(side, start, min(start + step, header.rows))

    @property
    def has_rollouts(self) -> bool:
        """Whether a run is of sampled tokens, some with both sides' values."""
        return False

    def has_prompts_of_rollouts(self) -> bool:
        """Return whether the tokens of all prompts of sampled tokens are known."""
        return False

    @property
    def has_all_logits(self) -> bool:
        """Whether there are the logits of all positions, so that `read_rows` can return them."""
        return self.header.keep == ALL

    def spacing(self, pair: int, rows: Span) -> Floats:
        """Spacing by which the differences of some rows become row ULPs; 1 if there is no
        difference. [rows]
        """
        columns = self.columns(pair)
        max_abs, in_row_ulps = (columns[name][slice(*rows)] for name in ("max_abs", "max_row_ulps"))
        # then the reference has a finite element, and the quotient of the two is exact
        is_known = max_abs > 0
        with np.errstate(divide="ignore"):
            return np.where(is_known, max_abs / np.where(is_known, in_row_ulps, 1.0), 1.0)

    def is_only_masked(self, pair: int) -> bool:
        """Return whether the only non-finite logits of one side alone are -inf: others show in a
        row's logsumexp.
        """
        rows = self.columns(pair)["nonfinite_mismatch"] > 0
        of_rows = np.concatenate([self.logsumexp(side)[rows] for side in (0, pair + 1)])
        is_wrong = (np.isnan(of_rows) | np.isposinf(of_rows)).any()
        return self.header.has_tokens and not is_wrong

    def argmaxes(self, side: int, rows: Iterable[int]) -> dict[int, set[int]]:
        """Return the tokens with the largest logit of some rows of a side; logits are read if all
        the best ones tie.
        """
        tokens, logits = self.best_tokens(side)
        argmaxes = {}
        for row in rows:
            ties = tokens[row][logits[row] == logits[row, 0]]
            if len(ties) == TOP_K:
                values = values_of(self.read_rows(side, row, row + 1)[0], self.header.format)
                ties = np.flatnonzero(values == np.nanmax(values))
            argmaxes[row] = set(ties.tolist())
        return argmaxes


class MemoryRun(Measured):
    """Sides of a dump in memory, compared; `verdicts` are set once it is judged.

    Its methods are those of `RunReader` that `compare` prints from.
    """

    run_id = UNSTORED
    path = Path(UNSTORED)

    def __init__(self, header: RunHeader, sides: Sequence[Bits]) -> None:
        """sides: bits of the compute dtype, [rows, vocab] each, the reference first."""
        self.header, self._sides = header, sides
        self.verdicts: Sequence[Verdict] = ()
        self._columns: list[dict[str, Array]] = []
        self._side_rows: list[SideRows] = []
        self._totals: list[PairTotal] = []
        prompts, positions = np.array(header.places()).T
        for side in sides[1:]:
            figures = compare(sides[0], side, header.format, has_tokens=header.has_tokens)
            columns = {metric.name: metric.of(figures) for metric in METRICS}
            for token in ("reference_token", "variant_token"):
                columns[token] = np.where(columns[token] < 0, np.nan, columns[token])
            self._columns.append({"prompt": prompts, "position": positions, **columns})
            self._side_rows = [figures.reference, *self._side_rows[1:], figures.variant]
            total = PairTotal()
            total.add(figures)
            self._totals.append(total)

    def columns(self, pair: int) -> Mapping[str, Array]:
        """Return the kernel's figures."""
        return self._columns[pair]

    def logsumexp(self, side: int) -> Floats:
        """Return it as the kernel measured it."""
        return self._side_rows[side].logsumexp

    def best_tokens(self, side: int) -> tuple[Ints, Floats]:
        """Return them as the kernel found them, fewer than TOP_K of a smaller vocabulary."""
        rows = self._side_rows[side]
        return rows.top_ids.astype(np.int64), rows.top_logits.astype(np.float64)

    def read_rows(self, side: int, start: int, stop: int) -> Bits:
        """Return rows of the sides in memory."""
        return self._sides[side][start:stop]

    @property
    def pairs(self) -> list[StoredPair]:
        """Pairs of the reference and each variant, with summary and verdict."""
        return [
            StoredPair(
                verdict.pair,
                self.header.sides[0].name,
                self.header.sides[verdict.pair + 1].name,
                self._totals[verdict.pair].summary(),
                verdict.name,
                verdict.because,
                verdict.noise_ratio,
                verdict.first_place,
            )
            for verdict in self.verdicts
        ]

    def evidence(self, pair: int) -> list[Evidence]:
        """Evidence that a pair's verdict rests on, in the order of the checks."""
        return sorted(self.verdicts[pair].evidence, key=lambda row: row.check.order)

    @cached_property
    def classes(self) -> list[list[str]]:
        """Names of the sides, grouped by equal bits, in order of first appearance."""
        names: dict[bytes, list[str]] = {}
        for side, bits in zip(self.header.sides, self._sides, strict=True):
            names.setdefault(hashlib.sha256(bits.data).digest(), []).append(side.name)
        return list(names.values())

    @property
    def vocabulary(self) -> dict[int, str]:
        """Map from token id to text, for known texts."""
        return self.header.vocabulary

    def histogram(self, pair: int) -> dict[int, int]:
        """Return a map from ULP distance to number of elements of a pair."""
        return self._totals[pair].histogram

    def records(self, pair: int) -> list[Record]:
        """Return the figures of a pair, one dict per position, None if undefined."""
        columns = self._columns[pair]
        lists = {name: columns[name].tolist() for name in ("prompt", "position")}
        for metric in METRICS:
            is_null = np.isnan(columns[metric.name])
            numbers = np.where(is_null, 0, columns[metric.name]).astype(metric.dtype)
            # None where it is masked
            lists[metric.name] = np.ma.array(numbers, mask=is_null).tolist()
        return [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]

    def compared_positions(self, pair: int) -> int:  # noqa: ARG002  (all of them, of whole rows)
        """Return the number of positions of a pair that were compared."""
        return self.header.rows
