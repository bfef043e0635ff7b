"""Responses of llama.cpp's /completion, Hugging Face's TGI, Ollama and OpenAI's /v1/responses.

Formats as in tools/server/server-task.cpp, TGI's docs (`prefill` and `tokens` are lists of id, text and logprob,
`top_tokens` a list for each of them), Ollama's docs/openapi.yaml and OpenAI's reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..records import Response
from .entries import count_of, is_list, is_object, response_of, tokens_of, value_of
from .openai import content_rows, drafts_of, entry_of, prompt_ids, settings_of, text_of
from .rows import Entry, Row
from .streams import output_texts

Payload = Mapping[str, Any]


def read_completion(payload: Payload, where: str, request: Payload) -> Response:
    """llama.cpp: ids, texts and log-probabilities of the whole row, taken before sampling; probabilities after sampling
    are processed values, of kind 'prob'.
    """
    listed = is_list(payload["completion_probabilities"], "completion_probabilities", where)
    settings = _object(payload.get("generation_settings"))
    prompt: Any = prompt_ids(request) or count_of(payload.get("tokens_evaluated"))
    start = max(0, (prompt if isinstance(prompt, int) else len(prompt or (0,))) - 1)
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
        model=text_of(payload.get("model")),
        text=text_of(payload.get("content")),
        cached=count_of(_object(payload.get("timings")).get("cache_n")),
        settings=settings_of({**settings, **request}) | drafts_of(payload),
    )


def _object(value: object) -> Payload:
    return value if isinstance(value, dict) else {}


def _sampled_rows(listed: Any, start: int, where: str) -> list[Row]:
    rows = []
    for index, found in enumerate(listed):
        at = f"{where}, generated token {index}"
        token = is_object(found, "a token", at)
        top = tuple(_sampled(one, at) for one in is_list(token["top_probs"], "top_probs", at))
        rows.append(Row(start + index, top, _sampled(token, at), len(top)))
    return rows


def _sampled(value: object, where: str) -> Entry:
    found = is_object(value, "an entry", where)
    entry = entry_of({**found, "logprob": None}, where)
    return Entry(entry.token, entry.text, value_of(found.get("prob"), where))


def read_details(payload: Payload, where: str, request: Payload) -> Response:
    """TGI. The first token of the prompt has no row; what is before the first of `prefill` is not said."""
    details = is_object(payload["details"], "details", where)

    def entries(listed: object, what: str) -> list[Entry]:
        return [entry_of(is_object(one, "a token", where), where) for one in is_list(listed, what, where)]

    prefill, tokens = entries(details.get("prefill") or [], "prefill"), entries(details.get("tokens"), "tokens")
    tops = is_list(details.get("top_tokens") or [[]] * len(tokens), "top_tokens", where)
    rows = [Row(at - 1, (), entry, 0) for at, entry in enumerate(prefill) if at and entry.value is not None]
    start = max(0, len(prefill) - 1)
    for index, (token, top) in enumerate(zip(tokens, tops, strict=False)):
        listed = tuple(entries(top, "top_tokens"))
        rows.append(Row(start + index, listed, token, len(listed)))
    ids = [entry.token for entry in prefill]
    given = request.get("parameters")
    return response_of(
        rows,
        where,
        format="TGI details",
        prompt=[token for token in ids if token is not None] if ids and None not in ids else None,
        has_prompt_rows=bool(prefill),
        text=text_of(payload.get("generated_text")),
        settings=settings_of(given if isinstance(given, dict) else request),
    )


def read_ollama(payload: Payload, where: str, request: Payload) -> Response:
    """Ollama's `/api/generate` or `/api/chat`: texts and bytes, no token ids."""
    length = count_of(payload.get("prompt_eval_count"))
    message, options = payload.get("message"), request.get("options")
    text = message.get("content") if isinstance(message, dict) else payload.get("response")
    return response_of(
        content_rows(is_list(payload.get("logprobs") or [], "logprobs", where), max(0, (length or 1) - 1), where),
        where,
        format="Ollama",
        prompt=length,
        text=text_of(text),
        model=text_of(payload.get("model")),
        settings=settings_of(options if isinstance(options, dict) else request),
    )


def read_responses_api(payload: Payload, where: str, request: Payload) -> Response:
    """OpenAI's `/v1/responses`. Tokens of reasoning come before its text and have no rows, so that the text begins
    where the prompt ends only without them.
    """
    parts, output = output_texts(payload), payload.get("output")
    listed = [one for part in parts for one in is_list(part.get("logprobs") or [], "logprobs", where)]
    is_text_only = isinstance(output, list) and len(output) == 1
    length = count_of(_object(payload.get("usage")).get("input_tokens")) if is_text_only else None
    return response_of(
        content_rows(listed, max(0, (length or 1) - 1), where),
        where,
        format="OpenAI responses",
        prompt=length,
        text="".join(f"{part.get('text', '')}" for part in parts),
        model=text_of(payload.get("model")),
        settings=settings_of({**payload, **request}),
    )
