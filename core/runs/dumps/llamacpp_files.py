"""Files of rows that llama.cpp writes: `--kl-divergence-base` files of perplexity and GGUF files of `llama-results`.

Formats as in tools/perplexity/perplexity.cpp (`log_softmax` with 16 bits a value) and tools/results/results.cpp. Every
count is checked against the file's size before anything of that size is allocated.
"""

from __future__ import annotations

import io
import json
import math
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...errors import DumpError
from ..file.bounds import MAX_SIDES
from .arrays import ByteStream, StoredArray, Window, foreign_errors

KLD_MAGIC, GGUF_MAGIC = b"_logits_", b"GGUF"
KLD_WARNING = (
    "its log-probabilities were stored in 16 bits a value, so ULPs of them mean nothing, and differences below 2.4e-4"
    " nats and a KL below 5e-4 are its own noise."
)
_MOST_CONTEXT, _MOST_VOCAB, _MOST_CHUNKS = 1 << 22, 1 << 22, 1 << 24
_HEADER_BYTES = 64 << 20  # of a GGUF, keys and tensors
_F32, _I32 = 0, 26  # types of tensors
_NUMBERS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes of a value, by its type
_STRING, _LIST = 8, 9
_ALIGNMENT = 32


@dataclass(frozen=True)
class LlamaCppRows:
    """The logits of such a file, the token of each row, and how its rows fall into prompts."""

    logits: StoredArray
    token_ids: NDArray[np.int64]
    prompt_lengths: tuple[int, ...]
    meta: str
    warning: str = ""

    def arrays(self, key: str) -> dict[str, StoredArray]:
        """The arrays of a dump: the logits under `key`, and the reserved keys."""
        lengths = np.array(self.prompt_lengths, np.int64)
        return {
            key: self.logits,
            "token_ids": _held(self.logits.file, "token_ids", self.token_ids),
            "prompt_lengths": _held(self.logits.file, "prompt_lengths", lengths),
        }


def _held(name: str, key: str, values: NDArray[np.int64]) -> StoredArray:
    data = values.astype("<i8").tobytes()

    def stream() -> ByteStream:
        return io.BytesIO(data)

    return StoredArray(name, key, np.dtype("<i8"), values.shape, False, stream)


def kld_rows(name: str, key: str, file: io.FileIO, file_bytes: int) -> LlamaCppRows:
    """A `--kl-divergence-base` file: of every chunk of the context, the rows of its second half but the last.

    A row is float32 scale, float32 lowest value and a uint16 a token: log-probability = lowest + scale x uint16.
    """
    with foreign_errors(name, "a file of --kl-divergence-base"):
        file.seek(len(KLD_MAGIC))
        context, vocab, chunks = struct.unpack("<3i", file.read(12))
    if not (2 < context <= _MOST_CONTEXT and 1 < vocab <= _MOST_VOCAB and 0 < chunks <= _MOST_CHUNKS):
        raise DumpError(f"{name}: declares {chunks} chunks of {context} tokens and a vocabulary of {vocab}.")
    first, row_bytes = context // 2, 2 * (2 * ((vocab + 1) // 2) + 4)
    rows = context - 1 - first
    start = len(KLD_MAGIC) + 12 + 4 * chunks * context
    if start + chunks * rows * row_bytes != file_bytes:
        raise DumpError(
            f"{name}: has {file_bytes:,} bytes; its {chunks} chunks of {context} tokens take"
            f" {start + chunks * rows * row_bytes:,}."
        )
    tokens = np.frombuffer(file.read(4 * chunks * context), "<i4").reshape(chunks, context).astype(np.int64)
    lock = threading.Lock()

    def stream() -> ByteStream:
        return _Decoded(Window(file, start, chunks * rows * row_bytes, lock), vocab, row_bytes)

    logits = StoredArray(name, key, np.dtype("<f4"), (chunks * rows, vocab), False, stream)
    meta = {"format": "llama.cpp --kl-divergence-base", "first position of a chunk": first, "context": context}
    ids = tokens[:, first : first + rows].reshape(-1)
    return LlamaCppRows(logits, ids, (rows,) * chunks, json.dumps(meta), KLD_WARNING)


class _Decoded(io.RawIOBase):
    """Rows of 16 bits a value as a stream of float32."""

    def __init__(self, rows: Window, vocab: int, row_bytes: int) -> None:
        self._rows, self._vocab, self._row_bytes = rows, vocab, row_bytes
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview | bytearray) -> int:  # type: ignore[override]
        if not self._left:
            self._left = self._row()
        count = min(len(buffer), len(self._left))
        buffer[:count] = self._left[:count]
        self._left = self._left[count:]
        return count

    def _row(self) -> memoryview:
        packed = bytearray()
        while len(packed) < self._row_bytes:
            piece = bytearray(self._row_bytes - len(packed))
            read = self._rows.readinto(piece)
            if not read:
                return memoryview(b"")
            packed += piece[:read]
        scale, lowest = np.frombuffer(packed, "<f4", 2)
        steps = np.frombuffer(packed, "<u2", self._vocab, 8).astype(np.float32)
        return memoryview((lowest + scale * steps).astype("<f4").tobytes())


