"""Kernels that each side of a run launched: a row a kernel and module in the table `kernel`, written once and read back
whole.
"""

from __future__ import annotations

import math
import re
from dataclasses import astuple, dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ...errors import UsageError
from ..file.database import Database

if TYPE_CHECKING:
    import pandas as pd

LIBRARIES = ("torch", "oneDNN", "MKL", "CUDA")


_LAYER = re.compile(r"\.\d+(?=\.|$)")


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


@dataclass(frozen=True)
class KernelList:
    """Of one side. rows: in the order in which they first ran; forwards: calls of the model that were looked at; of:
    all there were.
    """

    side: int
    rows: tuple[KernelRow, ...]
    forwards: int
    of: int

    def __post_init__(self) -> None:
        if not 0 <= self.forwards <= self.of or (self.rows and not self.forwards):
            raise UsageError(f"kernels of {self.forwards} of {self.of} forwards of side {self.side} are none")

    def table(self) -> pd.DataFrame:
        """A row a kernel and module, with `layer_kind`, the module's name without the numbers of layers."""
        import pandas as pd

        names = [field.name for field in fields(KernelRow)]
        table = pd.DataFrame([astuple(row) for row in self.rows], columns=names)
        return table.assign(layer_kind=[module_kind(module) for module in table["module"]])


def module_kind(module: str) -> str:
    """A module's name with its layers' numbers left out: `model.layers.3.mlp` and `model.layers.7.mlp` are of one
    kind.
    """
    return _LAYER.sub(".*", module)


def insert_kernels(database: Database, listed: KernelList) -> None:
    """Of one side, in the order of its rows."""
    database.execute("INSERT INTO kernel_side VALUES (?, ?, ?)", [listed.side, listed.forwards, listed.of])
    rows = listed.rows
    database.insert(
        "kernel",
        pa.table(
            {
                "side": np.full(len(rows), listed.side, np.int32),
                "ordinal": np.arange(len(rows), dtype=np.int32),
                "module": pa.array([row.module for row in rows], pa.string()),
                "library": pa.array([row.library for row in rows], pa.string()),
                "name": pa.array([row.name for row in rows], pa.string()),
                "detail": pa.array([row.detail for row in rows], pa.string()),
                "launches": np.array([row.launches for row in rows], np.int64),
                "microseconds": np.array([row.microseconds for row in rows], np.float64),
            }
        ),
    )


def read_kernels(database: Database) -> dict[int, KernelList]:
    """By side; empty where the capture did not watch them."""
    found: dict[int, list[KernelRow]] = {}
    for side, *row in database.rows(
        "SELECT side, module, library, name, detail, launches, microseconds FROM kernel ORDER BY side, ordinal"
    ):
        found.setdefault(side, []).append(KernelRow(*row))
    counts = database.rows("SELECT side, forwards, forwards_of FROM kernel_side ORDER BY side")
    return {side: KernelList(side, tuple(found.get(side, ())), looked, total) for side, looked, total in counts}
