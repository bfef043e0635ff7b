"""Source dtypes of a dump's arrays: what their elements mean, lossless moves into the compute
dtype, and which that is: what was declared is checked, else the narrowest that holds every value is
found. Digests of logits are of their values, independent of the stored dtype.

Bits are only moved as integers or by conversions that are checked to survive the way back; a value
that would be rounded is refused.
"""

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DumpError
from ...numerics.arrays import Array, Bits
from ...numerics.formats import BFLOAT16, FLOAT16, FLOAT32, FloatFormat, narrow, values_of, widen
from ...progress import Progress
from ...text import clean
from .arrays import StoredArray

# in nats: rounding of bfloat16 at a log-probability near -10 is 0.02
NORMALISED = 0.05
PROBABILITIES = "probabilities"
# elements that are checked first: logits that do not fit a narrower dtype rarely fit here
_FIRST = 4096


@dataclass(frozen=True)
class DumpSide:
    """A side, and how the elements of its array are read: as `fmt`; is_double: they are float64
    that must fit it, or are rounded to it.
    """

    name: str
    array: StoredArray
    fmt: FloatFormat
    is_double: bool = False
    rounds_double: bool = False

    def bits(self, raw: Array) -> Bits:
        """Copy elements as saved to bits of `fmt`. Same shape."""
        size = raw.dtype.itemsize
        # as saved, byte order included
        integers = raw.view(f"{raw.dtype.str[0]}u{size}")
        plain = np.array(integers, f"<u{size}", order="C")
        if not self.is_double:
            return plain
        wide = plain.view(np.float64)
        with np.errstate(all="ignore"):
            single = wide.astype(np.float32)
            is_lost = single.astype(np.float64).view(np.uint64) != plain
        if is_lost.any() and not self.rounds_double:
            raise self.array.refusal(
                f"is float64 and holds {float(wide[is_lost][0])!r}, which float32 cannot hold"
                " exactly",
                "logits in the dtype they were computed in: save them as float32, float16 or"
                " bfloat16",
            )
        return single.view(np.uint32)

    def is_always_exact(self, target: FloatFormat) -> bool:
        """Return whether every value fits, so that none has to be checked."""
        return not self.is_double and (
            target is self.fmt or (self.fmt is BFLOAT16 and target is FLOAT32)
        )

    def lossy(self, bits: Bits, target: FloatFormat) -> DumpError:
        """Error about the first value that `target` cannot hold; there is one."""
        bits = bits.reshape(-1)
        while len(bits) > 1:
            # one of the halves has it
            half = len(bits) // 2
            bits = bits[:half] if convert(bits[:half], self.fmt, target) is None else bits[half:]
        return self.array.refusal(
            f"holds {float(values_of(bits, self.fmt)[0])!r}, which is no {target.name} value",
            f"logits that {target.name} holds exactly, or another compute_dtype",
        )


def convert(bits: Bits, fmt: FloatFormat, target: FloatFormat) -> Bits | None:
    """Convert bits of `fmt` to the same values in `target`, or return None if one would change.

    Same shape.
    """
    if target is fmt:
        return bits
    wide = widen(bits, fmt)
    # Hardware quiets a signalling float16 NaN on the way up, so that way is checked too; bfloat16
    # goes up by a shift.
    if fmt is FLOAT16:
        back = narrow(wide, FLOAT16)
        if back is None or not np.array_equal(back, bits):
            return None
    return narrow(wide, target)


def side_of(
    name: str,
    array: StoredArray,
    bits_format: FloatFormat | None,
    rounds_double: bool = False,
) -> DumpSide:
    """Return how to read `array`, by its dtype; bare 16-bit integers mean `bits_format`, the
    declared compute dtype.
    """
    kind, size = array.dtype.kind, array.dtype.itemsize
    if kind == "f" and size in (2, 4, 8):
        fmt = FLOAT16 if size == 2 else FLOAT32
        return DumpSide(name, array, fmt, size == 8, rounds_double)
    if kind == "V" and size == 2:
        return DumpSide(name, array, BFLOAT16)
    # int16 too: it is what older torch offers as a view of bfloat16
    if kind in "ui" and size == 2:
        if bits_format in (BFLOAT16, FLOAT16):
            return DumpSide(name, array, bits_format)
        raise DumpError(
            f"{array.label} holds 16-bit patterns: choose bfloat16 or float16 as compute dtype.",
        )
    need = "float32, float16, bfloat16, or uint16 bits with a 'compute_dtype' key; upcast float8"
    raise array.refusal(f"has the dtype {clean(array.dtype)}", need)


