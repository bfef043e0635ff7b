"""Tiny random encoders in folders, with a tokenizer of letters."""

import json
from string import ascii_lowercase

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from core.inference.models.torch_errors import quiet

TEXTS = [
    "a short one",
    "the quick brown fox jumps over the lazy dog",
    "to be or not to be",
    "what is rounding",
    "seven",
    "pack my box with five dozen jugs",
]
_SPECIAL = {
    "pad": "[PAD]",
    "unk": "[UNK]",
    "cls": "[CLS]",
    "sep": "[SEP]",
}


def tokenizer():
    words = [*_SPECIAL.values(), *ascii_lowercase, *(f"##{each}" for each in ascii_lowercase)]
    numbers = {word: number for number, word in enumerate(words)}
    letters = Tokenizer(models.WordPiece(numbers, unk_token="[UNK]"))
    letters.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    letters.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return PreTrainedTokenizerFast(
        tokenizer_object=letters,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **{f"{name}_token": word for name, word in _SPECIAL.items()},
    )


def write(folder, kind, **changes):
    """Write a random model of this kind; changes: of its config."""
    config = kind.config_class(
        vocab_size=56,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=128,
        initializer_range=0.3,
        pad_token_id=0,
        **changes,
    )
    torch.manual_seed(0)
    with quiet():
        kind(config).eval().save_pretrained(folder)
        tokenizer().save_pretrained(folder)
    return folder


def write_modules(folder, pooling, *kinds):
    """Write the files of sentence-transformers into a folder of a model. kinds: of its modules."""
    modules = [{"type": f"sentence_transformers.models.{each}", "path": "1"} for each in kinds]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1").mkdir()
    (folder / "1" / "config.json").write_text(json.dumps(pooling))
    return folder
