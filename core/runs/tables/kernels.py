"""Kernels that each side of a run launched: a row a kernel and module."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from ...errors import UsageError
from ..file.database import Database
from ..file.table import Table, columns_of

KERNEL = Table(
    "kernel",
    """
    -- what each side launched for prompt 0, one row a kernel and module; no rows where it was not watched
    side INTEGER -- index of the side
    ordinal INTEGER -- 0-based, in the order in which they first ran
    module VARCHAR -- innermost module of the model that ran; empty for the model itself
    library VARCHAR -- torch: an operation; oneDNN, MKL: what these ran in it on a CPU; CUDA: a kernel on the device
    name VARCHAR -- the library's name of the operation or kernel
    detail VARCHAR -- shapes and types as the library tells them; of a CUDA kernel the operation that launched it
    launches BIGINT -- how often, over the forwards that were looked at
    microseconds DOUBLE -- its own time over these forwards while watched, microseconds
    """,
)

KERNEL_SIDE = Table(
    "kernel_side",
    """
    -- sides whose kernels were watched
    side INTEGER -- index of the side
    forwards INTEGER -- forwards of the model that were looked at
    forwards_of INTEGER -- forwards of the model there were
    """,
)
LIBRARIES = ("torch", "oneDNN", "MKL", "CUDA")


@dataclass(frozen=True)
class KernelRow:
    """A kernel in a module of one side. library: of LIBRARIES; detail: shapes and types as the library tells them, or
    the operation of torch that launched it; launches and microseconds (its own, while watched): over all forwards that
    were looked at.
    """

    module: str
    library: str
    name: str
    detail: str
    launches: int
    microseconds: float

    def __post_init__(self) -> None:
        if self.library not in LIBRARIES or self.launches < 1 or not 0 <= self.microseconds < math.inf:
            raise UsageError(f"a kernel with {self.launches} launches in {self.microseconds} µs is none")


_COLUMNS = [field.name for field in fields(KernelRow)]


@dataclass(frozen=True)
class KernelList:
    """Kernels of one side. rows: in the order in which they first ran; forwards: calls of the model that were looked
    at; of: all there were.
    """

    side: int
    rows: tuple[KernelRow, ...]
    forwards: int
    of: int

    def __post_init__(self) -> None:
        if not 0 <= self.forwards <= self.of or (self.rows and not self.forwards):
            raise UsageError(f"kernels of {self.forwards} of {self.of} forwards of side {self.side} are none")


def insert_kernels(database: Database, listed: KernelList) -> None:
    """Insert the kernels of one side, in the order of its rows."""
    KERNEL_SIDE.insert_row(database, side=listed.side, forwards=listed.forwards, forwards_of=listed.of)
    columns = columns_of(listed.rows, _COLUMNS)
    KERNEL.insert(database, side=listed.side, ordinal=list(range(len(listed.rows))), **columns)


def watched_sides(database: Database) -> frozenset[int]:
    """Indices of the sides whose kernels were watched."""
    return frozenset(row[0] for row in database.rows("SELECT side FROM kernel_side"))
