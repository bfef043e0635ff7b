"""Logits, dumps of them, and the bits that they are read as."""

import struct

import ml_dtypes
import numpy as np
from scipy.special import logsumexp

from core.runs.dumps.dump import open_dump

ROWS, VOCAB = 6, 32
VALUES = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
}


def logits(seed, shape=(ROWS, VOCAB), dtype="float32"):
    return (np.random.default_rng(seed).standard_normal(shape) * 5).astype(VALUES[dtype])


def bits_of(values):
    return np.ascontiguousarray(values).view(f"<u{values.dtype.itemsize}")


def saved(folder, **arrays):
    np.savez(folder / "dump.npz", **arrays)
    return folder / "dump.npz"


def dump_of(folder, **arrays):
    return open_dump([saved(folder, **arrays)])


def names_of(dump):
    return [side.name for side in dump.sides]


def bits_in(dump, max_bytes=2 * 4 * VOCAB):
    """[rows, vocab] a side, joined from chunks of a few rows."""
    parts = []
    done = 0
    for first, sides in dump.chunks(max_bytes):
        assert first == done
        done += len(sides[0])
        parts.append(sides)
    return [np.concatenate(of_side) for of_side in zip(*parts, strict=True)]


def warnings_of(folder, **arrays):
    with dump_of(folder, **arrays) as dump:
        return " ".join(dump.warnings)


def kl_base_file(path, logits, tokens):
    """Write one as perplexity.cpp does: of each chunk of tokens the rows of its second half but the
    last. -> the log-probabilities that it holds, in float64
    """
    chunks, context = tokens.shape
    vocab = logits.shape[1]
    body = struct.pack("<8s3i", b"_logits_", context, vocab, chunks)
    body += tokens.astype("<i4").tobytes()
    held = []
    for row in logits.astype(np.float32):
        # less likely tokens are raised to 16 nats below the largest
        lowest = max(row.min(), row.max() - np.float32(16))
        scale = (row.max() - lowest) / np.float32(65535)
        steps = np.clip(np.rint((row - lowest) / scale), 0, 65535).astype("<u2")
        least = np.float32(lowest - logsumexp(row.astype(np.float64)))
        # a row is whole words of 32 bits
        padding = bytes(2 * (vocab % 2))
        body += struct.pack("<2f", scale, least) + steps.tobytes() + padding
        held.append(least + scale * steps.astype(np.float32))
    path.write_bytes(body)
    return np.array(held, np.float64)
