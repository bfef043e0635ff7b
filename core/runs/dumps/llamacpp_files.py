"""Files of llama.cpp: GGUF of `llama-results` (tools/results/results.cpp), and
`--kl-divergence-base` of perplexity (tools/perplexity/perplexity.cpp).

Every count is checked against the file's size before anything of that size is allocated.
"""

import io
import math
import mmap
import os
import struct

import numpy as np
from numpy.typing import NDArray

from ...errors import DumpError
from ...numerics.arrays import Array
from ..file.records import MAX_SIDES, MAX_VOCAB
from .arrays import Contents, Rows, Shape, StoredArray, foreign_errors, rows_of

MAGIC, KLD_MAGIC = b"GGUF", b"_logits_"
_HEADER_BYTES = 64 << 20  # keys and tensors
_F32, _I32 = 0, 26  # types of tensors
_NUMBERS = "BbHhIif?--Qqd"  # types of values, as struct has them; others are none
_UINT32, _STRING, _LIST = 4, 8, 9


def read(name: str, key: str, data: mmap.mmap) -> Contents:
    """Read the tensors `tokens` (int32) and `logits` (float32, one row per token); return arrays
    and texts of a dump.

    The tensor declares its dimensions as (tokens, vocabulary), which in a GGUF means that tokens
    lie next to each other; they do not: the rows are whole.
    """
    with foreign_errors(name, "a GGUF of llama-results"):
        _, tensors = gguf_header(io.BytesIO(data[:_HEADER_BYTES]), MAX_SIDES)
    if not tensors.keys() >= {"tokens", "logits"}:
        raise DumpError(
            f"{name}: a GGUF without the tensors 'tokens' and 'logits'; expected one of"
            " llama-results.",
        )
    length, id_kind, id_place = tensors["tokens"]
    dimensions, kind, place = tensors["logits"]
    count, elements = math.prod(length), math.prod(dimensions)
    if (id_kind, kind) != (_I32, _F32):
        raise DumpError(
            f"{name}: has tensors of types {id_kind} and {kind}; expected int32 tokens, float32"
            " logits.",
        )
    if count < 1 or elements % count or not 1 < elements // count <= MAX_VOCAB:
        raise DumpError(
            f"{name}: has {elements:,} logits for {count:,} tokens; expected a row of the"
            " vocabulary each.",
        )
    if max(id_place + 4 * count, place + 4 * elements) > len(data):
        raise DumpError(f"{name}: ends before its tensors do; expected a complete file.")
    rows = np.ndarray((count, elements // count), "<f4", data, place)
    ids = np.ndarray(count, "<i4", data, id_place)
    logits = StoredArray.in_memory(name, key, rows)
    tokens = StoredArray.in_memory(name, "token_ids", ids)
    meta = '{"format": "llama.cpp llama-results"}'
    return {key: logits, "token_ids": tokens}, {"compute_dtype": "float32", "meta": meta}


def read_kld(name: str, key: str, data: mmap.mmap) -> Contents:
    """Read a file of --kl-divergence-base as a dump: ULPs mean nothing."""
    tokens, vocab, decode = kld_rows(name, data)
    read = tokens[:, tokens.shape[1] // 2 : -1]
    chunks, length = read.shape
    arrays = {
        key: StoredArray(name, key, np.dtype("<f4"), (chunks * length, vocab), decode),
        "token_ids": StoredArray.in_memory(name, "token_ids", read.reshape(-1)),
        "prompt_lengths": StoredArray.in_memory(name, "prompt_lengths", np.full(chunks, length)),
    }
    meta = "llama.cpp --kl-divergence-base, 16 bits per value: ULPs mean nothing"
    return arrays, {"compute_dtype": "float32", "meta": meta}


def kld_rows(name: str, data: mmap.mmap) -> tuple[NDArray[np.int32], int, Rows]:
    """Return what a file of --kl-divergence-base holds: tokens [chunks, context], size of the
    vocabulary, and a reader of log-probabilities, a row for each token of a chunk's second half but
    the last.

    A row is float32 scale, float32 lowest value and a uint16 per token: log-probability = lowest +
    scale x uint16. So differences below 2.4e-4 nats are the file's own, and what is more than 16
    below the largest is raised to that.
    """
    with foreign_errors(name, "a file of --kl-divergence-base"):
        context, vocab, chunks = struct.unpack("<3i", data[8:20])
    first, row_bytes, start = context // 2, 2 * ((vocab + 1) // 2) + 4, 20 + 4 * chunks * context
    rows = context - 1 - first
    is_whole = start + 2 * chunks * rows * row_bytes == len(data)
    if not is_whole or vocab > MAX_VOCAB or min(context - 2, vocab - 1, chunks) < 1:
        raise DumpError(
            f"{name}: declares {chunks} chunks of {context} tokens and a vocabulary of {vocab} in"
            f" {len(data):,} bytes; expected a complete file of --kl-divergence-base.",
        )
    tokens = np.frombuffer(data, "<i4", chunks * context, 20).reshape(chunks, context)
    packed = rows_of(lambda: np.ndarray((chunks * rows, row_bytes), "<u2", data, start))

    def decode(start: int, stop: int) -> Array:
        block = np.ascontiguousarray(packed(start, stop))
        scale, lowest = block[:, :4].copy().view("<f4").T
        return lowest[:, None] + scale[:, None] * block[:, 4 : 4 + vocab].astype(np.float32)

    return tokens, vocab, decode


def gguf_header(
    data: io.BytesIO | mmap.mmap,
    most_tensors: int,
) -> tuple[str, dict[str, tuple[Shape, int, int]]]:
    """Architecture of a GGUF of version 2 or 3, read from its beginning, and dimensions (the last
    axis first), type and place of every tensor (its specification in ggml).
    """
    data.seek(4)
    alignment, architecture = 32, ""

    def take(form: str) -> tuple[int, ...]:
        return struct.unpack(form, data.read(struct.calcsize(form)))

    def text() -> str:
        (length,) = take("<Q")
        read = data.read(length)
        if len(read) < length:
            raise ValueError("ends within its keys")
        return read.decode("utf-8", "replace")

    def skip(kind: int, count: int = 1) -> None:
        if kind == _STRING:
            for _ in range(count):
                text()
        elif kind == _LIST and count == 1:
            skip(*take("<IQ"))
        else:
            data.seek(struct.calcsize(f"<{_NUMBERS[kind]}") * count, os.SEEK_CUR)

    version, count, keys = take("<I2Q")
    if version not in (2, 3) or count > most_tensors:
        raise ValueError(f"version {version} with {count} tensors; a file of weights is not a dump")
    for _ in range(keys):
        key, (kind,) = text(), take("<I")
        if key == "general.architecture" and kind == _STRING:
            architecture = text()
        elif key == "general.alignment" and kind == _UINT32:
            (alignment,) = take("<I")
        else:
            skip(kind)
    tensors = {}
    for _ in range(count):
        key, (dimensions,) = text(), take("<I")
        shape = take(f"<{min(dimensions, 4)}Q")
        kind, place = take("<IQ")
        tensors[key] = shape, kind, place
    begin = -(-data.tell() // alignment) * alignment
    return architecture, {
        key: (shape, kind, begin + place) for key, (shape, kind, place) in tensors.items()
    }
