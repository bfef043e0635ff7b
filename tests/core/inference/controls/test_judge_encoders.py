"""Encoders on trial: sound pairs are rounding, faults of padding and positions are not."""

from functools import cache

import pytest
import torch
from transformers import BertForSequenceClassification, BertModel

from core.checks.embeddings import EMBEDDINGS, SCORES
from core.inference.controls.judge_model import JudgingSession, judge
from core.inference.models.encoder import Encoder
from core.inference.models.model import load_model
from core.inference.paths.batch import PromptBatch
from core.verdict import BUG_SUSPECTED, IDENTICAL, LOWER_PRECISION, ROUNDING, UNDECIDED
from tests.core.inference.tiny_encoders import TEXTS, write, write_modules

# and how many texts: a noise floor takes 16 values
KINDS = {
    "mean": 6,
    "normalized": 6,
    "classifier": 6,
    "reranker": 16,
}
SOUND = ("encode+batch:3", "encode+pad:right:5", "encode+attn:eager")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("encoders")
    write(root / "mean", BertModel)
    write_modules(
        write(root / "normalized", BertModel),
        {"pooling_mode_mean_tokens": True},
        *("Transformer", "Pooling", "Normalize"),
    )
    write(root / "classifier", BertForSequenceClassification, num_labels=3)
    write(root / "reranker", BertForSequenceClassification, num_labels=1)
    return root


@cache
def session_of(folder, dtype, texts=None):
    loaded = load_model(str(folder), dtype=dtype, encodes=True)
    prompts = [f"{text} {number % 3 * text}" for number, text in enumerate(3 * TEXTS)]
    return JudgingSession(loaded, loaded.tokens_of_all(prompts[: texts or KINDS[folder.name]]))


def judged(folder, variant, dtype="float32", texts=None):
    session = session_of(folder, dtype, texts)
    sides = {"reference": "encode", "variant": variant}
    return judge(session.loaded, session.prompts, session=session, **sides)


@pytest.mark.parametrize("variant", SOUND)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["normalized", "classifier", "reranker"])
def test_sound_pairs_are_rounding(folders, kind, dtype, variant):
    verdict = judged(folders / kind, variant, dtype)
    assert verdict.name in (ROUNDING, IDENTICAL)
    check = SCORES if kind == "reranker" else EMBEDDINGS
    assert check in [row.check for row in verdict.evidence]


@pytest.mark.spread(1)
@pytest.mark.parametrize("kind", ["mean", "reranker"])
def test_weights_in_bfloat16_are_a_lower_precision(folders, kind):
    assert judged(folders / kind, "encode+dtype:bfloat16").name == LOWER_PRECISION


def without_mask(monkeypatch):
    monkeypatch.setattr(
        PromptBatch,
        "attention_mask",
        property(lambda batch: torch.ones_like(batch.token_ids)),
    )


def with_shifted_positions(monkeypatch):
    places = PromptBatch.position_ids.func
    monkeypatch.setattr(PromptBatch, "position_ids", property(lambda batch: places(batch) + 1))


def pooling_all_columns(monkeypatch):
    rows = Encoder.rows
    monkeypatch.setattr(
        Encoder,
        "rows",
        lambda encoder, outputs, mask: rows(encoder, outputs, torch.ones_like(mask)),
    )


@pytest.mark.spread(7)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("fault", "kind", "module"),
    [
        (without_mask, "mean", "layer.0.attention"),
        (without_mask, "classifier", "layer.0.attention"),
        (with_shifted_positions, "normalized", "position_embeddings"),
        (with_shifted_positions, "reranker", "position_embeddings"),
        (pooling_all_columns, "mean", ""),
        (pooling_all_columns, "normalized", ""),
    ],
)
def test_a_fault_of_padding_is_no_rounding(folders, monkeypatch, fault, kind, module, dtype):
    fault(monkeypatch)
    verdict = judged(folders / kind, "encode+pad:right:5", dtype)
    assert verdict.name == BUG_SUSPECTED
    assert verdict.noise_ratio > 1000
    assert "row" in verdict.because
    assert module in verdict.because


def test_few_values_decide_nothing(folders):
    assert judged(folders / "reranker", "encode+attn:eager", texts=4).name == UNDECIDED
