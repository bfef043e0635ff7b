"""Torch operations probed on one machine: what each keeps bit for bit.

Three questions to an operation, each asked of its bits: does a call repeat itself, is row 0 the same alone and among N
rows (*batch-invariant*), and is a row the same at every index of a batch (*position-invariant*).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ...errors import UsageError
from ..file.database import Database
from ..file.table import Table, columns_of

OP = Table(
    "op",
    """
    -- torch operations probed on one machine, one row an operation, dtype and size; filled in runs of kind ops only
    probe INTEGER -- 0-based number, in the order of probing
    op VARCHAR -- name of the operation
    backend VARCHAR -- backend of attention; empty for other operations
    dtype VARCHAR -- dtype of its inputs and result; ULPs are counted in it
    size VARCHAR -- size of one row of its inputs, and of what the rows share
    modules VARCHAR -- modules of run.model that have this size; empty otherwise
    elements BIGINT -- elements of the result of one row
    rows_tried INTEGER -- rows that were row 0 of batches of their own; the classes are over all of them
    is_repeatable BOOLEAN NULL -- every call gave the bits of the first at its batch size; null if not asked
    calls BIGINT NULL -- calls made, over all batch sizes
    differing_calls BIGINT NULL -- calls that gave other bits than the first at their batch size
    worst_batch BIGINT NULL -- batch size of the call with most differing elements; 0 where none differs
    worst_call BIGINT NULL -- its 0-based number at that batch size
    worst_neq BIGINT NULL -- its elements that differ from the first call
    worst_elements BIGINT NULL -- its elements in all
    worst_max_ulps BIGINT NULL -- its largest distance to the first call, ULPs of the dtype
    is_batch_invariant BOOLEAN NULL -- row 0 has the same bits at every batch size; null if not asked or without
    -- meaning (see note)
    batch_classes VARCHAR -- JSON: batch sizes of equal bits of row 0, first that of batch 1; digest of the bits,
    -- elements that differ from batch 1, largest distance in ULPs
    batch_neq BIGINT NULL -- most elements of the rows tried that differ from batch 1 in any class
    batch_max_ulps BIGINT NULL -- largest distance of row 0 to batch 1 in any class, ULPs of the dtype
    is_position_invariant BOOLEAN NULL -- one row at every index of a batch has the same bits; null if not asked
    row_positions VARCHAR -- JSON: for each batch size, the indices of a batch of one row's copies in groups of equal
    -- bits
    relative_rms DOUBLE NULL -- rms of row 0 alone minus a float64 computation of it, over the rms of the latter
    seconds DOUBLE -- wall time of the probe, seconds
    note VARCHAR -- why a question was not asked, or not at every batch size; empty otherwise
    refusal VARCHAR -- why the machine does not have the operation, one sentence; empty if it was measured
    """,
)


_WORST = ("worst_batch", "worst_call", "worst_neq", "worst_elements", "worst_max_ulps")
_PLAIN = [
    "op",
    "backend",
    "dtype",
    "size",
    "modules",
    "elements",
    "rows_tried",
    "relative_rms",
    "seconds",
    "note",
    "refusal",
]
_ANSWERS = ["is_repeatable", "is_batch_invariant", "is_position_invariant"]


@dataclass(frozen=True)
class Repeats:
    """Repetitions of one call: `calls` over all batch sizes, and how many gave other bits than the first at their batch
    size.

    worst_*: the call with most differing elements: its batch size, its 0-based number there, elements that differ,
    elements in all, largest distance in ULPs of the dtype. All 0 where none differs.
    """

    calls: int
    differing: int = 0
    worst_batch: int = 0
    worst_call: int = 0
    worst_neq: int = 0
    worst_elements: int = 0
    worst_max_ulps: int = 0


@dataclass(frozen=True)
class BatchClass:
    """Batch sizes among which row 0 is the same bit for bit.

    digest: the first 16 hexadecimal digits of the SHA-256 of these bits, of all rows tried; neq, max_ulps: elements of
    these rows that differ from batch size 1, and by how many ULPs of the dtype at most.
    """

    batches: tuple[int, ...]
    digest: str
    neq: int = 0
    max_ulps: int = 0

    def __post_init__(self) -> None:
        if not self.batches or not re.fullmatch("[0-9a-f]{1,64}", self.digest):
            raise UsageError(f"a class of batch sizes {self.batches} with the digest '{self.digest[:64]}' is none.")


@dataclass(frozen=True)
class RowPositions:
    """One row copied to every index of a batch of `batch`: the indices in groups of equal bits, that of index 0
    first.
    """

    batch: int
    groups: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        indices = [index for group in self.groups for index in group]
        if len(indices) != self.batch or sorted(indices) != list(range(self.batch)):
            raise UsageError(f"a batch of {self.batch} has each of its indices once, in one group.")


@dataclass(frozen=True)
class OpRow:
    """One operation in one dtype and size. backend: of attention, else ''; modules: those of a model that have this
    shape, else ''.

    elements: of one row's result; rows_tried: rows that were row 0 of batches of their own, over all of which classes
    are formed. repeats, classes and positions are None or empty where they were not asked, or no answer has a meaning;
    `note` says why. relative_rms: rms of row 0 alone to a float64 computation from the same inputs, over that one's
    rms. refusal: why the machine does not have the operation, else ''; nothing was measured then.
    """

    op: str
    backend: str
    dtype: str
    size: str
    modules: str = ""
    elements: int = 0
    repeats: Repeats | None = None
    classes: tuple[BatchClass, ...] = ()
    positions: tuple[RowPositions, ...] = ()
    relative_rms: float | None = None
    seconds: float = 0.0
    note: str = ""
    refusal: str = ""
    rows_tried: int = 1

    def __post_init__(self) -> None:
        batches = [batch for found in self.classes for batch in found.batches]
        if len(set(batches)) != len(batches):
            raise UsageError(f"{self.op}: a batch size is in one class, and once.")
        if self.refusal and (self.repeats or self.classes or self.positions):
            raise UsageError(f"{self.op}: refused, and yet measured.")
        if self.classes and 1 not in self.classes[0].batches:
            raise UsageError(f"{self.op}: the first class is that of batch size 1, not of {self.classes[0].batches}.")

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Key that a row shares with the same probe of another machine."""
        return self.op, self.backend, self.dtype, self.size

    @property
    def is_repeatable(self) -> bool | None:
        return None if self.repeats is None else self.repeats.differing == 0

    @property
    def is_batch_invariant(self) -> bool | None:
        return len(self.classes) == 1 if self.classes else None

    @property
    def is_position_invariant(self) -> bool | None:
        return all(len(found.groups) == 1 for found in self.positions) if self.positions else None


