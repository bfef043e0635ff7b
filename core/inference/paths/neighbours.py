"""Real text to fill the other rows of a batch, like requests on a busy server."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from pathlib import Path
from weakref import WeakKeyDictionary

import torch
from transformers import PreTrainedTokenizerBase

from ...errors import CaptureError
from ..models.torch_errors import quiet

_TEXT = Path(__file__).with_name("neighbours.txt")
_KNOWN: WeakKeyDictionary[PreTrainedTokenizerBase, list[int]] = WeakKeyDictionary()
_GOLDEN = 0.6180339887498949  # steps of this share of the text stay far apart


def _tokens_of_text(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the tokens of the text, cached per tokenizer: a continuation needs them at every step."""
    if tokenizer not in _KNOWN:
        with quiet():
            tokens = tokenizer(_TEXT.read_text(encoding="utf-8"), add_special_tokens=False)["input_ids"]
        _KNOWN[tokenizer] = [int(token) for token in tokens]
    return _KNOWN[tokenizer]


def neighbour_rows(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], count: int) -> torch.Tensor:
    """Return token ids of other prompts, each as long as `ids`. [count, positions], int64, on the CPU.

    Windows of real text, the same at every call; row k does not depend on `count`, so a batch of 4 is the beginning of
    a batch of 8. None equals `ids`, and all differ until the text has no new window.
    """
    prompt = [int(token) for token in ids]
    if count == 0:
        return torch.empty((0, len(prompt)), dtype=torch.long)
    text = _tokens_of_text(tokenizer)
    # If a prompt begins with the BOS token, its neighbors do too, like any request to a server.
    opening = prompt[:1] if len(prompt) > 1 and prompt[0] == tokenizer.bos_token_id else []
    length = len(prompt) - len(opening)
    around = text * (2 + length // max(1, len(text)))  # the text repeats, so that every offset has a whole window
    step = max(1, round(len(text) * _GOLDEN))
    while gcd(step, len(text)) > 1:  # coprime, so that each offset comes up once
        step += 1
    rows: list[list[int]] = []
    windows = {tuple(prompt)}
    for number in range(len(text)):
        if len(rows) == count:
            break
        offset = (1 + number) * step % len(text)
        window = opening + around[offset : offset + length]
        if tuple(window) not in windows:
            windows.add(tuple(window))
            rows.append(window)
    if not rows:
        raise CaptureError(
            f"the tokenizer turns every neighbor of a prompt of {len(prompt)} tokens into that prompt; lengthen it."
        )
    different = len(rows)
    rows += [rows[k % different] for k in range(count - different)]
    return torch.tensor(rows, dtype=torch.long)
