"""The reader opens any input correctly or refuses it in one sentence, within bounded time and
memory.
"""

import copy
import gzip
import io
import json
import lzma
import os
import re
import struct
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save

from core.errors import DumpError
from core.runs.dumps.containers import open_container
from core.runs.dumps.dump import open_dump
from core.text import clean
from tests.core.runs.dumps.made_dumps import logits
from tests.places import ROOT

ROWS, VOCAB = 4, 8
GOOD = logits(0, (ROWS, VOCAB))
GOOD_BYTES = GOOD.tobytes()
BITS = GOOD.astype(ml_dtypes.bfloat16).view(np.uint16)


def npz(**arrays):
    file = io.BytesIO()
    np.savez(file, **arrays, allow_pickle=True)
    return file.getvalue()


def npy(array=GOOD):
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def npy_header(text, body=b"", version=(1, 0)):
    raw = text.encode()
    size = struct.pack("<H" if version == (1, 0) else "<I", len(raw))
    return b"\x93NUMPY" + bytes(version) + size + raw + body


def npy_of(shape, descr="<f4", body=GOOD_BYTES):
    return npy_header(f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape!r}}}\n", body)


def archive(*members, method=zipfile.ZIP_STORED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as made:
        for name, body in members:
            made.writestr(zipfile.ZipInfo(name), body, method)
    return file.getvalue()


def npz_with(body, name="b.npy", method=zipfile.ZIP_STORED):
    """A good side and a bad one."""
    return archive(("a.npy", npy()), (name, body), method=method)


def tensors(header, body=b"", length=None):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + body


def tensor(begin, end, dtype="F32"):
    return {"dtype": dtype, "shape": (2, 2), "data_offsets": [begin, end]}


def patched(raw, old, new):
    assert old in raw
    return raw.replace(old, new)


def encrypted():
    raw = bytearray(npz(a=GOOD, b=GOOD))
    # bit 0 of the flags, in a member's own header and in the directory
    for signature, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        raw[raw.index(signature) + flags] |= 1
    return bytes(raw)


def overlapping():
    """Two directory entries for one member's bytes: how small files unpack to petabytes (Fifield,
    "A better zip bomb", 2019).
    """
    raw = bytearray(archive(("a.npy", npy()), ("b.npy", npy())))
    second = raw.rindex(b"PK\x01\x02")
    # the offset of the member's header becomes that of the first member
    raw[second + 42 : second + 46] = bytes(4)
    return bytes(raw)


def lying_about_size():
    raw = bytearray(npz_with(npy(), method=zipfile.ZIP_DEFLATED))
    second = raw.rindex(b"PK\x01\x02")
    # the unpacked size: 4.3 GB
    raw[second + 24 : second + 28] = bytes([0, 255, 255, 255])
    return bytes(raw)


def corrupt_data():
    raw = bytearray(npz(a=GOOD, b=GOOD))
    raw[raw.index(GOOD.tobytes()) + 5] ^= 1
    return bytes(raw)


PAIR = {"a": GOOD, "b": GOOD}

# what it is -> (the bytes, words its refusal must hold)
HOSTILE = {
    "empty file": (b"", "has 0 bytes"),
    "pickle": (
        b"\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00\x00.",
        "no code in a file is run",
    ),
    "CSV": (b"1.5,2.5\n3.5,4.5\n", "np.loadtxt"),
    "CSV of Excel": (b"\xef\xbb\xbfa;b\r\n1,5;2,5\r\n", "np.loadtxt"),
    "Feather": (b"ARROW1\0\0" + bytes(64), "pd.read_feather"),
    "Parquet": (b"PAR1\x15\x04" + bytes(64), "pd.read_parquet"),
    "gzip": (gzip.compress(npy()), "unpack it"),
    "xz": (lzma.compress(npy()), "unpack it"),
    "zip of text": (archive(("a.txt", b"x"), ("b.npy", npy())), "'a.txt' is no npy array"),
    "torch checkpoint": (archive(("archive/data.pkl", b"\x80\x02.")), "file of torch.save"),
    "single npy": (npy(), "holds 1 side ('upload'); expected 2 to 512"),
    "one side": (npz(a=GOOD, token_ids=np.arange(ROWS)), "holds 1 side ('a')"),
    "objects": (
        npz(a=GOOD, b=np.array([{}, []], dtype=object)),
        "'b' has the dtype object",
    ),
    "structured": (npz(a=GOOD, b=np.zeros((4, 8), "u1,u1")), "'b' has the dtype [("),
    "integers": (npz(a=GOOD, b=GOOD.astype(np.int32)), "dtype int32"),
    "float8": (npz(a=GOOD, b=GOOD.astype(ml_dtypes.float8_e4m3fn)), "upcast float8"),
    "bits without compute_dtype": (
        npz(a=BITS, b=BITS),
        "'a' holds 16-bit patterns: choose bfloat16 or float16",
    ),
    "other rows": (npz(a=GOOD, b=GOOD[:2]), "'b' has 2 positions, 'a' 4"),
    "a single row": (npz(a=GOOD, b=GOOD[:1]), "save the same positions of both"),
    "a single row of each prompt": (
        npz(a=GOOD.reshape(2, 2, -1), b=GOOD.reshape(2, 2, -1)[:, -1:]),
        "save the same positions of both",
    ),
    "zero size": (
        npz(
            a=GOOD,
            b=np.zeros((0, 8), np.float32),
        ),
        "'b' is empty",
    ),
    "0-d": (npz(a=np.float32(1), b=np.float32(2)), "'a' is a single number"),
    "vocabulary of one": (npz(a=GOOD[:, :1], b=GOOD[:, :1]), "last axis of 2 to"),
    "all NaN": (npz(a=GOOD, b=np.full_like(GOOD, np.nan)), "'b' holds nothing but NaN"),
    "token_ids too short": (
        npz(**PAIR, token_ids=np.arange(3)),
        "'token_ids' has shape (3,); expected one for each position: 4",
    ),
    "token_ids floats": (
        npz(**PAIR, token_ids=np.arange(4.0)),
        "'token_ids' has the dtype float64",
    ),
    "token_ids negative": (
        npz(**PAIR, token_ids=np.array([0, 1, -5, 2])),
        "'token_ids' holds -5",
    ),
    "tokens beyond unicode": (
        archive(
            *[(k, npy()) for k in ("a.npy", "b.npy")],
            ("tokens.npy", npy_of((4,), "<U1", b"\xff" * 16)),
        ),
        "'tokens' cannot be read",
    ),
    "unknown compute_dtype": (
        npz(**PAIR, compute_dtype="int7"),
        "'compute_dtype' is 'int7'; expected one of float32",
    ),
    "numeric compute_dtype": (
        npz(**PAIR, compute_dtype=7),
        "bytes of the dtype int64; expected text",
    ),
    "another reference": (
        npz(**PAIR, reference_side="c"),
        "is 'c'; expected the name of a side",
    ),
    "prompt_lengths off": (
        npz(**PAIR, prompt_lengths=[2, 1]),
        "'prompt_lengths' adds up to 3",
    ),
    "prompt_lengths zero": (npz(**PAIR, prompt_lengths=[4, 0]), "'prompt_lengths' holds 0"),
    "parent path": (npz_with(npy(), "../b.npy"), "'../b' is an unsafe name"),
    "terminal escape in the name": (
        npz_with(npy(), "b\x1b[2J.npy"),
        "'b\\x1b[2J' is an unsafe name",
    ),
    "long name": (npz_with(npy(), "b" * 300 + ".npy"), "unsafe name; expected at most 200"),
    "duplicate members": (
        patched(npz_with(npy(), "c.npy"), b"c.npy", b"a.npy"),
        "'a' is no npy array",
    ),
    "encrypted": (encrypted(), "is encrypted"),
    "overlapping members": (overlapping(), "differ"),
    "size beyond deflate": (lying_about_size(), "more than 200 times as many"),
    "checksum": (corrupt_data(), "cannot be read (Bad CRC-32"),
    "10^30 elements": (npz_with(npy_of((10**30, 8))), "declares the shape"),
    "negative shape": (npz_with(npy_of((-4, -8))), "declares the shape (-4, -8)"),
    "trailing bytes": (npz_with(npy() + b"x"), "nothing after it"),
    "npy version 9": (npz_with(npy_header("{}", version=(9, 0))), "version (9, 0)"),
    "npy header of code": (
        npz_with(npy_header("__import__('os').abort()\n")),
        "'b' cannot be read",
    ),
    "npy header nested": (npz_with(npy_header("(" * 5000)), "'b' cannot be read"),
    "safetensors: header of 2^39": (
        tensors(b"{}", length=1 << 39),
        "header of 549755813888 bytes",
    ),
    "safetensors: bad entry": (
        tensors({"a": 7, "b": 8}),
        "the entry of 'a' cannot be read",
    ),
    "safetensors: overlap": (
        tensors({"a": tensor(0, 16), "b": tensor(8, 24)}, bytes(24)),
        "'b' lies at bytes 8 to 24; expected it to begin at 16",
    ),
    "safetensors: bytes left": (
        tensors({"a": tensor(0, 16), "b": tensor(16, 32)}, bytes(40)),
        "has 40 bytes of tensors; expected 32",
    ),
    "safetensors: offsets turned": (
        tensors({"a": tensor(16, 0)}, bytes(16)),
        "but -16 are there",
    ),
    "safetensors: dtype": (
        tensors({"a": tensor(0, 16, dtype="F8_E4M3")}, bytes(16)),
        "dtype F8_E4M3",
    ),
    "safetensors: metadata": (
        tensors({"__metadata__": {"meta": 3}}),
        "the header cannot be read",
    ),
    "safetensors: tokens": (
        save(PAIR, metadata={"tokens": '["x"]'}),
        "'tokens' lists 1 texts",
    ),
}


def read_whole(*paths, **options):
    """Every side's bits, streamed."""
    with open_dump(list(paths), **options) as dump:
        names = [side.name for side in dump.sides]
        held = dict.fromkeys(names, b"")
        for _, sides in dump.chunks(max_bytes=64):
            for name, bits in zip(names, sides, strict=True):
                held[name] += bits.tobytes()
    return held


def assert_one_sentence(message, file):
    assert message.startswith((f"{file}: ", f"{file} "))
    assert any(words in message for words in ("; expected ", ": choose ", ". Save "))
    assert message.endswith(".")
    assert message.isprintable()
    assert len(message) < 500


@pytest.mark.parametrize("fault", HOSTILE)
def test_each_hostile_dump_is_refused_in_one_sentence(tmp_path, fault):
    data, words = HOSTILE[fault]
    path = tmp_path / "upload.npz"
    path.write_bytes(data)
    with pytest.raises(DumpError) as refusal:
        read_whole(path)
    assert_one_sentence(str(refusal.value), "upload.npz")
    assert words in str(refusal.value)


GOOD_ONES = [
    npz(**PAIR, token_ids=np.arange(4), meta="{}"),
    npz_with(npy()),
    npz_with(npy_of((4, 8))),
    save(PAIR),
    archive(
        ("dump/", b""),
        ("dump/a.npy", npy()),
        ("__MACOSX/dump/._a.npy", b"\0\5\x16\7"),
        ("b.npy", npy()),
    ),
    npz_with(npy(), method=zipfile.ZIP_DEFLATED),
    npz_with(npy(), "deeper/b.npy"),
    npz_with(
        npy_header("{'descr':'<f4','fortran_order':False,'shape':(4,8)}\n", GOOD.tobytes(), (3, 0)),
    ),
]


@pytest.mark.parametrize("good", GOOD_ONES)
def test_the_same_dumps_without_their_fault_open(tmp_path, good):
    path = tmp_path / "upload"  # recognized by its bytes, not by its name
    path.write_bytes(good)
    assert list(read_whole(path).values()) == [GOOD.tobytes()] * 2


# ---- places


def test_directories_missing_files_and_pipes_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "folder").mkdir()
    for name in ("folder", "gone", "pipe", "loop", "a\x1b[2J\n.npz"):
        with pytest.raises(DumpError, match=r"no such file|not a regular file") as refusal:
            read_whole(tmp_path / name)
        assert_one_sentence(str(refusal.value), clean(name))


