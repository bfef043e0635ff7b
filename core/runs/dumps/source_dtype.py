"""Source dtypes of a dump's arrays: what their elements mean, lossless moves into the compute dtype, and which that is:
what was declared is checked, else the narrowest that holds every value is found.

Bits are only moved as integers or by conversions that are checked to survive the way back; a value that would be
rounded is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DumpError
from ...numerics.formats import BFLOAT16, FLOAT16, FLOAT32, FloatFormat, narrow, values_of, widen
from ...text import clean
from ..file.records import SideHeader
from .arrays import StoredArray

NORMALISED = 0.05  # nats; rounding of bfloat16 at a log-probability near -10 is 0.02
Tell = Callable[[int, int], None]


@dataclass(frozen=True)
class Source:
    """Reading rule for an array's elements. is_double: they are float64 that must fit float32, which is `fmt`."""

    array: StoredArray
    fmt: FloatFormat
    is_double: bool = False

    def bits(self, raw: NDArray[Any]) -> NDArray[np.unsignedinteger]:
        """Copy elements as saved to bits of `fmt`. Same shape."""
        size = raw.dtype.itemsize
        order = ">" if raw.dtype.byteorder == ">" else "<"
        plain = np.array(raw.view(f"{order}u{size}"), f"<u{size}", order="C")
        if not self.is_double:
            return plain
        wide = plain.view(np.float64)
        with np.errstate(all="ignore"):
            single = wide.astype(np.float32)
            is_lost = single.astype(np.float64).view(np.uint64) != plain
        if is_lost.any():
            raise self.array.refusal(
                f"is float64 and holds {float(wide[is_lost][0])!r}, which float32 cannot hold exactly",
                "logits in the dtype they were computed in: save them as float32, float16 or bfloat16",
            )
        return single.view(np.uint32)

    def is_always_exact(self, target: FloatFormat) -> bool:
        """Return whether every value fits, so that none has to be checked."""
        return not self.is_double and (target is self.fmt or (self.fmt is BFLOAT16 and target is FLOAT32))

    def lossy(self, bits: NDArray[np.unsignedinteger], target: FloatFormat) -> DumpError:
        """Error about the first value that `target` cannot hold; there is one."""
        bits = bits.reshape(-1)
        while len(bits) > 1:
            half = len(bits) // 2
            bits = bits[:half] if convert(bits[:half], self.fmt, target) is None else bits[half:]
        return self.array.refusal(
            f"holds {float(values_of(bits, self.fmt)[0])!r}, which is no {target.name} value",
            f"logits that {target.name} holds exactly, or another compute_dtype",
        )


@dataclass(frozen=True)
class DumpSide:
    """A side as the run will have it, and how its elements are read."""

    header: SideHeader
    source: Source


def convert(
    bits: NDArray[np.unsignedinteger], fmt: FloatFormat, target: FloatFormat
) -> NDArray[np.unsignedinteger] | None:
    """Convert bits of `fmt` to the same values in `target`, or return None if one would change. Same shape."""
    if target is fmt:
        return bits
    wide = widen(bits, fmt)
    # Hardware quiets a signalling float16 NaN on the way up, so that way is checked too; bfloat16 goes up by a shift.
    if fmt is FLOAT16:
        back = narrow(wide, FLOAT16)
        if back is None or not np.array_equal(back, bits):
            return None
    return narrow(wide, target)


def source_of(array: StoredArray, bits_format: FloatFormat | None) -> Source:
    """Return how to read `array`, by its dtype; bare 16-bit integers mean `bits_format`, the declared compute dtype."""
    kind, size = array.dtype.kind, array.dtype.itemsize
    if kind == "f" and size in (2, 4, 8):
        return Source(array, FLOAT16 if size == 2 else FLOAT32, is_double=size == 8)
    if kind == "V" and size == 2:
        return Source(array, BFLOAT16)
    if kind in "ui" and size == 2:  # int16 too: it is what older torch offers as a view of bfloat16
        if bits_format in (BFLOAT16, FLOAT16):
            return Source(array, bits_format)
        dtype_name = f"'{bits_format.name}'" if bits_format else "none"
        need = "compute_dtype 'bfloat16' or 'float16' with 16-bit bits"
        raise array.refusal(f"is {array.dtype.name} with the compute_dtype {dtype_name}", need)
    is_float8 = array.dtype.name.startswith("float8")
    if is_float8 or (kind == "V" and size == 1):
        name = array.dtype.name if is_float8 else "of one byte an element (|V1), as numpy saves float8"
        raise array.refusal(f"is {name}", "logits in float32, float16 or bfloat16: upcast them, and save those")
    need = "float32, float16, bfloat16, or uint16 bits with a 'compute_dtype' key"
    raise array.refusal(f"has the dtype {clean(array.dtype)}", need)


