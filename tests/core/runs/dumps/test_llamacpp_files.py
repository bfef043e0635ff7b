"""Files of llama.cpp are read as dumps; what is damaged or no dump is one sentence."""

import gguf
import numpy as np
import pytest
from scipy.special import log_softmax

from core.errors import DumpError
from core.judging.ingest import headers_of, ingest
from core.runs.dumps.dump import open_dump
from tests.core.runs.dumps.made_dumps import kl_base_file
from tests.core.runs.dumps.made_dumps import logits as made_logits
from tests.core.runs.made_runs import ingested


def gguf_file(path, **tensors):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_string("path_model", "model.gguf")
    # metadata of both kinds that a reader has to skip: a text and a list of texts
    writer.add_array("list", ["a", "b"])
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def results_file(path, logits, tokens):
    """Write one as results.cpp does: the tensor says (tokens, vocabulary), and lies in rows of the
    vocabulary.
    """
    # GGUF lists dimensions innermost first, so gguf writes the reversed shape
    turned = logits.reshape(logits.shape[1], logits.shape[0])
    gguf_file(path, tokens=tokens.astype(np.int32), logits=turned)


def test_a_results_file_is_its_logits_bit_for_bit(store, tmp_path):
    sides = made_logits(3, (2, 7, 40))
    tokens = np.arange(7) + 5
    paths = [tmp_path / "a.gguf", tmp_path / "b.gguf"]
    for path, side in zip(paths, sides, strict=True):
        results_file(path, side, tokens)
    with ingested(store, *paths) as run:
        assert run.header.prompts[0].token_ids == tuple(tokens)
        for number, side in enumerate(sides):
            assert np.array_equal(run.read_rows(number, 0, 7), side.view(np.uint32))


# an odd row is padded by one value of 16 bits
@pytest.mark.parametrize("vocab", [32, 33])
def test_a_kl_base_file_is_its_rows_to_16_bits(tmp_path, vocab):
    """Two chunks of 12 tokens, of each the rows 6 to 10."""
    tokens = np.random.default_rng(0).integers(0, vocab, (2, 12), dtype=np.int32)
    logits = made_logits(0, (10, vocab))
    paths = [tmp_path / "a.kld", tmp_path / "b.kld"]
    for path in paths:
        kl_base_file(path, logits, tokens)
    with open_dump(paths) as dump:
        assert dump.rows == 10
        assert dump.vocab == vocab
        assert dump.compute_dtype == "float32"
        ids = [prompt.token_ids for prompt in dump.prompts]
        assert ids == [tuple(each[6:11]) for each in tokens.tolist()]
        read = next(dump.chunks())[1][0].view(np.float32)
    logs = log_softmax(logits, axis=1)
    within = logs > logs.max(axis=1, keepdims=True) - 16
    # one step of a row that spans 16 nats in 65,535 steps
    assert np.abs(read - logs)[within].max() <= 16 / 65535
    paths[0].write_bytes(paths[0].read_bytes()[:-1])
    with pytest.raises(DumpError, match="expected a complete file of --kl-divergence-base"):
        headers_of(paths[0])


def test_weights_and_cut_files_are_no_results(store, tmp_path):
    weights = tmp_path / "weights.gguf"
    path = tmp_path / "a.gguf"
    cut = tmp_path / "cut.gguf"
    gguf_file(weights, **{"token_embd.weight": np.zeros((4, 4), np.float32)})
    with pytest.raises(DumpError, match="without the tensors 'tokens'"):
        headers_of(weights)
    results_file(path, np.zeros((5, 64), np.float32), np.arange(5))
    whole = path.read_bytes()
    # in the version, a count, the metadata twice, and the logits
    for length in (5, 9, 20, 60, 120, len(whole) - 700):
        cut.write_bytes(whole[:length])
        with pytest.raises(DumpError) as raised:
            headers_of(cut)
        assert "\n" not in str(raised.value), length
    cut.write_bytes(whole[:3])  # too short to be known by its bytes
    with pytest.raises(DumpError):
        ingest(store, [cut, path])
