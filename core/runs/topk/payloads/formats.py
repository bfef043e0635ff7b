"""Responses of llama.cpp's /completion, SGLang's /generate, Hugging Face's TGI, Ollama and OpenAI's /v1/responses.

Formats as in llama.cpp's tools/server/server-task.cpp, sglang/srt/managers/tokenizer_manager.py (0.5.23), TGI's docs
(`prefill` and `tokens` are lists of id, text and logprob, `top_tokens` a list for each of them), Ollama's
docs/openapi.yaml and OpenAI's reference.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ....errors import DumpError
from ..records import MAX_ENTRIES, MAX_POSITIONS, Response
from .entries import content_rows, count_of, is_list, is_object, response_of, text_of, tokens_of
from .openai import Payload, drafts_of, object_of, prompt_ids, settings_of
from .streams import output_texts


def read_completion(payload: Payload, source: str, request: Payload) -> Response:
    """Read llama.cpp: ids, texts and log-probabilities of the whole row, taken before sampling; probabilities after
    sampling are processed values, of kind 'prob'.
    """
    probabilities = is_list(payload["completion_probabilities"], "completion_probabilities", source)
    settings = object_of(payload.get("generation_settings"))
    prompt: Any = prompt_ids(request) or count_of(payload.get("tokens_evaluated"))
    is_sampled = bool(probabilities) and isinstance(probabilities[0], dict) and "top_probs" in probabilities[0]
    tokens = payload.get("tokens")
    return response_of(
        content_rows(probabilities, prompt, source),
        source,
        format="llama.cpp completion",
        prompt=prompt,
        generated=tokens_of(tokens, "tokens", source) if tokens else (),
        top_logprobs=count_of(request.get("n_probs")) or count_of(settings.get("n_probs")),
        values="prob" if is_sampled else "logprob",
        processed=is_sampled,
        model=text_of(payload.get("model")),
        text=text_of(payload.get("content")),
        cached=count_of(object_of(payload.get("timings")).get("cache_n")),
        settings=settings_of({**settings, **request}) | drafts_of(payload),
    )


def read_details(payload: Payload, source: str, request: Payload) -> Response:
    """Read TGI. The first token of the prompt has no row; what is before the first of `prefill` is not known."""
    details = is_object(payload["details"], "details", source)
    prefill, tokens = (is_list(details.get(name) or [], name, source) for name in ("prefill", "tokens"))
    tops = is_list(details.get("top_tokens") or [[]] * len(tokens), "top_tokens", source)
    prompt_rows = content_rows(prefill, 0, source)
    items = [
        {**is_object(token, "a token", source), "top_logprobs": top} for token, top in zip(tokens, tops, strict=False)
    ]
    ids = [row.target.token for row in prompt_rows if row.target]
    parameters = request.get("parameters")
    return response_of(
        [
            *(
                replace(row, position=row.position - 1)
                for row in prompt_rows[1:]
                if row.target and row.target.value is not None
            ),
            *content_rows(items, len(prefill), source),
        ],
        source,
        format="TGI details",
        prompt=ids if ids and None not in ids else None,  # type: ignore[arg-type]
        has_prompt_rows=bool(prefill),
        text=text_of(payload.get("generated_text")),
        settings=settings_of(parameters if isinstance(parameters, dict) else request),
    )


def read_ollama(payload: Payload, source: str, request: Payload) -> Response:
    """Read Ollama's `/api/generate` or `/api/chat`: texts and bytes, no token ids."""
    length = count_of(payload.get("prompt_eval_count"))
    message, options = payload.get("message"), request.get("options")
    return response_of(
        content_rows(is_list(payload.get("logprobs") or [], "logprobs", source), length, source),
        source,
        format="Ollama",
        prompt=length,
        text=text_of(message.get("content") if isinstance(message, dict) else payload.get("response")),
        model=text_of(payload.get("model")),
        settings=settings_of(options if isinstance(options, dict) else request),
    )


def read_responses_api(payload: Payload, source: str, request: Payload) -> Response:
    """Read OpenAI's `/v1/responses`. Tokens of reasoning come before its text and have no rows, so that the text begins
    at the prompt's end only without them.
    """
    parts, output = output_texts(payload), payload.get("output")
    entries = [one for part in parts for one in is_list(part.get("logprobs") or [], "logprobs", source)]
    is_text_only = isinstance(output, list) and len(output) == 1
    length = count_of(object_of(payload.get("usage")).get("input_tokens")) if is_text_only else None
    return response_of(
        content_rows(entries, length, source),
        source,
        format="OpenAI responses",
        prompt=length,
        text="".join(f"{part.get('text', '')}" for part in parts),
        model=text_of(payload.get("model")),
        settings=settings_of({**payload, **request}),
    )