def check_all(sources: list[Source], target: FloatFormat | None, tell: Tell) -> None:
    """Refuse sides of nothing but NaN, float64 beyond float32, and values beyond the given compute dtype."""
    for source, blocks in _read_blocks(sources, tell):
        is_settled = target is None or source.is_always_exact(target)
        is_number_seen = False
        for bits in blocks:
            magnitude = bits & source.fmt.carrier.type((1 << (source.fmt.bits - 1)) - 1)
            is_number_seen = is_number_seen or bool((magnitude <= source.fmt.first_nonfinite).any())
            if target is not None and not is_settled and convert(bits, source.fmt, target) is None:
                raise source.lossy(bits, target)
            if is_number_seen and is_settled and not source.is_double:
                break
        if not is_number_seen:
            raise source.array.refusal("holds nothing but NaN", "logits")


def detect(sources: list[Source], tell: Tell) -> tuple[FloatFormat, str]:
    """Return the narrowest dtype that holds every value of every side bit for bit, and why."""
    formats = sorted({source.fmt.name for source in sources}, reverse=True)
    arrays = f"{' and '.join(formats)} arrays"
    if len(formats) == 1 and sources[0].fmt is not FLOAT32:
        return sources[0].fmt, f"array dtype: {arrays}"
    for fmt in (BFLOAT16, FLOAT16, FLOAT32):
        unknown = [source for source in sources if not source.is_always_exact(fmt)]
        if all(
            convert(bits, source.fmt, fmt) is not None
            for source, blocks in _read_blocks(unknown, tell)
            for bits in blocks
        ):
            if fmt is FLOAT32:
                return fmt, f"array dtype: {arrays} with values that no narrower dtype holds"
            return fmt, f"detected: {arrays} whose every value is exactly a {fmt.name}"
    file, problem = sources[0].array.file, f"holds NaNs that change between {arrays}"
    raise DumpError(f"{file}: {problem}; expected all sides in one dtype.")


def _read_blocks(sources: list[Source], tell: Tell) -> Iterator[tuple[Source, Iterator[NDArray[np.unsignedinteger]]]]:
    """Each source with the bits of all its rows, some at a time."""
    done, total = 0, sum(source.array.nbytes for source in sources)

    def blocks(source: Source) -> Iterator[NDArray[np.unsignedinteger]]:
        nonlocal done
        for raw in source.array.blocks():
            done += raw.nbytes
            tell(done, total)
            yield source.bits(raw)

    for source in sources:
        yield source, blocks(source)


def looks_normalised(rows: NDArray[np.float32]) -> str:
    """'log-probabilities', 'probabilities' or '': what [rows, vocab] values that should be logits add up to.

    Rows of log-probabilities that were cut to the best few, -inf elsewhere, add up to no more than 1.
    """
    wide = rows.astype(np.float64)
    if np.isnan(wide).any() or np.isposinf(wide).any():
        return ""
    with np.errstate(over="ignore", divide="ignore"):
        totals = np.log(np.exp(wide).sum(axis=-1))
    if (wide <= 0).all() and are_log_probabilities(totals, (~np.isneginf(wide)).sum(axis=-1), rows.shape[-1]):
        return "log-probabilities"
    return "probabilities" if (wide >= 0).all() and (np.abs(wide.sum(axis=-1) - 1) < 0.02).all() else ""


def are_log_probabilities(logsumexp: NDArray[np.float64], counts: NDArray[np.int64] | int, vocab: int) -> bool:
    """Return whether values at most 0 of these logsumexp [rows], `counts` tokens of each row, can be log-probabilities.

    All of them add up to 1. The largest k of V probabilities add up to k / V at least and 1 at most, so logits that
    happen to be negative are seldom mistaken: those of GPT-2, near -40, add up to 1e-16.
    """
    least = np.where(np.asarray(counts) < vocab, np.log(np.maximum(counts, 1) / vocab), 0.0)
    return bool(((logsumexp > least - NORMALISED) & (logsumexp < NORMALISED)).all())


def looks_chosen(rows: NDArray[np.float32]) -> bool:
    """Return whether [sequences, tokens] are log-probabilities of chosen tokens, not [positions, vocab] logits.

    None is above 0, and those of most rows add up to more than 1 as probabilities, which the log-probabilities of a
    vocabulary, cut or whole, never do. Logits less their row's largest have an exact 0 in every row.
    """
    wide = rows.astype(np.float64)
    if (wide > 0).any() or not np.isfinite(wide).any():
        return False
    with np.errstate(under="ignore"):
        totals = np.nansum(np.exp(wide), axis=-1)
    is_shifted = (wide == 0).any(axis=-1).all()
    return bool(np.median(totals) > 1 + NORMALISED and not is_shifted)


def narrowest(rows: NDArray[np.unsignedinteger], fmt: FloatFormat) -> FloatFormat:
    """Return the narrowest dtype that holds all these values exactly: bfloat16, else float16, else `fmt`."""
    return next((target for target in (BFLOAT16, FLOAT16) if convert(rows, fmt, target) is not None), fmt)
