"""Responses of llama.cpp's own endpoint, `/completion`: ids, texts and log-probabilities of the whole row, taken before
sampling; after sampling where it was asked for that.

Format as in tools/server/server-task.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..records import Response
from .entries import count_of, is_list, is_object, response_of, tokens_of, value_of
from .openai import content_rows, drafts_of, entry_of, prompt_ids, settings_of
from .rows import Entry, Row


def read_completion(payload: Mapping[str, Any], where: str, request: Mapping[str, Any]) -> Response:
    """One response of `/completion`. Its probabilities after sampling are processed values, of kind 'prob'."""
    listed = is_list(payload["completion_probabilities"], "completion_probabilities", where)
    generation = payload.get("generation_settings")
    settings = generation if isinstance(generation, dict) else {}
    prompt: Any = prompt_ids(request) or count_of(payload.get("tokens_evaluated"))
    start = max(0, (prompt if isinstance(prompt, int) else len(prompt or (0,))) - 1)
    timings = payload.get("timings")
    is_sampled = bool(listed) and isinstance(listed[0], dict) and "top_probs" in listed[0]
    rows = _sampled_rows(listed, start, where) if is_sampled else content_rows(listed, start, where)
    tokens = payload.get("tokens")
    return response_of(
        rows,
        where,
        format="llama.cpp completion",
        prompt=prompt,
        generated=tokens_of(tokens, "tokens", where) if tokens else (),
        asked=count_of(request.get("n_probs")) or count_of(settings.get("n_probs")),
        values="prob" if is_sampled else "logprob",
        processed=is_sampled,
        model=payload["model"] if isinstance(payload.get("model"), str) else "",
        text=payload["content"] if isinstance(payload.get("content"), str) else "",
        cached=count_of(timings.get("cache_n")) if isinstance(timings, dict) else None,
        settings=settings_of({**settings, **request}) | drafts_of(payload),
    )


def _sampled_rows(listed: Any, start: int, where: str) -> list[Row]:
    rows = []
    for index, found in enumerate(listed):
        at = f"{where}, generated token {index}"
        said = is_object(found, "a token", at)
        top = tuple(_sampled(is_object(one, "an entry", at), at) for one in is_list(said["top_probs"], "top_probs", at))
        rows.append(Row(start + index, top, _sampled(said, at), len(top)))
    return rows


def _sampled(said: Mapping[str, Any], where: str) -> Entry:
    entry = entry_of({**said, "logprob": None}, where)
    return Entry(entry.token, entry.text, value_of(said.get("prob"), where))
