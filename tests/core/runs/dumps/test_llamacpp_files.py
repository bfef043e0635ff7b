"""Files of llama.cpp are read as dumps; what is damaged or no dump is one sentence."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from core.errors import DumpError
from core.judging.ingest import headers_of, ingest
from core.runs.dumps.dump import open_dump
from core.runs.reader import RunReader
from core.runs.store.store import Store


def results_file(path: Path, logits: np.ndarray, tokens: np.ndarray) -> None:
    """Write one as results.cpp does: the tensor says (tokens, vocabulary), and lies in rows of the
    vocabulary.
    """
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_string("path_model", "model.gguf")
    writer.add_array("list", ["a", "b"])
    writer.add_tensor("tokens", tokens.astype(np.int32))
    writer.add_tensor("logits", logits.astype(np.float32).reshape(logits.shape[1], logits.shape[0]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_results_file_is_its_logits_bit_for_bit(store, tmp_path):
    random = np.random.default_rng(3)
    sides = [random.normal(0, 4, (7, 40)).astype(np.float32) for _ in range(2)]
    tokens = np.arange(7) + 5
    for name, side in zip("ab", sides, strict=True):
        results_file(tmp_path / f"{name}.gguf", side, tokens)
    with RunReader(store.path_of(ingest(store, [tmp_path / "a.gguf", tmp_path / "b.gguf"]))) as run:
        assert run.header.prompts[0].token_ids == tuple(tokens)
        for position in range(7):
            for number, side in enumerate(sides):
                assert np.array_equal(run.at(number, 0, position), side[position].view(np.uint32))


@pytest.mark.parametrize("vocab", [32, 33])
def test_a_kl_base_file_is_its_rows_to_16_bits(tmp_path, vocab):
    """Written as perplexity.cpp does: two chunks of 12 tokens, of each the rows 6 to 10."""
    random = np.random.default_rng(0)
    tokens = random.integers(0, vocab, (2, 12), dtype=np.int32)
    logits = random.normal(0, 3, (10, vocab))
    logs = (logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))).astype(np.float32)
    body = struct.pack("<8s3i", b"_logits_", 12, vocab, 2) + tokens.astype("<i4").tobytes()
    for row in logs:
        lowest = np.float32(max(row.min(), row.max() - 16))
        scale = np.float32((row.max() - lowest) / 65535)
        steps = np.clip(np.round((row - lowest) / scale), 0, 65535).astype("<u2")
        body += struct.pack("<2f", scale, lowest) + steps.tobytes() + bytes(2 * (vocab % 2))
    for side in "ab":
        (tmp_path / f"{side}.kld").write_bytes(body)
    with open_dump([tmp_path / "a.kld", tmp_path / "b.kld"]) as dump:
        assert (dump.rows, dump.vocab, dump.compute_dtype) == (10, vocab, "float32")
        assert [prompt.token_ids for prompt in dump.prompts] == [
            tuple(each[6:11]) for each in tokens.tolist()
        ]
        read = next(dump.chunks())[1][0].view(np.float32)
    within = logs > logs.max(axis=1, keepdims=True) - 16
    assert np.abs(read - logs)[within].max() <= 16 / 65535
    (tmp_path / "a.kld").write_bytes(body[:-1])
    with pytest.raises(DumpError, match="expected a complete file of --kl-divergence-base"):
        headers_of(tmp_path / "a.kld")


def test_weights_and_cut_files_are_no_results(tmp_path):
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
    with pytest.raises(DumpError):
        ingest(Store(tmp_path / "runs"), [tmp_path / "cut.gguf", tmp_path / "a.gguf"])
