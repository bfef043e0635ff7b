"""Responses of SGLang's `/generate`: triples of log-probability, token id and text, or flat arrays of them.

Format as in sglang/srt/managers/tokenizer_manager.py (0.5.23).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ....errors import DumpError
from ..records import MAX_ENTRIES, MAX_POSITIONS, Response
from .entries import count_of, is_list, is_object, response_of, token_of, tokens_of, value_of
from .openai import prompt_ids, settings_of
from .rows import Entry, Row


def read_generate(payload: Mapping[str, Any], where: str, request: Mapping[str, Any]) -> Response:
    """One response: rows of the prompt, as far as they were asked for, then of what was generated."""
    meta = is_object(payload["meta_info"], "meta_info", where)
    prompt: Any = prompt_ids(request) or count_of(meta.get("prompt_tokens"))
    length = prompt if isinstance(prompt, int) else len(prompt or ())
    before = list(_rows(meta, "input", where))
    if before and not length:
        length = prompt = len(before)
    # The last rows of the prompt end at its last token; the first token of all has no row.
    given = [Row(length - len(before) - 1 + index, *row) for index, row in enumerate(before)]
    made = [Row(max(0, length - 1) + index, *row) for index, row in enumerate(_rows(meta, "output", where))]
    rows = [row for row in given if row.position >= 0 and row.chosen and (row.top or row.chosen.value is not None)]
    generated = payload.get("output_ids")
    return response_of(
        [*rows, *made],
        where,
        format="SGLang generate",
        prompt=prompt,
        generated=tokens_of(generated, "output_ids", where) if generated else (),
        has_prompt_rows=bool(rows),
        asked=count_of(request.get("top_logprobs_num")) or None,
        text=payload["text"] if isinstance(payload.get("text"), str) else "",
        cached=count_of(meta.get("cached_tokens")),
        settings=settings_of({**request, **(request.get("sampling_params") or {})}),
    )


def _rows(
    meta: Mapping[str, Any], part: str, where: str
) -> Iterator[tuple[tuple[Entry, ...], Entry | None, int | None]]:
    """The chosen tokens of one part, 'input' or 'output', each with its list of the best."""
    chosen = is_list(meta.get(f"{part}_token_logprobs") or [], f"{part}_token_logprobs", where)
    tops: Sequence[Any] = meta.get(f"{part}_top_logprobs") or _flat(meta, part, where) or [None] * len(chosen)
    if len(is_list(tops, f"{part}_top_logprobs", where)) != len(chosen):
        raise DumpError(f"{where}: {len(chosen)} {part} tokens and {len(tops)} lists; expected as many.")
    for triple, top in zip(chosen, tops, strict=True):
        listed = tuple(_entry(one, where) for one in is_list(top or [], f"{part}_top_logprobs", where))
        yield listed, _entry(triple, where), len(listed)


def _entry(triple: object, where: str) -> Entry:
    found = is_list(triple, "an entry", where)
    if not 2 <= len(found) <= 3:
        raise DumpError(f"{where}: an entry has {len(found)} parts; expected log-probability, token id and text.")
    text = found[2] if len(found) == 3 and isinstance(found[2], str) else None
    return Entry(token_of(found[1], where), text, value_of(found[0], where))


def _flat(meta: Mapping[str, Any], part: str, where: str) -> list[Any] | None:
    """Lists of the best out of one array of values and one of ids, plain or base64: little-endian float32 and int32."""
    name = f"{part}_top_logprobs"
    shape = meta.get(f"{name}_shape")
    if shape is None:
        return None
    sizes = [count_of(size) for size in is_list(shape, f"{name}_shape", where)]
    rows, k = sizes if len(sizes) == 2 else (None, None)
    skipped = count_of(meta.get(f"{name}_null_prefix", 0))
    if rows is None or k is None or skipped is None or skipped > rows or rows > MAX_POSITIONS or rows * k > MAX_ENTRIES:
        raise DumpError(f"{where}: {name} declares a shape that is none; expected rows and values a row.")
    arrays = []
    for what, dtype in (("val", "<f4"), ("idx", "<i4")):
        packed, plain = meta.get(f"{name}_{what}_flat_b64"), meta.get(f"{name}_{what}_flat")
        found = _unpacked(packed, dtype, where) if isinstance(packed, str) else plain
        if found is None or len(found) != (rows - skipped) * k:
            raise DumpError(f"{where}: {name}_{what} does not hold {rows - skipped:,} rows of {k:,}.")
        arrays.append(found)
    values, ids = arrays
    held = [[[values[at], ids[at]] for at in range(row * k, (row + 1) * k)] for row in range(rows - skipped)]
    return [None] * skipped + held


def _unpacked(packed: str, dtype: str, where: str) -> list[Any]:
    try:
        data = base64.b64decode(packed, validate=True)
        return np.frombuffer(data, dtype).tolist()
    except (binascii.Error, ValueError):
        raise DumpError(f"{where}: a base64 array is damaged.") from None
