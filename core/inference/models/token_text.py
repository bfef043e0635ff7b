"""The readable text of every token id: `convert_ids_to_tokens` returns a byte-level tokenizer's private alphabet, and
`decode` replaces bytes that are not valid UTF-8 alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from ...text import BYTE_LEVEL


def readable(raw: bytes) -> str:
    """Decode UTF-8, with '<0xE2>' for each invalid byte."""
    return "".join(
        f"<0x{ord(char) - 0xDC00:02X}>" if 0xDC80 <= ord(char) <= 0xDCFF else char
        for char in raw.decode("utf-8", errors="surrogateescape")
    )


def token_texts(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> dict[int, str]:
    """Return token id -> text; an id unknown to the tokenizer is '<unused 511>'."""
    raws = tokenizer.convert_ids_to_tokens(list(ids))
    return {token: _text(tokenizer, token, raw) for token, raw in zip(ids, raws, strict=True)}


def _text(tokenizer: PreTrainedTokenizerBase, token: int, raw: str | None) -> str:
    if raw is None:
        return f"<unused {token}>"
    text = str(tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False))
    if "\ufffd" in text:
        is_byte_level = all(char in BYTE_LEVEL for char in raw)
        return (
            readable(bytes(BYTE_LEVEL[char] for char in raw)) if is_byte_level else raw
        )  # sentencepiece: raw is '<0xE2>'
    if raw.startswith("▁") and not text.startswith(" "):
        return f" {text}"  # sentencepiece drops the space of a first word
    return text or raw