def test_the_size_limit_holds_for_the_file_and_for_what_it_unpacks_to(tmp_path):
    zeros = np.zeros((64, 64), np.float32)
    np.savez_compressed(tmp_path / "small.npz", a=zeros, b=zeros)
    size = (tmp_path / "small.npz").stat().st_size
    assert len(read_whole(tmp_path / "small.npz")) == 2
    for limit, words in ((size - 1, "has"), (zeros.nbytes * 2 - 1, "unpacks to")):
        with pytest.raises(DumpError, match=f"small.npz: {words} .* {limit}"):
            open_container(tmp_path / "small.npz", limit)


PAIR_FAULTS = {
    "shapes": ({"a": GOOD}, {"a": GOOD[:2]}, "two.npz: 'two' has 2 positions, 'one' 4"),
    "two sides in one of them": (
        PAIR,
        {"a": GOOD},
        "one.npz: holds 2 sides ('a', 'b'); expected 1 to 1",
    ),
    "compute dtypes": (
        {"a": BITS, "compute_dtype": "bfloat16"},
        {"a": BITS, "compute_dtype": "float16"},
        "different compute_dtypes",
    ),
    "token ids": (
        {"a": GOOD, "token_ids": np.arange(4)},
        {"a": GOOD, "token_ids": np.arange(1, 5)},
        "'token_ids' are others than in one.npz",
    ),
}


