"""Encoders, classifiers and rerankers: the values of a text are those of transformers itself."""

import pytest
import torch
from torch.nn.functional import normalize
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    LlamaForCausalLM,
    RobertaModel,
)

from core.capture_request import CaptureRequest
from core.errors import CaptureError
from core.inference.models.chat import plan_inputs
from core.inference.models.model import load_model
from core.inference.paths.engines import side_of, whole_side
from tests.core.inference.tiny_encoders import TEXTS, tokenizer, write, write_modules

MEAN, CLS, LAST = "pooling_mode_mean_tokens", "pooling_mode_cls_token", "pooling_mode_lasttoken"


def values_of(folder, prompts=TEXTS, path="encode"):
    loaded = load_model(str(folder), dtype="float32", encodes=True)
    run = side_of(path).run_on(loaded)
    return torch.cat([whole_side(run, ids) for ids in loaded.tokens_of_all(prompts)])


def outputs_of(kind, folder, *texts):
    model = kind.from_pretrained(folder)
    with torch.no_grad():
        return model(**tokenizer()(*texts, return_tensors="pt"))


def states_of(folder, text):
    return outputs_of(AutoModel, folder, text).last_hidden_state[0]


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ({MEAN: True}, lambda states: states.sum(0) / len(states)),
        ({MEAN: False, CLS: True}, lambda states: states[0]),
        ({LAST: True}, lambda states: states[-1]),
        # of newer files
        ({"pooling_mode": "cls"}, lambda states: states[0]),
    ],
)
@pytest.mark.parametrize("is_normalized", [False, True])
def test_pooling_is_that_of_sentence_transformers(tmp_path, pooling, expected, is_normalized):
    folder = write(tmp_path, BertModel)
    write_modules(
        folder,
        pooling,
        *["Transformer", "Pooling", "Normalize"][: 2 + is_normalized],
    )
    rows = torch.stack([expected(states_of(folder, text)) for text in TEXTS])
    expected_rows = normalize(rows) if is_normalized else rows
    assert torch.equal(values_of(folder), expected_rows)


@pytest.mark.parametrize("path", ["encode+pad:right:5", "encode+pad:left:5"])
@pytest.mark.parametrize(
    ("kind", "pooling"),
    [
        (BertModel, CLS),
        (RobertaModel, LAST),
        (LlamaForCausalLM, LAST),
    ],
)
def test_padding_changes_bits_only(tmp_path, kind, pooling, path):
    folder = write_modules(write(tmp_path, kind), {pooling: True}, "Transformer", "Pooling")
    torch.testing.assert_close(values_of(folder, path=path), values_of(folder))


@pytest.mark.parametrize(
    ("kind", "longest"),
    [
        (BertModel, 128),
        (RobertaModel, 127),
    ],
)
def test_the_longest_text_fills_the_embeddings_of_positions(tmp_path, kind, longest):
    """RoBERTa numbers positions from the padding's on, here 0."""
    folder = write(tmp_path, kind)
    # [CLS] and [SEP] take two of the positions
    text = "a " * (longest - 2)
    assert values_of(folder, [text]).isfinite().all()
    loaded = load_model(str(folder), dtype="float32", encodes=True)
    with pytest.raises(CaptureError):
        loaded.tokens_of_all([f"{text} a"])


def test_a_masked_language_model_is_the_mean_of_its_token_states(tmp_path):
    folder = write(tmp_path, BertForMaskedLM)
    states = [states_of(folder, text) for text in TEXTS]
    expected = [of_text.sum(0) / len(of_text) for of_text in states]
    assert torch.equal(values_of(folder), torch.stack(expected))


def test_a_classifier_gives_the_logits_of_its_classes_and_is_not_padded_on_the_left(tmp_path):
    folder = write(tmp_path, BertForSequenceClassification, num_labels=3)
    kind = AutoModelForSequenceClassification
    expected = torch.cat([outputs_of(kind, folder, text).logits for text in TEXTS])
    assert torch.equal(values_of(folder), expected)
    with pytest.raises(CaptureError, match="choose pad:right"):
        values_of(folder, path="encode+pad:left:2")


def test_a_reranker_scores_pairs_with_their_token_types(tmp_path):
    folder = write(tmp_path / "model", BertForSequenceClassification, num_labels=1)
    lines = [f'{{"text": "what is it", "text_pair": "{text}"}}\n' for text in TEXTS]
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(lines))
    request = CaptureRequest(model=str(folder), prompt_lists=(str(file),))
    loaded = load_model(str(folder), dtype="float32", encodes=True)
    inputs = plan_inputs(loaded, request)
    kind = AutoModelForSequenceClassification
    expected = [outputs_of(kind, folder, "what is it", text).logits for text in TEXTS]
    assert torch.equal(values_of(folder, inputs), torch.cat(expected))
    with pytest.raises(CaptureError, match="leave separators out"):
        loaded.encode_pair("a [SEP] b", "c", "line 1")


def refused(folder):
    with pytest.raises(CaptureError) as caught:
        load_model(str(folder), dtype="float32", encodes=True)
    return str(caught.value)


def test_other_heads_modules_and_poolings_are_refused(tmp_path):
    bert = write(tmp_path / "bert", BertModel)
    tagger = write(tmp_path / "tagger", BertForTokenClassification)
    assert "BertForTokenClassification" in refused(tagger)
    write_modules(bert, {"pooling_mode_max_tokens": True}, "Transformer", "Pooling")
    assert "pooling_mode_max_tokens" in refused(bert)
    (bert / "modules.json").write_text('[{"type": "sentence_transformers.models.Dense"}]')
    assert "lists Dense" in refused(bert)
    (bert / "modules.json").write_text("[")
    assert "modules.json is invalid" in refused(bert)
