"""Damage to files: to any bytes, or to a member of an archive before it is packed, behind its
CRC-32.
"""

import gzip
import io
import re
import zipfile
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

CORPUS = Path(__file__).parent / "corpus"
NUMBERS = (
    0,
    1,
    2,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    2**63 - 1,
    2**63,
    2**64 - 1,
)
KINDS = ("flip", "number", "digits", "cut", "insert", "truncate")
# kind, start, end or any byte that is not zero, share of the way through it, number, length
DAMAGES = st.tuples(
    st.sampled_from(KINDS),
    st.sampled_from(("start", "end", "filled")),
    st.floats(0, 1, exclude_max=True),
    st.one_of(st.sampled_from(NUMBERS), st.integers(0, 2**64 - 1)),
    st.integers(1, 64),
)


def corpus(*endings):
    """The files with one of these endings, unpacked, by name without `.gz`."""
    files = {path.name.removesuffix(".gz"): path for path in sorted(CORPUS.iterdir())}
    return {
        name: gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        for name, path in files.items()
        if name.endswith(endings)
    }


def damaged(raw, damages):
    """The bytes with every change made, one after another."""
    out = bytearray(raw)
    for kind, place, share, value, length in damages:
        filled = np.flatnonzero(np.frombuffer(bytes(out), np.uint8))
        if not len(filled):
            break
        # headers of arrays and archives are in the first 160 bytes, a directory in the last 320;
        # most of a run file is zeros, which nothing reads
        at = {
            "start": int(share * min(len(out), 160)),
            "end": len(out) - 1 - int(share * min(len(out), 320)),
            "filled": int(filled[int(share * len(filled))]),
        }[place]
        if kind == "flip":
            out[at] ^= 1 << value % 8
        elif kind == "number":
            width = (1, 2, 4, 8)[length % 4]
            raw_number = (value % (1 << 8 * width)).to_bytes(width, "little")
            out[at : at + width] = raw_number[: len(out) - at]
        elif kind == "digits":  # the next number of a text header
            digit = re.search(rb"\d", out[at : at + 200])
            at += digit.start() if digit else 0
            out[at : at + 1] = str(value).encode()[:length]
        elif kind == "cut":
            del out[at : at + length]
        elif kind == "insert":
            out[at:at] = out[at : at + length]
        else:
            del out[at:]
    return bytes(out)


def damaged_inside(
    raw,
    member,
    damages,
):
    """An archive whose members agree with their checksums, one of them damaged before it was
    packed.
    """
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        members = [(info, archive.read(info)) for info in archive.infolist()]
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for number, (info, body) in enumerate(members):
            is_damaged = number == member % len(members)
            archive.writestr(
                info,
                damaged(body, damages) if is_damaged else body,
                info.compress_type,
            )
    return out.getvalue()
