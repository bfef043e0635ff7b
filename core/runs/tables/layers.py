"""Module outputs of a pair: compared part by part as they come while a run is written, kept as rows of `layer` and
`layer_position`.

Only figures are kept: all outputs of a long prompt are larger than the model. Memory holds those of one prompt of one
side (72 bytes a module and position) and the sums of the rounding floor (16 bytes).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...numerics.differences import differences, max_row_ulps, rms_row_ulps
from ...numerics.formats import FLOAT32, FloatFormat, widen
from ..file.table import Table, undefined
from .layer_spool import Key, LayerModule, LayerPart, LayerSpool

LAYER = Table(
    "layer",
    """
    -- outputs of the model's modules on both sides of a pair at the positions looked at; no rows where a capture did
    -- not compare them
    pair INTEGER -- index of the pair
    prompt INTEGER -- index of the prompt
    ordinal INTEGER -- 0-based place in the order in which the modules run
    module VARCHAR -- name of the module in the model; logits: what the model gives in the end, its head and all behind
    -- it
    kind VARCHAR -- embedding, norm, projection (in attention), attention (its whole), mlp (whole or part), residual
    -- (the stream after a block), head or other
    block INTEGER NULL -- 0-based block it belongs to, null outside the blocks
    dtype VARCHAR -- dtype of the module's output on both sides, in which ULPs are counted; float32 where the two
    -- differ
    positions INTEGER -- positions of the prompt that were looked at
    elements BIGINT -- elements compared: positions looked at x width of the output
    neq BIGINT -- elements whose values differ; +0 equals -0, NaN equals NaN
    finite BIGINT -- elements finite on both sides, over which distances are taken
    max_abs DOUBLE -- largest absolute difference, unit of the output, over elements finite on both sides
    rms DOUBLE -- root mean square of the difference, unit of the output
    max_ulps BIGINT -- largest distance, ULPs of dtype
    mean_ulps DOUBLE -- mean distance, ULPs of dtype
    max_row_ulps DOUBLE NULL -- largest difference over the spacing of dtype at the largest finite
    -- magnitude of the reference's row (the output at one position); null where no row has one
    rms_row_ulps DOUBLE NULL -- root mean square of the difference in those; null likewise
    nonfinite_mismatch BIGINT -- elements where a NaN or infinity is not met by the same
    first_position INTEGER NULL -- lowest position looked at where an element differs, null if none does
    floor_rms DOUBLE NULL -- the same rms of reordered prefills to a plain one, over all seeds, unit of the output;
    -- null where none was run
    """,
)

LAYER_POSITION = Table(
    "layer_position",
    """
    -- the same by position
    pair INTEGER -- index of the pair
    prompt INTEGER -- index of the prompt
    ordinal INTEGER -- place of the module, as in layer
    position INTEGER -- 0-based token index in its prompt
    neq BIGINT -- elements whose values differ
    rms DOUBLE -- root mean square of the difference, unit of the output
    max_ulps BIGINT -- largest distance, ULPs of layer.dtype
    max_row_ulps DOUBLE NULL -- largest difference in row ULPs, as in layer
    floor_rms DOUBLE NULL -- the same rms of reordered prefills to a plain one, over all seeds; null where none was run
    """,
)
_INSERT_ROWS = 1 << 16  # of layer_position at a time: an Arrow table of a million rows would hold 50 MB
_COUNTS = ("neq", "max_ulps", "sum_ulps", "finite", "nonfinite_mismatch")
_FIGURES = ("max_abs", "sum_squares", "max_row_ulps", "row_squares")

Insert = Callable[[str, pa.Table], None]
Put = Callable[..., None]
_Floor = tuple[
    NDArray[np.float64], NDArray[np.int64]
]  # sum of squares and finite elements over all seeds, [positions] each


@dataclass
class _Compared:
    """Figures of a module for one prompt, by position. counts, figures: rows named by _COUNTS and _FIGURES, [rows,
    positions]
    """

    module: LayerModule
    width: int
    format: FloatFormat
    counts: NDArray[np.int64]
    figures: NDArray[np.float64]
    seen: NDArray[np.bool_]

    def of(self, name: str) -> NDArray:
        return self.counts[_COUNTS.index(name)] if name in _COUNTS else self.figures[_FIGURES.index(name)]


class _Comparison:
    """One prompt of one side against a spool, part after part."""

    def __init__(self) -> None:
        self._found: dict[Key, _Compared] = {}

    def add(self, part: LayerPart, spool: LayerSpool, count: int) -> None:
        """count: positions of the prompt that are looked at. A module of which some part cannot be compared is left
        out.
        """
        kept, against = self._found.get(part.key), spool.reference_of(part)
        fmt = FLOAT32 if against is None or against[1] is not part.format else part.format
        if against is None or (kept is not None and kept.format is not fmt):
            if kept is not None:
                kept.width = 0
            return
        reference, bits = against[0], part.bits
        if against[1] is not part.format:  # every value of both is a float32's, so there they are compared
            reference, bits = widen(reference, against[1]), widen(bits, part.format)
        if kept is None:
            counts, figures = np.zeros((len(_COUNTS), count), np.int64), np.zeros((len(_FIGURES), count))
            kept = _Compared(part.module, bits.shape[1], fmt, counts, figures, np.zeros(count, bool))
            self._found[part.key] = kept
        found = differences(reference, bits, fmt)
        here = slice(part.first, part.stop)
        kept.counts[:, here] = [getattr(found, name) for name in _COUNTS]
        kept.figures[:, here] = [getattr(found, name) for name in _FIGURES]
        kept.seen[here] = True

    def take(self, spool: LayerSpool) -> list[tuple[Key, _Compared]]:
        """The modules that both sides put out at every position looked at, in their order; and forget them all."""
        found = [
            (key, kept)
            for key, kept in sorted(self._found.items())
            if kept.width and kept.seen.all() and spool.is_whole(key)
        ]
        self._found.clear()
        return found


class LayerRows:
    """Takes module outputs and writes rows of the tables `layer` and `layer_position`.

    The reference's first; then, where there is to be a rounding floor, those of reordered prefills (and of a plain one,
    if the reference is another path); then the variants', each prompt followed by `end`.
    """

    def __init__(
        self, directory: Path, chosen: Sequence[Sequence[int]], put: Put, insert: Insert, *, is_beside: bool = True
    ) -> None:
        """chosen: positions of each prompt that are looked at, ascending. put: hands work to the thread that stores,
        which `insert` belongs to.

        is_beside: all work is done there; else only storing, and comparing in the caller's thread: beside forwards that
        keep every core busy it costs them more than it takes (a fifth of the whole, on two cores).
        """
        self._directory, self._storing, self._insert, self._is_beside = directory, put, insert, is_beside
        self._chosen = [np.array(positions, np.int32) for positions in chosen]
        self._counts = [len(positions) for positions in chosen]
        self._reference = LayerSpool(directory / "reference-layers", self._counts)
        self._plain: LayerSpool | None = None
        self._current = _Comparison()
        self._floor: dict[Key, _Floor] = {}

    def _put(self, work: Callable[..., object], *arguments: object, size: int = 0) -> None:
        if self._is_beside:
            self._storing(work, *arguments, size=size)
        else:
            work(*arguments)

    def write(self, side: int, part: LayerPart) -> None:
        """Write outputs of a module on a side. The array is ours from now on."""
        self._put(self._write, side, part, size=part.bits.nbytes)

    def end(self, side: int, prompt: int) -> None:
        """A side is through with a prompt."""
        if side:
            self._put(self._end, side - 1, prompt)

    def write_plain(self, part: LayerPart) -> None:
        """Write outputs of a module in a plain prefill, where the reference is another path: the reorderings are
        compared with it.
        """
        self._put(self._write_plain, part, size=part.bits.nbytes)

    def write_floor(self, part: LayerPart) -> None:
        """Write outputs of a module in a reordered prefill."""
        self._put(self._write_floor, part, size=part.bits.nbytes)

    def end_floor(self) -> None:
        """A reordering is through with a prompt."""
        self._put(self._end_floor)

    def forget_floor(self) -> None:
        """The floor could not be finished, so there is none."""
        self._put(self._forget_floor)

    def close(self) -> None:
        """Let go of the files, which go with the directory they lie in. Only once nothing is being stored any more."""
        self._reference.close()
        if self._plain is not None:
            self._plain.close()

    def _write(self, side: int, part: LayerPart) -> None:
        if side == 0:
            self._reference.keep(part)
        else:
            self._current.add(part, self._reference, self._counts[part.prompt])

    def _write_plain(self, part: LayerPart) -> None:
        if self._plain is None:
            self._plain = LayerSpool(self._directory / "plain-layers", self._counts)
        self._plain.keep(part)

    def _write_floor(self, part: LayerPart) -> None:
        self._current.add(part, self._plain or self._reference, self._counts[part.prompt])

    def _end_floor(self) -> None:
        for key, kept in self._current.take(self._plain or self._reference):
            squares, finite = self._floor.setdefault(
                key, (np.zeros(len(kept.seen)), np.zeros(len(kept.seen), np.int64))
            )
            squares += kept.of("sum_squares")
            finite += kept.of("finite")

    def _forget_floor(self) -> None:
        self._floor.clear()
        self._current = _Comparison()

    def _end(self, pair: int, prompt: int) -> None:
        found = self._current.take(self._reference)
        if found and self._is_beside:
            self._store(pair, prompt, found)
        elif found:
            self._storing(self._store, pair, prompt, found)

    def _store(self, pair: int, prompt: int, found: list[tuple[Key, _Compared]]) -> None:
        positions = self._chosen[prompt]
        rows = [_module_row(positions, kept, self._floor.get(key)) for key, kept in found]
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        self._insert(LAYER.name, LAYER.arrow(pair=pair, prompt=prompt, positions=len(positions), **columns))
        at_once = max(1, _INSERT_ROWS // len(positions))
        for start in range(0, len(found), at_once):
            tables = [
                _position_rows(pair, prompt, positions, kept, self._floor.get(key))
                for key, kept in found[start : start + at_once]
            ]
            self._insert(LAYER_POSITION.name, pa.concat_tables(tables))


def _module_row(positions: NDArray[np.int32], kept: _Compared, floor: _Floor | None) -> dict[str, Any]:
    finite = max(1, int(kept.of("finite").sum()))
    differing = np.flatnonzero(kept.of("neq"))
    return {
        "ordinal": kept.module.ordinal,
        "module": kept.module.name,
        "kind": kept.module.kind,
        "block": kept.module.block,
        "dtype": kept.format.name,
        "elements": len(positions) * kept.width,
        "neq": int(kept.of("neq").sum()),
        "finite": int(kept.of("finite").sum()),
        "max_abs": float(kept.of("max_abs").max()),
        "rms": float(np.sqrt(kept.of("sum_squares").sum() / finite)),
        "max_ulps": int(kept.of("max_ulps").max()),
        "mean_ulps": float(kept.of("sum_ulps").sum() / finite),
        "max_row_ulps": _known(max_row_ulps(kept.of("max_row_ulps"))),
        "rms_row_ulps": _known(rms_row_ulps(kept.of("row_squares"), kept.of("finite"))),
        "nonfinite_mismatch": int(kept.of("nonfinite_mismatch").sum()),
        "first_position": int(positions[differing[0]]) if len(differing) else None,
        "floor_rms": None if floor is None else float(np.sqrt(floor[0].sum() / max(1, int(floor[1].sum())))),
    }


def _known(value: NDArray[np.float64]) -> float | None:
    return None if np.isnan(value) else float(value)


def _position_rows(
    pair: int, prompt: int, positions: NDArray[np.int32], kept: _Compared, floor: _Floor | None
) -> pa.Table:
    """One row a position of one module."""
    return LAYER_POSITION.arrow(
        pair=pair,
        prompt=prompt,
        ordinal=kept.module.ordinal,
        position=positions,
        neq=kept.of("neq"),
        rms=np.sqrt(kept.of("sum_squares") / np.maximum(kept.of("finite"), 1)),
        max_ulps=kept.of("max_ulps"),
        max_row_ulps=undefined(kept.of("max_row_ulps")),
        floor_rms=None if floor is None else np.sqrt(floor[0] / np.maximum(floor[1], 1)),
    )
