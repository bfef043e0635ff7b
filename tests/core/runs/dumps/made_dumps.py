"""Logits, dumps of them, and the bits that they are read as."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from core.runs.dumps.dump import Dump, open_dump

ROWS, VOCAB = 6, 32
VALUES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def logits(seed: int, shape: tuple[int, ...] = (ROWS, VOCAB), dtype: str = "float32") -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * 5).astype(VALUES[dtype])


def bits_of(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values).view(f"<u{values.dtype.itemsize}")


def saved(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "dump.npz", **arrays)
    return folder / "dump.npz"


def bits_in(dump: Dump, max_bytes: int = 2 * 4 * VOCAB) -> list[np.ndarray]:
    """[rows, vocab] a side, joined from chunks of a few rows."""
    chunks = list(dump.chunks(max_bytes))
    assert [first for first, _ in chunks] == list(
        np.cumsum([0, *(len(sides[0]) for _, sides in chunks)])[:-1],
    )
    return [
        np.concatenate([sides[place] for _, sides in chunks]) for place in range(len(dump.sides))
    ]


def warnings_of(folder: Path, **arrays: Any) -> str:
    with open_dump([saved(folder, **arrays)]) as dump:
        return " ".join(dump.warnings)