def insert_ops(database: Database, rows: Sequence[OpRow]) -> None:
    """Insert the rows in their order. The three answers stand in columns of their own, for who has only SQL."""
    repeats = {name: [getattr(row.repeats, name, None) for row in rows] for name in ("calls", "differing", *_WORST)}
    OP.insert(
        database,
        probe=list(range(len(rows))),
        **columns_of(rows, [*_PLAIN, *_ANSWERS]),
        differing_calls=repeats.pop("differing"),
        **repeats,
        batch_classes=[json.dumps([asdict(found) for found in row.classes]) for row in rows],
        batch_neq=[max((found.neq for found in row.classes), default=None) for row in rows],
        batch_max_ulps=[max((found.max_ulps for found in row.classes), default=None) for row in rows],
        row_positions=[json.dumps([asdict(found) for found in row.positions]) for row in rows],
    )


def read_ops(database: Database) -> tuple[OpRow, ...]:
    """Read the rows in their order."""
    columns = ", ".join(name for name in OP.names if name not in _ANSWERS)
    rows = database.table(f"SELECT {columns} FROM op ORDER BY probe").to_pylist()
    with database.decoding("list of probes"):
        return tuple(_row(row) for row in rows)


def _row(found: dict[str, Any]) -> OpRow:
    """One row of the table, by the names of its columns. The file may come from anybody, so every value is what its
    column says.
    """
    numbers = [found[name] for name in ("calls", "differing_calls", *_WORST)]
    return OpRow(
        op=_text(found["op"]),
        backend=_text(found["backend"]),
        dtype=_text(found["dtype"]),
        size=_text(found["size"]),
        modules=_text(found["modules"]),
        note=_text(found["note"]),
        refusal=_text(found["refusal"]),
        elements=int(found["elements"]),
        rows_tried=int(found["rows_tried"]),
        repeats=None if numbers[0] is None else Repeats(*map(int, numbers)),
        classes=tuple(
            BatchClass(tuple(map(int, c["batches"])), _text(c["digest"]), int(c["neq"]), int(c["max_ulps"]))
            for c in json.loads(found["batch_classes"])
        ),
        positions=tuple(
            RowPositions(int(p["batch"]), tuple(tuple(map(int, group)) for group in p["groups"]))
            for p in json.loads(found["row_positions"])
        ),
        relative_rms=None if found["relative_rms"] is None else float(found["relative_rms"]),
        seconds=float(found["seconds"]),
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} is no text")
    return value