def settle(
    sides: list[DumpSide],
    target: FloatFormat | None,
    tell: Progress,
) -> tuple[FloatFormat, str]:
    """Return the compute dtype and why: `target`, else the narrowest dtype that holds every value
    of every side bit for bit. Refuse sides of nothing but NaN, float64 beyond float32, and values
    beyond `target`.
    """
    formats = sorted({side.fmt.name for side in sides}, reverse=True)
    arrays = f"{' and '.join(formats)} arrays"
    candidates = [BFLOAT16, FLOAT16, FLOAT32]
    if target:
        candidates = [target]
    elif len(formats) == 1 and sides[0].fmt is not FLOAT32:
        candidates = [sides[0].fmt]
    is_chosen = len(candidates) == 1
    done, total = 0, sum(side.array.nbytes for side in sides)
    for side in sides:
        is_number_seen = False
        for raw in side.array.blocks():
            done += raw.nbytes
            tell("reading", done, total, "bytes")
            bits = side.bits(raw)
            magnitude = bits & side.fmt.carrier.type((1 << (side.fmt.bits - 1)) - 1)
            is_number_seen |= bool((magnitude <= side.fmt.first_nonfinite).any())
            exact = [fmt for fmt in candidates if convert(bits, side.fmt, fmt) is not None]
            if target and not exact:
                raise side.lossy(bits, target)
            candidates = exact
            if is_number_seen and all(map(side.is_always_exact, candidates)):
                break
        if not is_number_seen:
            raise side.array.refusal("holds nothing but NaN", "logits")
    if not candidates:
        raise DumpError(
            f"{sides[0].array.file}: holds NaNs that change between {arrays}; expected all sides in"
            " one dtype.",
        )
    fmt = candidates[0]
    reason = f"detected: {arrays} whose every value is exactly a {fmt.name}"
    if is_chosen:
        reason = f"array dtype: {arrays}"
    elif fmt is FLOAT32:
        reason = f"array dtype: {arrays} with values that no narrower dtype holds"
    return fmt, reason


class SideDigest:
    """SHA-256 of a side's bits, rows in order, little-endian: as stored (`stored_digest`), and in
    the narrowest dtype that holds them (`values`): bfloat16, else float16, else float32.

    So a side has the same digest in a run of another dtype, upcast, or in a run of its own.
    """

    def __init__(self, fmt: FloatFormat) -> None:
        self._fmt = fmt
        self._stored = hashlib.sha256()
        self._narrower: dict[FloatFormat, Any] = {
            target: hashlib.sha256()
            for target in (BFLOAT16, FLOAT16)
            if target is not fmt and fmt is not BFLOAT16
        }

    def update(self, bits: Bits) -> None:
        """Return the next rows. [rows, vocab], contiguous"""
        self._stored.update(bits.data)
        for target, digest in list(self._narrower.items()):
            is_first = convert(bits.reshape(-1)[:_FIRST], self._fmt, target) is not None
            converted = convert(bits, self._fmt, target) if is_first else None
            if converted is None:
                del self._narrower[target]
            else:
                digest.update(np.ascontiguousarray(converted).data)

    def stored_digest(self) -> str:
        """Digest of the stored bits, hexadecimal."""
        return self._stored.hexdigest()

    def values(self) -> tuple[str, str]:
        """(digest, name of the dtype whose bits it is of)."""
        for target, digest in self._narrower.items():
            return digest.hexdigest(), target.name
        return self.stored_digest(), self._fmt.name


def looks_normalised(rows: NDArray[np.floating]) -> str:
    """'log-probabilities', 'probabilities' or '': what [rows, vocab] values that should be logits
    add up to.

    All log-probabilities of a row add up to 1; the largest k of V, -inf elsewhere, to k / V at
    least and 1 at most. So logits that happen to be negative are seldom mistaken: those of GPT-2,
    near -40, add up to 1e-16.
    """
    wide = rows.astype(np.float64)
    if np.isnan(wide).any() or np.isposinf(wide).any():
        return ""
    with np.errstate(over="ignore", divide="ignore"):
        totals = np.log(np.exp(wide).sum(axis=-1))
    counts, vocab = (~np.isneginf(wide)).sum(axis=-1), rows.shape[-1]
    least = np.log(np.maximum(counts, 1) / vocab)
    if (wide <= 0).all() and ((totals > least - NORMALISED) & (totals < NORMALISED)).all():
        return "log-probabilities"
    is_share = (wide >= 0).all() and (np.abs(wide.sum(axis=-1) - 1) < 0.02).all()
    return PROBABILITIES if is_share else ""


def looks_chosen(rows: NDArray[np.float32]) -> bool:
    """Return whether [sequences, tokens] are log-probabilities of chosen tokens, not [positions,
    vocab] logits.

    None is above 0, and those of most rows add up to more than 1 as probabilities, which the
    log-probabilities of a vocabulary, cut or whole, never do. Logits less their row's largest have
    an exact 0 in every row.
    """
    wide = rows.astype(np.float64)
    if (wide > 0).any() or not np.isfinite(wide).any():
        return False
    with np.errstate(under="ignore"):
        totals = np.nansum(np.exp(wide), axis=-1)
    is_shifted = (wide == 0).any(axis=-1).all()
    return bool(np.median(totals) > 1 + NORMALISED and not is_shifted)