def read_generate(payload: Payload, source: str, request: Payload) -> Response:
    """Read SGLang: rows of the prompt, as far as they were requested, then of what was generated."""
    meta = is_object(payload["meta_info"], "meta_info", source)
    prompt: Any = prompt_ids(request) or count_of(meta.get("prompt_tokens"))
    prompt_rows = content_rows(_triples(meta, "input", source), 0, source)
    if prompt_rows and not prompt:
        prompt = len(prompt_rows)
    # The last rows of the prompt end at its last token; the first token of all has no row.
    shift = (prompt if isinstance(prompt, int) else len(prompt or ())) - len(prompt_rows) - 1
    rows = [replace(row, position=row.position + shift) for row in prompt_rows]
    rows = [row for row in rows if row.position >= 0 and row.target and (row.top or row.target.value is not None)]
    generated = payload.get("output_ids")
    return response_of(
        [*rows, *content_rows(_triples(meta, "output", source), prompt, source)],
        source,
        format="SGLang generate",
        prompt=prompt,
        generated=tokens_of(generated, "output_ids", source) if generated else (),
        has_prompt_rows=bool(rows),
        top_logprobs=count_of(request.get("top_logprobs_num")) or None,
        text=text_of(payload.get("text")),
        cached=count_of(meta.get("cached_tokens")),
        settings=settings_of({**request, **(request.get("sampling_params") or {})}),
    )


def _triples(meta: Payload, part: str, source: str) -> list[dict[str, Any]]:
    """Return the tokens of one part, 'input' or 'output', each with its list of the best, as chat has them."""
    triples = is_list(meta.get(f"{part}_token_logprobs") or [], f"{part}_token_logprobs", source)
    name = f"{part}_top_logprobs"
    tops = is_list(meta.get(name) or _flat(meta, name, source) or [None] * len(triples), name, source)
    if len(tops) != len(triples):
        raise DumpError(f"{source}: {len(triples)} {part} tokens and {len(tops)} lists; expected as many.")

    def token(triple: object) -> dict[str, Any]:
        parts = is_list(triple, "an entry", source)
        if not 2 <= len(parts) <= 3:
            raise DumpError(f"{source}: an entry has {len(parts)} parts; expected log-probability, token id and text.")
        return dict(zip(("logprob", "id", "text"), parts, strict=False))

    return [
        {**token(triple), "top_logprobs": [token(one) for one in is_list(top or [], name, source)]}
        for triple, top in zip(triples, tops, strict=True)
    ]


def _flat(meta: Payload, name: str, source: str) -> Sequence[Any] | None:
    """Return lists out of one array of values and one of ids, plain or base64: little-endian float32 and int32."""
    shape, skipped = meta.get(f"{name}_shape"), count_of(meta.get(f"{name}_null_prefix", 0))
    if shape is None:
        return None
    sizes = [count_of(size) for size in is_list(shape, f"{name}_shape", source)]
    rows, k = sizes if len(sizes) == 2 else (None, None)
    if rows is None or k is None or skipped is None or skipped > rows or rows > MAX_POSITIONS or rows * k > MAX_ENTRIES:
        raise DumpError(f"{source}: {name} declares no valid shape; expected rows and values per row.")
    arrays = []
    for what, dtype in (("val", "<f4"), ("idx", "<i4")):
        values = meta.get(f"{name}_{what}_flat_b64") or meta.get(f"{name}_{what}_flat")
        if isinstance(values, str):
            try:
                values = np.frombuffer(base64.b64decode(values, validate=True), dtype).tolist()
            except (binascii.Error, ValueError):
                raise DumpError(f"{source}: a base64 array is damaged.") from None
        if not isinstance(values, list) or len(values) != (rows - skipped) * k:
            raise DumpError(f"{source}: {name}_{what} does not hold {rows - skipped:,} rows of {k:,}.")
        arrays.append(values)
    pairs = list(zip(*arrays, strict=True))
    return [None] * skipped + [[list(pair) for pair in pairs[at * k : at * k + k]] for at in range(rows - skipped)]
