"""Do both sides of a dump hold logits, or one of them probabilities?"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from ..evidence import FAILED, NOTED, VALIDITY, Check, CheckFigures, Evidence
from ..numerics.arrays import Floats
from ..numerics.constant_rows import Filling


@dataclass(frozen=True)
class DumpSide:
    """A side of a dump. holds: logits, log-probabilities or probabilities; logsumexp: of every row,
    nats.
    """

    name: str
    filling: Filling
    holds: str
    logsumexp: Floats

    @property
    def is_cut(self) -> bool:
        return bool(self.filling.rows and np.isneginf(self.filling.value))


class LogsumexpFigures(CheckFigures):
    reference_least_logsumexp: Annotated[float | None, "least logsumexp of the reference, nats"]
    reference_largest_logsumexp: Annotated[float | None, "largest logsumexp of the reference, nats"]
    variant_least_logsumexp: Annotated[float | None, "least logsumexp of the variant, nats"]
    variant_largest_logsumexp: Annotated[float | None, "largest logsumexp of the variant, nats"]


LOGSUMEXP = Check("logits or probabilities", VALIDITY, LogsumexpFigures)


def logsumexp_row(sides: tuple[DumpSide, DumpSide]) -> Evidence | None:
    """Return the row on a side that holds no logits, None if both hold them."""
    mine, theirs = sides
    if mine.holds == theirs.holds == "logits":
        return None
    outcome = NOTED
    says = f"Both sides hold {mine.holds}, not logits: ULPs, margins and rms are of those."
    if mine.holds != theirs.holds:
        outcome = FAILED
        says = (
            f"'{mine.name}' holds {mine.holds} and '{theirs.name}' holds {theirs.holds}: they"
            " cannot be compared."
        )
    finite = [side.logsumexp[np.isfinite(side.logsumexp)] for side in sides]
    ends = [float(end(rows)) if len(rows) else None for rows in finite for end in (np.min, np.max)]
    return Evidence(
        LOGSUMEXP,
        "logsumexp of every row of both sides",
        LogsumexpFigures(**dict(zip(LogsumexpFigures.__struct_fields__, ends, strict=True))),
        outcome,
        says,
    )
