"""Files of rows that llama.cpp writes: `--kl-divergence-base` files of perplexity and GGUF files of `llama-results`.

Formats as in tools/perplexity/perplexity.cpp (`log_softmax` with 16 bits a value) and tools/results/results.cpp. Every
count is checked against the file's size before anything of that size is allocated.
"""

from __future__ import annotations

import json
import math
import mmap
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DumpError
from ..file.bounds import MAX_SIDES, MAX_VOCAB
from .arrays import StoredArray, foreign_errors, rows_of

KLD_WARNING = (
    "its log-probabilities were stored in 16 bits a value, so ULPs of them mean nothing, and differences below 2.4e-4"
    " nats and a KL below 5e-4 are its own noise."
)
_HEADER_BYTES = 64 << 20  # of a GGUF, keys and tensors
_F32, _I32 = 0, 26  # types of tensors
_NUMBERS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes of a value, by its type
_UINT32, _STRING, _LIST = 4, 8, 9
Read = tuple[dict[str, StoredArray], str, str]  # arrays of a dump by key, its meta, a warning


def _arrays(logits: StoredArray, ids: NDArray[Any], lengths: Sequence[int]) -> dict[str, StoredArray]:
    numbers = {"token_ids": ids, "prompt_lengths": np.array(lengths)}
    reserved = {key: StoredArray.of_numbers(logits.file, key, each) for key, each in numbers.items()}
    return {logits.key: logits, **reserved}


def kld_rows(name: str, key: str, data: mmap.mmap) -> Read:
    """Read a `--kl-divergence-base` file: of every chunk of the context, the rows of its second half but the last.

    A row is float32 scale, float32 lowest value and a uint16 a token: log-probability = lowest + scale x uint16.
    """
    with foreign_errors(name, "a file of --kl-divergence-base"):
        context, vocab, chunks = struct.unpack("<3i", data[8:20])
    first, row_bytes = context // 2, 2 * (2 * ((vocab + 1) // 2) + 4)
    rows = context - 1 - first
    start = 20 + 4 * chunks * context
    if min(context - 2, vocab - 1, chunks) < 1 or start + chunks * rows * row_bytes != len(data):
        problem = f"{chunks} chunks of {context} tokens and a vocabulary of {vocab} in {len(data):,} bytes"
        raise DumpError(f"{name}: declares {problem}; expected a complete file of --kl-divergence-base.")
    tokens = np.frombuffer(data, "<i4", chunks * context, 20).reshape(chunks, context)
    packed = rows_of(lambda: np.ndarray((chunks * rows, row_bytes // 2), "<u2", data, start))

    def decode(start: int, stop: int) -> NDArray[Any]:
        block = np.ascontiguousarray(packed(start, stop))
        scale, lowest = block[:, :4].copy().view("<f4").T
        return lowest[:, None] + scale[:, None] * block[:, 4 : 4 + vocab].astype(np.float32)

    logits = StoredArray(name, key, np.dtype("<f4"), (chunks * rows, vocab), decode)
    meta = {"format": "llama.cpp --kl-divergence-base", "first position of a chunk": first, "context": context}
    arrays = _arrays(logits, tokens[:, first : first + rows].reshape(-1), [rows] * chunks)
    return arrays, json.dumps(meta), KLD_WARNING


def results_rows(name: str, key: str, data: mmap.mmap) -> Read:
    """Read a GGUF of `llama-results`: tensors `tokens` (int32) and `logits` (float32, one row per token).

    The tensor declares its dimensions as (tokens, vocabulary), which in a GGUF means that tokens lie next to each
    other; they do not: the rows are whole.
    """
    with foreign_errors(name, "a GGUF of llama-results"):
        tensors = _gguf_tensors(data[:_HEADER_BYTES])
    if {"tokens", "logits"} - tensors.keys():
        raise DumpError(f"{name}: a GGUF without the tensors 'tokens' and 'logits'; expected one of llama-results.")
    (count, id_kind, id_place), (elements, kind, place) = tensors["tokens"], tensors["logits"]
    if (id_kind, kind) != (_I32, _F32):
        raise DumpError(f"{name}: has tensors of types {id_kind} and {kind}; expected int32 tokens, float32 logits.")
    if count < 1 or elements % count or not 1 < elements // count <= MAX_VOCAB:
        raise DumpError(f"{name}: has {elements:,} logits for {count:,} tokens; expected a row of the vocabulary each.")
    if max(id_place + 4 * count, place + 4 * elements) > len(data):
        raise DumpError(f"{name}: ends before its tensors do; expected a complete file.")
    shape = (count, elements // count)
    logits = StoredArray(name, key, np.dtype("<f4"), shape, rows_of(lambda: np.ndarray(shape, "<f4", data, place)))
    tokens = np.frombuffer(data, "<i4", count, id_place)
    return _arrays(logits, tokens, [count]), json.dumps({"format": "llama.cpp llama-results"}), ""


def _gguf_tensors(data: bytes) -> dict[str, tuple[int, int, int]]:
    """Elements, type and place of every tensor of a GGUF of version 2 or 3 (its specification in ggml)."""
    at, alignment = 4, 32

    def take(form: str) -> tuple[int, ...]:
        nonlocal at
        at += struct.calcsize(form)
        return struct.unpack_from(form, data, at - struct.calcsize(form))

    def text() -> str:
        nonlocal at
        (length,) = take("<Q")
        at += length
        if at > len(data):
            raise ValueError("ends within its keys")
        return data[at - length : at].decode("utf-8", "replace")

    def skip(kind: int, count: int = 1) -> None:
        nonlocal at
        if kind == _STRING:
            for _ in range(count):
                text()
        elif kind == _LIST and count == 1:
            skip(*take("<IQ"))
        else:
            at += _NUMBERS[kind] * count

    version, count, keys = take("<I2Q")
    if version not in (2, 3) or count > MAX_SIDES:
        raise ValueError(f"version {version} with {count} tensors; a file of weights is not a dump")
    for _ in range(keys):
        key, (kind,) = text(), take("<I")
        if key == "general.alignment" and kind == _UINT32:
            (alignment,) = struct.unpack_from("<I", data, at)
        skip(kind)
    tensors = {}
    for _ in range(count):
        key, (dimensions,) = text(), take("<I")
        shape = take(f"<{min(dimensions, 4)}Q")
        tensors[key] = (math.prod(shape), *take("<IQ"))
    begin = -(-at // alignment) * alignment
    return {key: (elements, kind, begin + place) for key, (elements, kind, place) in tensors.items()}


READERS: dict[bytes, tuple[str, Callable[[str, str, mmap.mmap], Read]]] = {
    b"_logits_": ("kld", kld_rows),
    b"GGUF": ("results", results_rows),
}
