"""`judge --reference encode`: a row of values for each text, from the command to the run file."""

import pytest
from transformers import BertModel

from core.runs.file.records import VALUE
from core.runs.store.store import open_store
from tests.core.inference.tiny_encoders import TEXTS, write
from tests.core.runs.made_runs import opened

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def embedding(tmp_path_factory):
    return write(tmp_path_factory.mktemp("models") / "bert", BertModel)


@pytest.fixture
def typed(embedding):
    return [word for text in TEXTS for word in ("--prompt", text)] + ["--model", embedding]


def test_a_judged_run_of_an_embedding_has_a_row_a_text(cli, typed):
    paths = ["--reference", "encode", "--variant", "encode+pad:right:4", "--dtype", "float32"]
    done = cli("judge", *typed, *paths, "--json").succeeded()
    assert done.json["pairs"][0]["verdict"] == "rounding"
    with opened(open_store(), done.json["run_id"]) as run:
        header = run.header
        assert header.holds == VALUE
        assert header.lengths == [len(TEXTS)]
        assert header.vocab == 32
        assert header.prompts[0].token_texts[4] == "[CLS] s ##e ##v ##e ##n [SEP]\n"
        assert header.provenance.versions["values"] == "mean of token states"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--reference", "encode", "--variant", "decode"], "without a KV cache"),
        (["--reference", "encode", "--variant", "prefill"], "needs a causal head; choose encode"),
        (["--variant", "prefill+batch:2"], "begin with encode"),
        (["--reference", "encode", "--kv"], "leave --kv out"),
        (["--reference", "encode", "--layers"], "leave them out"),
        (["--reference", "encode", "--mitigations"], "leave them out"),
    ],
)
def test_what_an_encoder_cannot_run_is_one_sentence(cli, typed, arguments, sentence):
    assert sentence in cli("capture", *typed, *arguments).refusal


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('{"text": "a", "text_pair": "b"}', ":1: text_pair is for a text on paths of encode"),
        ('{"text": "a"}', "choose prefill"),
    ],
)
def test_a_causal_model_takes_no_pair_and_no_path_of_an_encoder(cli, tmp_path, line, sentence):
    file = tmp_path / "pairs.jsonl"
    file.write_text(line)
    typed = ("--model", "sample_runs/model", "--prompts", file, "--variant", "encode")
    assert sentence in cli("capture", *typed).refusal
