"""Kernels that each side of a run launched: one row per kernel and module."""

from dataclasses import dataclass

import numpy as np

from ..file.database import Database
from ..file.table import Table


@dataclass(frozen=True)
class KernelRow:
    """A kernel in a module of one side, as the table has it. library: of LIBRARIES."""

    module: str
    library: str
    name: str
    detail: str
    launches: int
    microseconds: float


KERNEL = Table(
    "kernel",
    """
    -- what each side launched for prompt 0, one row per kernel and module; no rows if it was not
    -- watched
    side INTEGER -- index of the side
    ordinal INTEGER -- 0-based, in the order in which they first ran
    module VARCHAR -- innermost module of the model that ran; empty for the model itself
    library VARCHAR -- torch: an operation; oneDNN, MKL: what these ran in it on a CPU; CUDA: a
    -- kernel
    name VARCHAR -- the library's name of the operation or kernel
    detail VARCHAR -- shapes and types as the library tells them; of CUDA the operation that
    -- launched it
    launches BIGINT -- number of launches, over the profiled forwards
    microseconds DOUBLE -- its own time over these forwards while watched, microseconds
    """,
)

KERNEL_SIDE = Table(
    "kernel_side",
    """
    -- sides whose kernels were watched
    side INTEGER -- index of the side
    forwards INTEGER -- profiled forwards of the model
    forwards_of INTEGER -- forwards of the model there were
    """,
)
LIBRARIES = ("torch", "oneDNN", "MKL", "CUDA")


@dataclass(frozen=True)
class KernelList:
    """Kernels of one side in the order in which they first ran. forwards: those profiled, of
    `forwards_of`.
    """

    side: int
    rows: tuple[KernelRow, ...]
    forwards: int
    forwards_of: int


def insert_kernels(database: Database, kernels: KernelList) -> None:
    """Insert the kernels of one side, in the order of its rows."""
    KERNEL_SIDE.insert_records(database, [kernels])
    ordinals = np.arange(len(kernels.rows))
    KERNEL.insert_records(database, kernels.rows, side=kernels.side, ordinal=ordinals)