def results_rows(name: str, key: str, file: io.FileIO, file_bytes: int) -> LlamaCppRows:
    """A GGUF of `llama-results`: tensors `tokens` (int32) and `logits` (float32, a row a token).

    The tensor declares its dimensions as (tokens, vocabulary), which in a GGUF means that tokens lie next to each
    other; they do not: the rows are whole.
    """
    with foreign_errors(name, "a GGUF of llama-results"):
        file.seek(0)
        header = _Header(file.read(min(file_bytes, _HEADER_BYTES)))
        tensors = header.tensors()
    if {"tokens", "logits"} - tensors.keys():
        raise DumpError(f"{name}: a GGUF without the tensors 'tokens' and 'logits'; expected one of llama-results.")
    kinds = {what: tensors[what][1] for what in ("tokens", "logits")}
    if kinds != {"tokens": _I32, "logits": _F32}:
        raise DumpError(f"{name}: its tensors are of types {kinds}; expected int32 tokens and float32 logits.")
    count, elements = math.prod(tensors["tokens"][0]), math.prod(tensors["logits"][0])
    if count < 1 or elements % count or not 1 < elements // count <= _MOST_VOCAB:
        raise DumpError(f"{name}: {elements:,} logits for {count:,} tokens; expected a row of the vocabulary each.")
    vocab = elements // count
    places = {what: header.data + tensors[what][2] for what in ("tokens", "logits")}
    if max(places["tokens"] + 4 * count, places["logits"] + 4 * elements) > file_bytes:
        raise DumpError(f"{name}: ends before its tensors do; expected a complete file.")
    file.seek(places["tokens"])
    tokens = np.frombuffer(file.read(4 * count), "<i4").astype(np.int64)
    lock = threading.Lock()

    def stream() -> ByteStream:
        return Window(file, places["logits"], 4 * elements, lock)

    logits = StoredArray(name, key, np.dtype("<f4"), (count, vocab), False, stream)
    return LlamaCppRows(logits, tokens, (count,), json.dumps({"format": "llama.cpp llama-results"}))


class _Header:
    """Keys and tensors of a GGUF, versions 2 and 3 (the specification of GGUF in ggml). ValueError or
    struct.error for what is none.
    """

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 8
        version = int.from_bytes(data[4:8], "little")
        if version not in (2, 3):
            raise ValueError(f"a GGUF of version {version}")
        self._tensors, self._keys = self._numbers("<2Q")
        self.data = 0  # where the tensors' bytes begin, once they were read
        self._alignment = _ALIGNMENT

    def _numbers(self, form: str) -> tuple[int, ...]:
        found = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return found

    def _text(self) -> str:
        (length,) = self._numbers("<Q")
        if length > len(self._data) - self._at:
            raise ValueError("a text longer than the file")
        self._at += length
        return self._data[self._at - length : self._at].decode("utf-8", "replace")

    def _skip(self, kind: int) -> None:
        if kind == _STRING:
            self._text()
        elif kind in _NUMBERS:
            self._at += _NUMBERS[kind]
        elif kind == _LIST:
            of, count = self._numbers("<IQ")
            if of in _NUMBERS:
                self._at += _NUMBERS[of] * count
            elif of == _STRING:
                for _ in range(min(count, len(self._data))):
                    self._text()
            else:
                raise ValueError(f"a list of type {of}")
        else:
            raise ValueError(f"a value of type {kind}")
        if self._at > len(self._data):
            raise ValueError("ends within its keys")

    def tensors(self) -> dict[str, tuple[tuple[int, ...], int, int]]:
        """Shape, type and place of every tensor, of at most as many as a dump has arrays."""
        for _ in range(min(self._keys, len(self._data))):
            key = self._text()
            (kind,) = self._numbers("<I")
            if key == "general.alignment" and kind == 4:
                (self._alignment,) = struct.unpack_from("<I", self._data, self._at)
            self._skip(kind)
        if self._tensors > MAX_SIDES or not 0 < self._alignment <= 1 << 20:
            raise ValueError(f"{self._tensors} tensors; a file of weights is no dump")
        found = {}
        for _ in range(self._tensors):
            name = self._text()
            (dimensions,) = self._numbers("<I")
            if dimensions > 4:
                raise ValueError(f"a tensor of {dimensions} dimensions")
            shape = self._numbers(f"<{dimensions}Q")
            kind, place = self._numbers("<IQ")
            found[name] = (shape, kind, place)
        self.data = -(-self._at // self._alignment) * self._alignment
        return found


READERS: dict[bytes, tuple[str, Callable[[str, str, io.FileIO, int], LlamaCppRows]]] = {
    KLD_MAGIC: ("kld", kld_rows),
    GGUF_MAGIC: ("results", results_rows),
}