@pytest.mark.parametrize("fault", PAIR_FAULTS)
def test_two_files_that_make_no_pair_are_refused(tmp_path, fault):
    one, two, words = PAIR_FAULTS[fault]
    np.savez(tmp_path / "one.npz", **one)
    np.savez(tmp_path / "two.npz", **two)
    with pytest.raises(DumpError, match=re.escape(words)):
        read_whole(tmp_path / "one.npz", tmp_path / "two.npz")


# ---- damage anywhere

WHOLE = {
    "npz": npz(reference=GOOD, variant=GOOD + 1, token_ids=np.arange(ROWS)),
    "deflated": archive(
        ("reference.npy", npy()),
        ("variant.npy", npy(GOOD + 1)),
        method=zipfile.ZIP_DEFLATED,
    ),
    "safetensors": save({"reference": GOOD, "variant": GOOD + 1}),
}
SIDES = {"reference": GOOD.tobytes(), "variant": (GOOD + 1).tobytes()}


@pytest.mark.parametrize("form", WHOLE)
def test_a_dump_cut_off_anywhere_is_refused(tmp_path, form):
    path = tmp_path / "cut"
    whole = WHOLE[form]
    path.write_bytes(whole)
    assert read_whole(path) == SIDES
    for end in range(0, len(whole), 7):
        path.write_bytes(whole[:end])
        with pytest.raises(DumpError) as refusal:
            read_whole(path)
        assert_one_sentence(str(refusal.value), "cut")
        assert "a directory of more than" not in str(refusal.value)


