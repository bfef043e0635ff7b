"""Damage to files: to any bytes, or behind the checksums that would give it away, as somebody who means it would do it.

A run file's blocks carry DuckDB's checksum, an archive's members a CRC-32. `resealed` makes them right again, so that
what is damaged reaches the code behind them.
"""

from __future__ import annotations

import gzip
import io
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

CORPUS = Path(__file__).parent / "corpus"
HEADERS, HEADER, BLOCK = (
    3,
    4096,
    16384,
)  # a small run file: the file's header, two of the database, then blocks of 16 KiB
KINDS = ("flip", "byte", "number", "digits", "cut out", "insert", "repeat", "copy", "truncate")
PLACES = ("anywhere", "start", "end", "filled")
NUMBERS = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**63 - 1, 2**63, 2**64 - 1)


@dataclass(frozen=True)
class Damage:
    """One change: `kind` at a `share` of the way through what `place` names; value and length are what the kind makes
    of them.
    """

    kind: str
    place: str
    share: float
    value: int
    length: int


DAMAGES = st.builds(
    Damage,
    st.sampled_from(KINDS),
    st.sampled_from(PLACES),
    st.floats(0, 1, exclude_max=True),
    st.one_of(st.sampled_from(NUMBERS), st.integers(0, 2**64 - 1)),
    st.integers(1, 64),
)


def corpus(*endings: str) -> dict[str, bytes]:
    """The files with one of these endings, unpacked, by name without `.gz`."""
    found = {}
    for path in sorted(CORPUS.iterdir()):
        name = path.name.removesuffix(".gz")
        if name.endswith(endings):
            raw = path.read_bytes()
            found[name] = gzip.decompress(raw) if path.suffix == ".gz" else raw
    return found


def damaged(raw: bytes, damages: list[Damage]) -> bytes:
    """The bytes with every change made, one after another."""
    out = bytearray(raw)
    for damage in damages:
        if out:
            _CHANGES[damage.kind](out, _place(out, damage), damage)
    return bytes(out)


def _place(out: bytearray, damage: Damage) -> int:
    size = len(out)
    if damage.place == "start":
        return int(damage.share * min(size, 160))
    if damage.place == "end":
        return size - 1 - int(damage.share * min(size, 320))
    if damage.place == "filled":  # most of a small database file is zeros, which nothing reads
        there = np.flatnonzero(np.frombuffer(bytes(out), np.uint8))
        return int(there[int(damage.share * len(there))]) if len(there) else 0
    return int(damage.share * size)


def _flip(out: bytearray, at: int, damage: Damage) -> None:
    out[at] ^= 1 << damage.value % 8


def _byte(out: bytearray, at: int, damage: Damage) -> None:
    out[at] = damage.value % 256


def _number(out: bytearray, at: int, damage: Damage) -> None:
    width = (2, 4, 8)[damage.length % 3]
    written = (damage.value % (1 << 8 * width)).to_bytes(width, "little")[: len(out) - at]
    out[at : at + len(written)] = written


def _digits(out: bytearray, at: int, damage: Damage) -> None:
    """The next number in a text header becomes another, or the next letter where there is none."""
    for place in range(at, min(at + 200, len(out))):
        if chr(out[place]).isdigit():
            out[place : place + 1] = str(damage.value).encode()[: damage.length]
            return
    _byte(out, at, damage)


def _cut(out: bytearray, at: int, damage: Damage) -> None:
    del out[at : at + damage.length]


def _insert(out: bytearray, at: int, damage: Damage) -> None:
    out[at:at] = (damage.value.to_bytes(8, "little") * 8)[: damage.length]


def _repeat(out: bytearray, at: int, damage: Damage) -> None:
    out[at:at] = out[at : at + damage.length] * (damage.value % 4 + 1)


def _copy(out: bytearray, at: int, damage: Damage) -> None:
    source = damage.value % len(out)
    piece = out[source : source + damage.length][: len(out) - at]
    out[at : at + len(piece)] = piece


def _truncate(out: bytearray, at: int, damage: Damage) -> None:
    del out[at:]


_CHANGES: dict[str, Callable[[bytearray, int, Damage], None]] = {
    "flip": _flip,
    "byte": _byte,
    "number": _number,
    "digits": _digits,
    "cut out": _cut,
    "insert": _insert,
    "repeat": _repeat,
    "copy": _copy,
    "truncate": _truncate,
}


def damaged_inside(raw: bytes, member: int, damages: list[Damage]) -> bytes:
    """An archive whose members agree with their checksums, one of them damaged before it was packed."""
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        members = [(info, archive.read(info)) for info in archive.infolist()]
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for number, (info, body) in enumerate(members):
            archive.writestr(
                info, damaged(body, damages) if number == member % len(members) else body, info.compress_type
            )
    return out.getvalue()


def resealed(raw: bytes) -> bytes:
    """A run file of small blocks with the checksum of every header and block made right."""
    out = bytearray(raw)
    ends = [HEADER * (number + 1) for number in range(HEADERS)]
    ends += range(HEADERS * HEADER + BLOCK, len(out) + 1, BLOCK)
    start = 0
    for end in ends:
        if end <= len(out):
            out[start : start + 8] = struct.pack("<Q", checksum(bytes(out[start + 8 : end])))
        start = end
    return bytes(out)


def checksum(block: bytes) -> int:
    """DuckDB's: every 8 bytes as an unsigned number times 0xbf58476d1ce4e5b9, all of them and 5381 exclusive-ored."""
    words = np.frombuffer(block, np.uint64)
    with np.errstate(over="ignore"):
        return int(np.bitwise_xor.reduce(words * np.uint64(0xBF58476D1CE4E5B9)) ^ np.uint64(5381))
