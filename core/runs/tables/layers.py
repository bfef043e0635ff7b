"""Module outputs of a pair: compared part by part as they come while a run is written, kept as rows of `layer` and
`layer_position`.

Paths change weights, threads and kernels of the whole process, so two of them cannot run in step: the reference is
through before a variant begins, and waits in a file (decision 0005). Only figures are kept: all outputs of a long
prompt are larger than the model. Memory holds those of one prompt of one side (73 bytes a module and position) and the
sums of the rounding floor (16 bytes).
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
from ...numerics.formats import FLOAT32, FloatFormat, format_named, widen
from ..file.table import Table, null_if_nan

LAYER = Table(
    "layer",
    """
    -- outputs of the model's modules on both sides of a pair at the compared positions; no rows if a capture did
    -- not compare them
    pair INTEGER -- index of the pair
    prompt INTEGER -- index of the prompt
    ordinal INTEGER -- 0-based place in the order in which the modules run
    module VARCHAR -- name of the module in the model; logits: what the model gives in the end, its head and all behind
    -- it
    kind VARCHAR -- embedding, norm, projection (in attention), attention (its whole), mlp (whole or part), residual
    -- (the stream after a block), head or other
    block INTEGER NULL -- 0-based block it belongs to, null outside the blocks
    dtype VARCHAR -- dtype of the module's output on both sides, in which ULPs are counted; float32 if the two
    -- differ
    positions INTEGER -- compared positions of the prompt
    elements BIGINT -- elements compared: compared positions x width of the output
    neq BIGINT -- elements whose values differ; +0 equals -0, NaN equals NaN
    finite BIGINT -- elements finite on both sides, over which distances are taken
    max_abs DOUBLE -- largest absolute difference, unit of the output, over elements finite on both sides
    rms DOUBLE -- root mean square of the difference, unit of the output
    max_ulps BIGINT -- largest distance, ULPs of dtype
    mean_ulps DOUBLE -- mean distance, ULPs of dtype
    max_row_ulps DOUBLE NULL -- largest difference over the spacing of dtype at the largest finite
    -- magnitude of the reference's row (the output at one position); null if undefined
    rms_row_ulps DOUBLE NULL -- root mean square of the difference in those; null likewise
    nonfinite_mismatch BIGINT -- elements with a NaN or infinity on one side only
    first_position INTEGER NULL -- lowest compared position where an element differs, null if none does
    floor_rms DOUBLE NULL -- the same rms of reordered prefills to a plain one, over all seeds, unit of the output;
    -- null if none was run
    """,
)

LAYER_POSITION = Table(
    "layer_position",
    """
    -- outputs of the modules by position
    pair INTEGER -- index of the pair
    prompt INTEGER -- index of the prompt
    ordinal INTEGER -- place of the module, as in layer
    position INTEGER -- 0-based token index in its prompt
    neq BIGINT -- elements whose values differ
    rms DOUBLE -- root mean square of the difference, unit of the output
    max_ulps BIGINT -- largest distance, ULPs of layer.dtype
    max_row_ulps DOUBLE NULL -- largest difference in row ULPs, as in layer
    floor_rms DOUBLE NULL -- the same rms of reordered prefills to a plain one, over all seeds; null if none was run
    """,
)
_INSERT_ROWS = 1 << 16  # of layer_position at a time: an Arrow table of a million rows would hold 50 MB
# Figures of a module at one position, and whether it came.
_POSITION = np.dtype(
    [(name, np.int64) for name in ("neq", "max_ulps", "sum_ulps", "finite", "nonfinite_mismatch")]
    + [(name, np.float64) for name in ("max_abs", "sum_squares", "max_row_ulps", "row_squares")]
    + [("seen", np.bool_)]
)
_FIGURES = _POSITION.names[:-1]  # type: ignore[index]

Key = tuple[int, int]  # prompt, ordinal
Insert = Callable[[str, pa.Table], None]
Put = Callable[..., None]
# Sum of squares and finite elements over all seeds, [positions] each.
_Floor = tuple[NDArray[np.float64], NDArray[np.int64]]


@dataclass(frozen=True)
class LayerModule:
    """One module of a model. ordinal: place in the order of first outputs; block: None outside the blocks."""

    ordinal: int
    name: str
    kind: str
    block: int | None = None


@dataclass(frozen=True)
class LayerPart:
    """Outputs of a module at some of the chosen positions, consecutive among them, from number `first` on.

    bits: [positions, width] of `dtype`, the module's own. A width of 0: its output is not understood, and nothing
    of it counts.
    """

    prompt: int
    module: LayerModule
    first: int
    bits: NDArray[np.unsignedinteger]
    dtype: str

    @property
    def format(self) -> FloatFormat:
        return format_named(self.dtype)

    @property
    def key(self) -> Key:
        return self.prompt, self.module.ordinal

    @property
    def span(self) -> slice:
        return slice(self.first, self.first + len(self.bits))


@dataclass
class _Module:
    """A module in one prompt: outputs of a side in a file, or figures of the comparison of another side with them.
    width: of its output, 0 if it cannot be compared; rows: figures by position, of a side only which came.
    """

    module: LayerModule
    width: int
    format: FloatFormat
    rows: NDArray[Any]
    offset: int = 0  # in the file of a side that waits

    @property
    def is_whole(self) -> bool:
        """Return whether the module has an output at every chosen position, in one width and dtype."""
        return self.width > 0 and bool(self.rows["seen"].all())


class _Spool:
    """Outputs of one side in one file. A position that comes twice is overwritten."""

    def __init__(self, path: Path, counts: Sequence[int]) -> None:
        self.file = path.open("w+b")
        self.modules: dict[Key, _Module] = {}
        self._counts, self._end = counts, 0

    def keep(self, part: LayerPart) -> None:
        width, item = part.bits.shape[1], part.format.itemsize
        if part.key not in self.modules:
            rows = np.zeros(self._counts[part.prompt], [("seen", np.bool_)])
            self.modules[part.key] = _Module(part.module, width, part.format, rows, self._end)
            self._end += len(rows) * width * item
        module = self.modules[part.key]
        if (module.width, module.format) != (width, part.format):
            module.width = 0  # it changes its shape from forward to forward: not to be compared
            return
        self.file.seek(module.offset + part.first * width * item)
        self.file.write(np.ascontiguousarray(part.bits).data)
        module.rows["seen"][part.span] = True

    def reference_of(self, part: LayerPart) -> tuple[NDArray[np.unsignedinteger], FloatFormat] | None:
        """Bits of the same module at the same positions; None if there are none of that width."""
        module = self.modules.get(part.key)
        if module is None or module.width != part.bits.shape[1] or not module.rows["seen"][part.span].all():
            return None
        self.file.seek(module.offset + part.first * module.width * module.format.itemsize)
        bits = np.frombuffer(self.file.read(part.bits.size * module.format.itemsize), module.format.carrier)
        return bits.reshape(part.bits.shape), module.format


class LayerRows:
    """Takes module outputs and writes rows of the tables `layer` and `layer_position`.

    The reference's first; then, if there is to be a noise floor, those of reordered prefills (and of a plain one,
    if the reference is another path); then the variants', each prompt followed by `end`.
    """

    def __init__(
        self, directory: Path, positions: Sequence[Sequence[int]], put: Put, insert: Insert, *, is_async: bool = True
    ) -> None:
        """positions: of each prompt, ascending. put: hands work to the storing thread, which `insert` belongs to.

        is_async: compare in that thread too, else in the caller's: next to forwards that keep every core busy it
        costs them more than it takes (a fifth of the whole, on two cores).
        """
        self._directory, self._storing, self._insert, self._is_async = directory, put, insert, is_async
        self._chosen = [np.array(each, np.int32) for each in positions]
        self._counts = [len(each) for each in positions]
        self._reference = self._plain = _Spool(directory / "reference-layers", self._counts)
        self._compared: dict[Key, _Module] = {}
        self._floor: dict[Key, _Floor] = {}

    def _put(self, work: Callable[..., object], *arguments: object, size: int = 0) -> None:
        if self._is_async:
            self._storing(work, *arguments, size=size)
        else:
            work(*arguments)

    def write(self, side: int, part: LayerPart) -> None:
        """Write outputs of a module on a side. The array is ours from now on."""
        if side:
            self._put(self._compare, part, self._reference, size=part.bits.nbytes)
        else:
            self._put(self._reference.keep, part, size=part.bits.nbytes)

    def end(self, side: int, prompt: int) -> None:
        """Finish a prompt of a side."""
        if side:
            self._put(self._end, side - 1, prompt)

    def write_plain(self, part: LayerPart) -> None:
        """Write outputs of a plain prefill, if the reference is another path: reorderings are compared with it."""
        if self._plain is self._reference:
            self._plain = _Spool(self._directory / "plain-layers", self._counts)
        self._put(self._plain.keep, part, size=part.bits.nbytes)

    def write_floor(self, part: LayerPart) -> None:
        """Write outputs of a module in a reordered prefill."""
        self._put(self._compare, part, self._plain, size=part.bits.nbytes)

    def end_floor(self) -> None:
        """Finish a prompt of a reordering."""
        self._put(self._end_floor)

    def forget_floor(self) -> None:
        """Drop a floor that could not be finished."""
        self._put(self._floor.clear)
        self._put(self._compared.clear)

    def close(self) -> None:
        """Close the files, which are removed with their directory. Call it once nothing is being stored any more."""
        self._reference.file.close()
        self._plain.file.close()

    def _compare(self, part: LayerPart, spool: _Spool) -> None:
        """Compare a part; a module with a part that cannot be compared is left out."""
        module, against = self._compared.get(part.key), spool.reference_of(part)
        fmt = FLOAT32 if against is None or against[1] is not part.format else part.format
        if against is None or (module is not None and module.format is not fmt):
            if module is not None:
                module.width = 0
            return
        reference, bits = against[0], part.bits
        if against[1] is not part.format:  # every value of both is a float32's, so there they are compared
            reference, bits = widen(reference, against[1]), widen(bits, part.format)
        if module is None:
            rows = np.zeros(self._counts[part.prompt], _POSITION)
            module = self._compared[part.key] = _Module(part.module, bits.shape[1], fmt, rows)
        figures = differences(reference, bits, fmt)
        for name in _FIGURES:
            module.rows[name][part.span] = getattr(figures, name)
        module.rows["seen"][part.span] = True

    def _take(self, spool: _Spool) -> list[tuple[Key, _Module]]:
        """Return the modules with outputs of both sides at every chosen position, in their order; forget them all."""
        modules = [(key, each) for key, each in sorted(self._compared.items()) if each.is_whole]
        self._compared.clear()
        return [(key, each) for key, each in modules if spool.modules[key].is_whole]

    def _end_floor(self) -> None:
        for key, module in self._take(self._plain):
            count = len(module.rows)
            squares, finite = self._floor.setdefault(key, (np.zeros(count), np.zeros(count, np.int64)))
            squares += module.rows["sum_squares"]
            finite += module.rows["finite"]

    def _end(self, pair: int, prompt: int) -> None:
        modules = self._take(self._reference)
        if modules and self._is_async:
            self._store(pair, prompt, modules)
        elif modules:
            self._storing(self._store, pair, prompt, modules)

    def _store(self, pair: int, prompt: int, modules: list[tuple[Key, _Module]]) -> None:
        positions = self._chosen[prompt]
        rows = [_module_row(positions, each, self._floor.get(key)) for key, each in modules]
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        self._insert(LAYER.name, LAYER.arrow(pair=pair, prompt=prompt, positions=len(positions), **columns))
        at_once = max(1, _INSERT_ROWS // len(positions))
        for start in range(0, len(modules), at_once):
            tables = [
                _position_rows(pair, prompt, positions, each, self._floor.get(key))
                for key, each in modules[start : start + at_once]
            ]
            self._insert(LAYER_POSITION.name, pa.concat_tables(tables))


def _module_row(positions: NDArray[np.int32], result: _Module, floor: _Floor | None) -> dict[str, Any]:
    rows, module = result.rows, result.module
    sums = {
        name: rows[name].sum().item() for name in ("neq", "finite", "sum_ulps", "sum_squares", "nonfinite_mismatch")
    }
    finite, differing = max(1, sums["finite"]), np.flatnonzero(rows["neq"])
    return {
        "ordinal": module.ordinal,
        "module": module.name,
        "kind": module.kind,
        "block": module.block,
        "dtype": result.format.name,
        "elements": len(positions) * result.width,
        "neq": sums["neq"],
        "finite": sums["finite"],
        "max_abs": float(rows["max_abs"].max()),
        "rms": float(np.sqrt(sums["sum_squares"] / finite)),
        "max_ulps": int(rows["max_ulps"].max()),
        "mean_ulps": float(sums["sum_ulps"] / finite),
        "max_row_ulps": _none_if_nan(max_row_ulps(rows["max_row_ulps"])),
        "rms_row_ulps": _none_if_nan(rms_row_ulps(rows["row_squares"], rows["finite"])),
        "nonfinite_mismatch": sums["nonfinite_mismatch"],
        "first_position": int(positions[differing[0]]) if len(differing) else None,
        "floor_rms": None if floor is None else float(np.sqrt(floor[0].sum() / max(1, int(floor[1].sum())))),
    }


def _none_if_nan(value: NDArray[np.float64]) -> float | None:
    return None if np.isnan(value) else float(value)


def _position_rows(
    pair: int, prompt: int, positions: NDArray[np.int32], result: _Module, floor: _Floor | None
) -> pa.Table:
    """One row a position of one module."""
    rows = result.rows
    return LAYER_POSITION.arrow(
        pair=pair,
        prompt=prompt,
        ordinal=result.module.ordinal,
        position=positions,
        neq=rows["neq"],
        rms=np.sqrt(rows["sum_squares"] / np.maximum(rows["finite"], 1)),
        max_ulps=rows["max_ulps"],
        max_row_ulps=null_if_nan(rows["max_row_ulps"]),
        floor_rms=None if floor is None else np.sqrt(floor[0] / np.maximum(floor[1], 1)),
    )
