"""Responses of Hugging Face's text-generation-inference with `details`.

Format as in its docs: `prefill` and `tokens` are lists of id, text and logprob, `top_tokens` a list for each of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..records import Response
from .entries import is_list, is_object, response_of
from .openai import entry_of, settings_of
from .rows import Row


def read_details(payload: Mapping[str, Any], where: str, request: Mapping[str, Any]) -> Response:
    """One response. The first token of the prompt has no row; what is before the first of `prefill` is not said."""
    details = is_object(payload["details"], "details", where)
    prefill = [
        entry_of(is_object(one, "a token", where), where)
        for one in is_list(details.get("prefill") or [], "prefill", where)
    ]
    tokens = [
        entry_of(is_object(one, "a token", where), where) for one in is_list(details.get("tokens"), "tokens", where)
    ]
    tops = is_list(details.get("top_tokens") or [[]] * len(tokens), "top_tokens", where)
    rows = [Row(at - 1, (), entry, 0) for at, entry in enumerate(prefill) if at and entry.value is not None]
    start = max(0, len(prefill) - 1)
    for index, (token, top) in enumerate(zip(tokens, tops, strict=False)):
        listed = tuple(entry_of(is_object(one, "an entry", where), where) for one in is_list(top, "top_tokens", where))
        rows.append(Row(start + index, listed, token, len(listed)))
    ids = [entry.token for entry in prefill]
    given = request.get("parameters")
    return response_of(
        rows,
        where,
        format="TGI details",
        prompt=[token for token in ids if token is not None] if ids and None not in ids else None,
        has_prompt_rows=bool(prefill),
        text=payload["generated_text"] if isinstance(payload.get("generated_text"), str) else "",
        settings=settings_of(given if isinstance(given, dict) else request),
    )
