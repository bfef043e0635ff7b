"""llama.cpp's own files of rows: read as dumps, by their formats; what is damaged or no dump is one sentence."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from core.errors import DumpError, UsageError
from core.judging.ingest import headers_of, ingest
from core.runs.dumps.dump import open_dump
from core.runs.reader import RunReader
from core.runs.store.store import Store

CONTEXT, CHUNKS = 12, 2
ROWS = CONTEXT - 1 - CONTEXT // 2


def kld_file(path: Path, seed: int, vocab: int = 33) -> tuple[np.ndarray, np.ndarray]:
    """Write one as perplexity.cpp does; -> (log-probabilities [rows, vocab] as they were, tokens [chunks, context])."""
    random = np.random.default_rng(seed)
    tokens = np.random.default_rng(1).integers(0, vocab, (CHUNKS, CONTEXT), dtype=np.int32)
    logits = random.normal(0, 3, (CHUNKS * ROWS, vocab))
    logs = (logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))).astype(np.float32)
    body = struct.pack("<8s3i", b"_logits_", CONTEXT, vocab, CHUNKS) + tokens.astype("<i4").tobytes()
    for row in logs:
        lowest = np.float32(max(row.min(), row.max() - 16))
        scale = np.float32((row.max() - lowest) / 65535)
        steps = np.clip(np.round((row - lowest) / scale), 0, 65535).astype("<u2")
        body += struct.pack("<2f", scale, lowest) + steps.tobytes() + bytes(2 * (vocab % 2))
    path.write_bytes(body)
    return logs, tokens


def results_file(path: Path, logits: np.ndarray, tokens: np.ndarray) -> None:
    """Write one as results.cpp does: the tensor says (tokens, vocabulary), and lies in rows of the vocabulary."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_string("path_model", "model.gguf")
    writer.add_array("list", ["a", "b"])
    writer.add_tensor("tokens", tokens.astype(np.int32))
    writer.add_tensor("logits", logits.astype(np.float32).reshape(logits.shape[1], logits.shape[0]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("vocab", [32, 33])
def test_a_kl_base_file_is_its_rows_to_16_bits(tmp_path: Path, vocab: int) -> None:
    paths = [tmp_path / "a.kld", tmp_path / "b.kld"]
    (logs, tokens), (others, _) = (kld_file(path, seed, vocab) for seed, path in enumerate(paths))
    with open_dump(paths) as dump:
        assert (dump.rows, dump.vocab, dump.compute_dtype) == (CHUNKS * ROWS, vocab, "float32")
        assert [prompt.positions for prompt in dump.prompts] == [ROWS] * CHUNKS
        first = CONTEXT // 2
        assert dump.prompts[1].token_ids == tuple(tokens[1, first : first + ROWS])
        read = [bits.view(np.float32) for bits in next(dump.chunks())[1]]
        assert "ULPs of them mean nothing" in " ".join(dump.warnings)
    for found, wanted in zip(read, (logs, others), strict=True):
        within = wanted > wanted.max(axis=1, keepdims=True) - 16
        assert np.abs(found - wanted)[within].max() <= 16 / 65535
    assert headers_of(paths[0]).kind == "array"


def test_a_results_file_is_its_logits_bit_for_bit(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    sides = [random.normal(0, 4, (7, 40)).astype(np.float32) for _ in range(2)]
    tokens = np.arange(7) + 5
    for name, side in zip("ab", sides, strict=True):
        results_file(tmp_path / f"{name}.gguf", side, tokens)
    store = Store(tmp_path / "runs")
    with RunReader(store.path_of(ingest(store, [tmp_path / "a.gguf", tmp_path / "b.gguf"]))) as run:
        assert run.header.prompts[0].token_ids == tuple(tokens)
        for position in range(7):
            for number, side in enumerate(sides):
                assert np.array_equal(run.at(number, 0, position), side[position].view(np.uint32))


def test_the_rows_of_a_results_file_are_not_those_its_dimensions_say(tmp_path: Path) -> None:
    side = np.arange(12, dtype=np.float32).reshape(3, 4)
    results_file(tmp_path / "a.gguf", side, np.arange(3))
    results_file(tmp_path / "b.gguf", side + 1, np.arange(3))
    with open_dump([tmp_path / "a.gguf", tmp_path / "b.gguf"], holds="logits") as dump:
        assert np.array_equal(next(dump.chunks())[1][0].view(np.float32), side)
        assert not np.array_equal(next(dump.chunks())[1][0].view(np.float32), side.reshape(4, 3).T)


def damaged_kld(path: Path, kind: str) -> None:
    kld_file(path, 0)
    data = bytearray(path.read_bytes())
    if kind == "cut":
        data = data[:-3]
    elif kind == "longer":
        data += b"\0"
    elif kind == "header":
        data = data[:14]
    else:
        data[8:12] = struct.pack("<i", {"context": -1, "huge": 2**31 - 1}[kind])
    path.write_bytes(data)


@pytest.mark.parametrize("kind", ["cut", "longer", "header", "context", "huge"])
def test_a_damaged_kl_base_file_is_a_sentence(tmp_path: Path, kind: str) -> None:
    damaged_kld(tmp_path / "a.kld", kind)
    with pytest.raises(DumpError) as raised:
        headers_of(tmp_path / "a.kld")
    assert str(raised.value).startswith("a.kld")
    assert "\n" not in str(raised.value)


def test_weights_and_cut_files_are_no_results(tmp_path: Path) -> None:
    path = tmp_path / "weights.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("token_embd.weight", np.zeros((4, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(DumpError, match="without the tensors 'tokens'"):
        headers_of(path)
    results_file(tmp_path / "a.gguf", np.zeros((5, 64), np.float32), np.arange(5))
    whole = (tmp_path / "a.gguf").read_bytes()
    for length in (5, 9, 20, 60, 120, len(whole) - 700):
        (tmp_path / "cut.gguf").write_bytes(whole[:length])
        with pytest.raises(DumpError) as raised:
            headers_of(tmp_path / "cut.gguf")
        assert "\n" not in str(raised.value), length
    (tmp_path / "cut.gguf").write_bytes(whole[:3])  # too short to be known by its bytes
    with pytest.raises(UsageError, match="expected files of one kind"):
        ingest(Store(tmp_path / "runs"), [tmp_path / "cut.gguf", tmp_path / "a.gguf"])
    with pytest.raises(DumpError):
        ingest(Store(tmp_path / "runs"), [tmp_path / "cut.gguf"])
