"""The compute dtype of a dump: what was declared is checked, else the narrowest that holds every value is found."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ...errors import DumpError
from ...numerics.formats import BFLOAT16, FLOAT16, FLOAT32, FloatFormat
from .arrays import Elements
from .source_dtype import Source, has_number


def lossy(source: Source, bits: NDArray[np.unsignedinteger], target: FloatFormat) -> DumpError:
    value = source.first_lost(bits, target)
    return source.array.refusal(
        f"holds {value!r}, which is no {target.name} value",
        f"logits that {target.name} holds exactly, or another compute_dtype",
    )


def check_all(sources: list[Source], target: FloatFormat | None, tell: Callable[[int, int], None]) -> None:
    """Reads what must be read to refuse sides of nothing but NaN, and float64 beyond float32 and values beyond the
    given compute dtype.
    """
    done, total = 0, sum(source.array.nbytes for source in sources)
    for source in sources:
        is_settled = target is None or source.is_always_exact(target)
        is_number_seen = False
        elements = Elements(source.array)
        try:
            for raw in elements.blocks():
                done += raw.nbytes
                tell(done, total)
                bits = source.bits(raw)
                is_number_seen = is_number_seen or has_number(bits, source.fmt)
                if target is not None and not is_settled and source.into(bits, target) is None:
                    raise lossy(source, bits, target)
                if is_number_seen and is_settled and not source.is_double:
                    break
        finally:
            elements.close()
        if not is_number_seen:
            raise source.array.refusal("holds nothing but NaN", "logits")


def detect(sources: list[Source], tell: Callable[[int, int], None]) -> tuple[FloatFormat, str]:
    """The narrowest dtype that holds every value of every side bit for bit, and why. Stops at the first value that does
    not fit.
    """
    arrays = " and ".join(sorted({source.fmt.name for source in sources}, reverse=True))
    if len({source.fmt.name for source in sources}) == 1 and sources[0].fmt is not FLOAT32:
        return sources[0].fmt, f"array dtype: {arrays} arrays"
    for fmt in (BFLOAT16, FLOAT16):
        if _are_exact(sources, fmt, tell):
            return (fmt, f"detected: {arrays} arrays whose every value is exactly a {fmt.name}")
    if not _are_exact(sources, FLOAT32, tell):
        raise DumpError(
            f"{sources[0].array.file}: holds NaNs that change between {arrays}; expected all sides in one dtype."
        )
    return (FLOAT32, f"array dtype: {arrays} arrays with values that no narrower dtype holds")


def _are_exact(sources: list[Source], fmt: FloatFormat, tell: Callable[[int, int], None]) -> bool:
    """Return whether every value of every side is one of `fmt`."""
    done, total = 0, sum(source.array.nbytes for source in sources)
    for source in sources:
        if source.is_always_exact(fmt):
            done += source.array.nbytes
            continue
        elements = Elements(source.array)
        try:
            for raw in elements.blocks():
                if source.into(source.bits(raw), fmt) is None:
                    return False
                done += raw.nbytes
                tell(done, total)
        finally:
            elements.close()
    return True