# ---- bombs: bounded time and memory, in a process of its own

PROBE = textwrap.dedent("""
    import resource, sys, time
    from core.errors import DumpError
    from core.runs.dumps.dump import open_dump
    def peak():  # not ru_maxrss, which a child inherits from the process that started it
        lines = open("/proc/self/status")
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    base = peak()
    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
    began = time.perf_counter()
    said = "opened"
    try:
        with open_dump(sys.argv[1:]) as dump:
            for _ in dump.chunks():
                pass
    except DumpError as refusal:
        said = str(refusal)
    mib = (peak() - base) // 1024
    print(f"{mib}|{time.perf_counter() - began}|{said}")
    """)


def probe(path):
    """(MiB over idle at the peak, seconds, what was said) of reading `path` in a process limited to
    2 GiB.
    """
    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": ".", "OPENBLAS_NUM_THREADS": "1"},
        timeout=60,
        check=True,
    )
    mib, seconds, said = done.stdout.strip().split("|")
    return int(mib), float(seconds), said


def deflated_zeros(path, mib):
    """An honest archive of a side of `mib` MiB of zeros: about a thousandth of that on disk."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as made:
        made.writestr("a.npy", npy())
        with made.open("b.npy", "w", force_zip64=True) as member:
            member.write(npy_of((mib, 1 << 18), body=b""))
            for _ in range(mib):
                member.write(bytes(1 << 20))
    return path


def many_members(path, count):
    """A directory of `count` entries, all for the same few bytes."""
    with zipfile.ZipFile(path, "w") as made:
        made.writestr("a.npy", npy())
        for place in range(count):
            twin = copy.copy(made.filelist[0])
            twin.filename = f"s{place}.npy"
            made.filelist.append(twin)
        # or zipfile would leave the directory as it was before the entries were added
        made._didModify = True
    return path


def lists_in_json(path):
    path.write_bytes(tensors(b'{"a":[' + b"[]," * 1_300_000 + b"[]]}"))
    return path


needs_proc = pytest.mark.skipif(
    not Path("/proc/self/status").exists(),
    reason="peak memory is read from Linux's /proc",
)

BOMBS = {
    # beyond the 256 MiB up to which no archive is suspected
    "deflate bomb": (lambda path: deflated_zeros(path, 300), "more than 200 times as many"),
    # their entries fit into the 4 MiB that a directory may have, those of 300,000 do not
    "60000 members": (lambda path: many_members(path, 60_000), "holds 60001 members"),
    "300000 members": (lambda path: many_members(path, 300_000), "a directory of more than"),
    "json of lists": (lists_in_json, "the entry of 'a'"),
}


@pytest.mark.spread(3)
@needs_proc
@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_refused_in_bounded_time_and_memory(tmp_path, bomb):
    make, words = BOMBS[bomb]
    mib, seconds, said = probe(make(tmp_path / "bomb"))
    assert words in said
    assert_one_sentence(said, "bomb")
    assert mib < 300
    assert seconds < 20
