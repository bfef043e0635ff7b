"""Runs in Python: opened, and compared in memory."""

import gc
import os
from pathlib import Path

import numpy as np
import pytest
import torch

import core
from core.errors import DumpError, StoreError

POSITIONS, VOCAB = 6, 40


def logits(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(POSITIONS, VOCAB)).astype(np.float32)


def test_arrays_in_memory_are_compared_as_numpy_does():
    a, b = logits(1), logits(2)
    run = core.compare(a, b, token_ids=range(POSITIONS))
    figures = run.reader.positions(0)
    assert figures["max_abs"].to_numpy() == pytest.approx(np.abs(a - b).max(axis=1))
    assert (figures["is_flip"] == (a.argmax(axis=1) != b.argmax(axis=1))).all()
    assert run.reader.header.prompts[0].token_ids == tuple(range(POSITIONS))


def test_tensors_of_bfloat16_keep_their_bits():
    a, b = (torch.tensor(logits(seed)).bfloat16().requires_grad_() for seed in (1, 2))
    run = core.compare(a[None], b[None], transposed=b.T.contiguous().T)
    assert run.reader.header.compute_dtype == "bfloat16"
    assert run.reader.classes == [["reference"], ["variant", "transposed"]]
    bits = b.detach().view(torch.int16).numpy().view(np.uint16)
    assert (run.reader.read_rows(1, 0, POSITIONS) == bits).all()


def test_prompts_are_an_axis():
    a = np.stack([logits(1), logits(2)])
    assert [prompt.positions for prompt in core.compare(a, a).reader.header.prompts] == [POSITIONS, POSITIONS]


@pytest.mark.parametrize(
    ("variant", "more", "place"),
    [
        (logits(2)[:4], {}, "'variant' has shape (4, 40)"),
        (logits(2).astype(int), {}, "'variant' has the dtype int64"),
        (torch.tensor(logits(2)).to(torch.float8_e4m3fn), {}, "'variant' cannot be read"),
        ([[1.0, 2.0], [3.0]], {}, "'variant' cannot be read"),
        (np.stack([logits(2)] * 2).reshape(1, 2, POSITIONS, 1, VOCAB)[[0, 0]], {}, "'variant' has shape"),
        (logits(2), {"compute_dtype": "float12"}, "'compute_dtype' is 'float12'"),
        (logits(2), {"token_ids": [1]}, "'token_ids' has shape (1,)"),
    ],
)
def test_bad_arrays_are_refused_by_name(variant, more, place):
    with pytest.raises(DumpError) as caught:
        core.compare(logits(1), variant, **more)
    assert place in str(caught.value)


def test_a_run_in_memory_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run = core.compare(logits(1), logits(2))
    assert not list(tmp_path.iterdir())
    assert run.reader.pairs[0].summary.neq > 0
    assert open_files(tmp_path)
    del run
    gc.collect()
    assert not open_files(tmp_path)


def open_files(folder: Path) -> list[str]:
    """Return the open files that lie or lay in a folder."""
    return [name for fd in Path("/proc/self/fd").iterdir() if str(folder) in (name := os.path.realpath(fd))]


def test_open_takes_a_run_a_run_file_and_dumps(tmp_path, monkeypatch):
    for name in ("a", "b"):
        np.save(tmp_path / f"{name}.npy", logits(ord(name)))
    assert [side.name for side in core.open(tmp_path / "a.npy", tmp_path / "b.npy").reader.sides] == ["a", "b"]
    stored = core.open("where-it-starts")
    assert core.open(stored.reader.path).reader.sides == stored.reader.sides
    monkeypatch.setenv("ULPSCOPE_SAMPLES", "")
    with pytest.raises(StoreError):
        core.open("where-it-starts", store=tmp_path)
