"""Module outputs of a pair: compared part by part as they come while a run is written, kept as rows
of `layer` and `layer_position`.

Paths change weights, threads and kernels of the whole process, so two of them cannot run in step:
the reference is through before a variant begins, and waits in a file (decision 0005). Only figures
are kept: all outputs of a long prompt are larger than the model. Memory holds those of one prompt
of one side (73 bytes a module and position, twice while they are stored) and the sums of the
rounding floor (16 bytes).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ...numerics.arrays import Array, Bits, Flags, Floats
from ...numerics.formats import FLOAT32, FloatFormat, format_named, widen
from ..file.database import Database
from ..file.table import Table, null_if_nan
from ..spool import Spool
from .differences import DECLARED, FIGURES, columns_of, figures_of, first_position

LAYER = Table(
    "layer",
    """
    -- outputs of the model's modules on both sides of a pair at the compared positions; no rows if
    -- a capture did not compare them
    pair INTEGER -- index of the pair
    prompt INTEGER -- index of the prompt
    ordinal INTEGER -- 0-based place in the order in which the modules run
    module VARCHAR -- name of the module in the model; logits: what the model gives in the end, its
    -- head and all behind it
    kind VARCHAR -- embedding, norm, projection (in attention), attention (its whole), mlp (whole or
    -- part), residual (the stream after a block), head or other
    block INTEGER NULL -- 0-based block it belongs to, null outside the blocks
    dtype VARCHAR -- dtype of the module's output on both sides, in which ULPs are counted; float32
    -- if the two differ
    positions INTEGER -- compared positions of the prompt
    elements BIGINT -- elements compared: compared positions x width of the output
    """
    + DECLARED.format(of="output", dtype="dtype", row="the output at one position")
    + """
    first_position INTEGER NULL -- lowest compared position where an element differs, null if none
    -- does
    floor_rms DOUBLE NULL -- the same rms of reordered prefills to a plain one, over all seeds, unit
    -- of the output; null if none was run
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
    floor_rms DOUBLE NULL -- the same rms of reordered prefills to a plain one, over all seeds; null
    -- if none was run
    """,
)
# of layer_position at a time: an Arrow table of a million rows would hold 50 MB
_INSERT_ROWS = 1 << 16
# in place of a side's index: a plain prefill, if the reference is another path; a reordered one
PLAIN_PREFILL, FLOOR = -2, -1

Key = tuple[int, int]  # prompt, ordinal
Put = Callable[..., None]


@dataclass(frozen=True)
class LayerModule:
    """One module of a model. ordinal: place in the order of first outputs; block: None outside the
    blocks.
    """

    ordinal: int
    module: str
    kind: str
    block: int | None = None


@dataclass(frozen=True)
class LayerPart:
    """Outputs of a module at some of the chosen positions, consecutive among them, from number
    `first` on.

    bits: [positions, width] of `dtype`, the module's own. A width of 0: its output is not
    understood, and nothing of it counts.
    """

    prompt: int
    module: LayerModule
    first: int
    bits: Bits
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
class _Outputs:
    """Outputs of a module in one prompt: of a side, in a file, or figures of the comparison of
    another side with them.

    width: of the output, 0 if it cannot be compared; is_seen, figures: by position.
    """

    module: LayerModule
    width: int
    format: FloatFormat
    is_seen: Flags
    figures: Array = field(default_factory=lambda: np.empty(0, FIGURES))
    offset: int = 0  # in the file of a side that waits

    @property
    def is_whole(self) -> bool:
        """Return whether the module has an output at every chosen position, in one width and
        dtype.
        """
        return self.width > 0 and bool(self.is_seen.all())


class _SpooledSide:
    """Outputs of one side in one file. A position that comes twice is overwritten."""

    def __init__(self, path: Path, counts: Sequence[int]) -> None:
        self._spool, self._counts, self._end = Spool(path), counts, 0
        self.modules: dict[Key, _Outputs] = {}

    def keep(self, part: LayerPart) -> None:
        width, count = part.bits.shape[1], self._counts[part.prompt]
        module = self.modules.get(part.key)
        if module is None:
            is_seen = np.zeros(count, np.bool_)
            module = _Outputs(part.module, width, part.format, is_seen, offset=self._end)
            self.modules[part.key] = module
            self._end += count * width * part.format.itemsize
        if (module.width, module.format) != (width, part.format):
            # an output that changes its shape from forward to forward cannot be compared
            module.width = 0
            return
        self._spool.add(part.bits, module.offset + part.first * width * part.format.itemsize)
        module.is_seen[part.span] = True

    def at(self, part: LayerPart) -> tuple[Bits, FloatFormat] | None:
        """Bits of the same module at the same positions; None if there are none of that width."""
        module = self.modules.get(part.key)
        if not module or module.width != part.bits.shape[1]:
            return None
        if not module.is_seen[part.span].all():
            return None
        offset = module.offset + part.first * module.width * module.format.itemsize
        return self._spool.read(offset, module.format.carrier, part.bits.shape), module.format


class LayerRows:
    """Takes module outputs and writes rows of the tables `layer` and `layer_position`.

    The reference's first; then, if there is to be a noise floor, those of reordered prefills (and
    of a plain one, if the reference is another path); then the variants'. Each prompt is followed
    by `end`.
    """

    def __init__(
        self,
        directory: Path,
        positions: Sequence[Sequence[int]],
        put: Put,
        database: Database,
        *,
        is_async: bool = True,
    ) -> None:
        """positions: of each prompt, ascending. put: hands work to the storing thread, which
        `database` belongs to.

        is_async: compare in that thread too, else in the caller's: next to forwards that keep every
        core busy it costs them more than it takes (a fifth of the whole, on two cores).
        """
        self._storing, self._database, self._is_async = put, database, is_async
        self._chosen = [np.array(each, np.int32) for each in positions]
        counts = [len(each) for each in positions]
        self._sides = {
            side: _SpooledSide(directory / f"layers{side}", counts) for side in (0, PLAIN_PREFILL)
        }
        self._of_floor = self._sides[0]
        self._compared: dict[Key, _Outputs] = {}
        # sum of squares, finite elements over seeds [2, positions]
        self._floor: dict[Key, Floats] = {}

    def _put(self, work: Put, *arguments: object, size: int = 0) -> None:
        if self._is_async:
            self._storing(work, *arguments, size=size)
        else:
            work(*arguments)

    def write(self, side: int, part: LayerPart) -> None:
        """Write outputs of a module on a side, PLAIN_PREFILL or FLOOR. The array is ours from now
        on.
        """
        if side == PLAIN_PREFILL:
            self._of_floor = self._sides[PLAIN_PREFILL]
        if side in self._sides:
            self._put(self._sides[side].keep, part, size=part.bits.nbytes)
        else:
            reference = self._of_floor if side == FLOOR else self._sides[0]
            self._put(self._compare, part, reference, size=part.bits.nbytes)

    def end(self, side: int, prompt: int) -> None:
        """Finish a prompt of a side."""
        if side == FLOOR:
            self._put(self._end_floor)
        elif side > 0:
            self._put(self._end, side - 1, prompt)

    def forget_floor(self) -> None:
        """Drop a floor that could not be finished."""
        self._put(self._floor.clear)
        self._put(self._compared.clear)

    def _compare(self, part: LayerPart, side: _SpooledSide) -> None:
        """Compare a part; a module with a part that cannot be compared is left out."""
        module, against = self._compared.get(part.key), side.at(part)
        if against is None:
            if module:
                module.width = 0
            return
        (reference, other), bits, fmt = against, part.bits, part.format
        # every value of both is a float32's, so there they are compared
        if other is not fmt:
            reference, bits, fmt = widen(reference, other), widen(bits, fmt), FLOAT32
        if module and module.format is not fmt:
            module.width = 0
            return
        if module is None:
            count = len(self._chosen[part.prompt])
            is_seen = np.zeros(count, np.bool_)
            figures = np.zeros(count, FIGURES)
            module = _Outputs(part.module, bits.shape[1], fmt, is_seen, figures)
            self._compared[part.key] = module
        module.figures[part.span] = figures_of(reference, bits, fmt)
        module.is_seen[part.span] = True

    def _take(self, side: _SpooledSide) -> dict[Key, _Outputs]:
        """Return the modules with outputs of both sides at every chosen position, in their order;
        forget them all.
        """
        modules = {
            key: self._compared[key]
            for key in sorted(self._compared)
            if self._compared[key].is_whole and side.modules[key].is_whole
        }
        self._compared.clear()
        return modules

    def _end_floor(self) -> None:
        for key, module in self._take(self._of_floor).items():
            sums = np.stack([module.figures[name] for name in ("sum_squares", "finite")])
            self._floor[key] = self._floor.get(key, 0.0) + sums

    def _end(self, pair: int, prompt: int) -> None:
        modules = self._take(self._sides[0])
        if modules and self._is_async:
            self._store(pair, prompt, modules)
        elif modules:
            self._storing(self._store, pair, prompt, modules)

    def _store(self, pair: int, prompt: int, modules: dict[Key, _Outputs]) -> None:
        positions, outputs = self._chosen[prompt], modules.values()
        about = [each.module for each in outputs]
        figures = np.stack([each.figures for each in outputs])  # [modules, positions]
        none = np.full((2, len(positions)), np.nan)
        squares, finite = np.stack([self._floor.get(key, none) for key in modules], axis=1)
        LAYER.insert_records(
            self._database,
            about,
            pair=pair,
            prompt=prompt,
            dtype=[each.format.name for each in outputs],
            positions=len(positions),
            elements=[len(positions) * each.width for each in outputs],
            **columns_of(LAYER, figures, axis=1),
            first_position=first_position(figures, positions),
            floor_rms=null_if_nan(np.sqrt(squares.sum(1) / np.maximum(finite.sum(1), 1))),
        )
        floor_rms = np.sqrt(squares / np.maximum(finite, 1))
        at_once = max(1, _INSERT_ROWS // len(positions))
        for start in range(0, len(modules), at_once):
            of = slice(start, start + at_once)
            ordinals = [each.ordinal for each in about[of]]
            LAYER_POSITION.insert(
                self._database,
                pair=pair,
                prompt=prompt,
                ordinal=np.repeat(ordinals, len(positions)),
                position=np.tile(positions, len(ordinals)),
                **columns_of(LAYER_POSITION, figures[of].reshape(-1, 1), axis=1),
                floor_rms=null_if_nan(floor_rms[of].ravel()),
            )
