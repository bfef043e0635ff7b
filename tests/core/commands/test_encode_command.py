"""`judge --reference encode`: a row of values for each text, from the command to the run file."""

import json

import pytest
from transformers import BertForSequenceClassification, BertModel

from core.runs.file.records import VALUE
from core.runs.store.store import open_store
from tests.core.inference.tiny_encoders import TEXTS, write
from tests.core.runs.made_runs import opened

pytestmark = pytest.mark.model
PADDED = ("--reference", "encode", "--variant", "encode+pad:right:4", "--dtype", "float32")


@pytest.fixture(scope="module")
def embedding(tmp_path_factory):
    return write(tmp_path_factory.mktemp("models") / "bert", BertModel)


@pytest.fixture
def texts(tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    return tmp_path / "texts.txt"


def test_a_judged_run_of_an_embedding_has_a_row_a_text(cli, embedding, texts):
    done = cli("judge", "--model", embedding, "--prompts", texts, *PADDED, "--json")
    assert done.returncode == 0, done.stderr
    (pair,) = done.json["pairs"]
    assert pair["verdict"] == "rounding"
    with opened(open_store(), done.json["run_id"]) as run:
        header = run.header
        assert (header.holds, header.lengths, header.vocab) == (VALUE, [len(TEXTS)], 32)
        assert [text[:5] for text in header.prompts[0].token_texts] == ["[CLS]"] * len(TEXTS)
        assert header.provenance.versions["values"] == "mean of token states"
        (nearest,) = [row.figures for row in run.evidence(0) if row.group == "order"]
        assert nearest.neighbors_of == len(TEXTS)


def test_pairs_of_a_file_are_scores_with_an_order(cli, tmp_path):
    model = write(tmp_path / "model", BertForSequenceClassification, num_labels=1)
    pairs = [{"text": text, "text_pair": other} for text in TEXTS[:3] for other in TEXTS]
    file = tmp_path / "pairs.jsonl"
    file.write_text("\n".join(map(json.dumps, pairs)))
    done = cli("judge", "--model", model, "--prompts", file, *PADDED, "--json")
    assert done.returncode == 0, done.stderr
    assert done.json["pairs"][0]["verdict"] == "rounding"
    with opened(open_store(), done.json["run_id"]) as run:
        assert (run.header.rows, run.header.vocab) == (18, 1)
        (order,) = [row.figures for row in run.evidence(0) if row.group == "order"]
        assert order.pairs == 18 * 17 / 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--reference", "encode", "--variant", "decode"], "without a KV cache"),
        (["--reference", "encode", "--variant", "prefill"], "has no causal head; choose encode"),
        (["--variant", "prefill+batch:2"], "begin with encode"),
        (["--reference", "encode", "--kv"], "leave --kv out"),
        (["--reference", "encode", "--layers"], "leave them out"),
        (["--reference", "encode", "--mitigations"], "leave them out"),
    ],
)
def test_what_an_encoder_cannot_run_is_one_sentence(cli, embedding, texts, arguments, sentence):
    done = cli("capture", "--model", embedding, "--prompts", texts, *arguments)
    assert done.returncode == 2
    assert sentence in done.stderr


def test_a_causal_model_takes_no_pairs_and_no_path_of_an_encoder(cli, tmp_path):
    file = tmp_path / "pairs.jsonl"
    file.write_text('{"text": "a", "text_pair": "b"}')
    done = cli("capture", "--model", "sample_runs/model", "--prompts", file)
    assert (done.returncode, "text_pair is for" in done.stderr) == (2, True)
    typed = ("--prompt", "def main():", "--variant", "encode")
    done = cli("capture", "--model", "sample_runs/model", *typed)
    assert (done.returncode, "choose prefill" in done.stderr) == (2, True)
    file.write_text('{"token_ids": [1], "text_pair": "b"}')
    done = cli("capture", "--model", "sample_runs/model", "--prompts", file)
    assert (done.returncode, ":1: text_pair is for a prompt" in done.stderr) == (2, True)
