"""Responses of engines, one reader a format.

Formats as in the engines' sources: vllm/entrypoints/openai/completion/protocol.py and vllm/logprobs.py (0.32),
llama.cpp's tools/server/server-task.cpp, sglang/srt/managers/tokenizer_manager.py (0.5.23), TGI's docs (`prefill` and
`tokens` are lists of id, text and logprob, `top_tokens` a list for each), Ollama's docs/openapi.yaml, OpenAI's docs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from ....errors import DumpError
from ..placeholders import DRAFTED
from ..records import Response
from .entries import Entry, Id, Row, Sent, convert, count_of, entry_of, first_row, response_of, rows_of, tokens_of
from .streams import output_texts

Payload = Mapping[str, Any]
_PROMPTS = ("prompt", "text", "inputs", "input", "input_ids", "prompt_token_ids", "token_ids")  # names in requests
_COUNTS = ("n_probs", "top_logprobs", "top_logprobs_num", "logprobs")  # what requests call the values per row


def read_choices(payload: Payload, source: str, request: Payload) -> Iterator[Response]:
    """Read every choice of a completions or chat response, vLLM's `/inference/v1/generate` included."""
    choices = convert(payload["choices"], list[dict[str, Any]], f"{source}, choices")
    indices = [count_of(choice.get("index")) for choice in choices]
    if None not in indices and len(set(indices)) == len(indices):
        choices = sorted(choices, key=lambda choice: choice["index"])
    has_prompt = bool(prompt_key(request)) or any(choice.get("prompt_token_ids") for choice in choices)
    warnings = (
        f"Its {len(choices)} choices are taken for answers to one prompt; if the request had several, save it too:"
        ' {"request": ..., "response": ...}.',
    )
    for number, choice in enumerate(choices):
        at = f"{source}, choice {number}" if len(choices) > 1 else source
        own = request_of_choice(request, number, len(choices))
        is_of_all = len(choices) > 1 and own is not request  # usage then counts the tokens of all prompts
        length = None if is_of_all else count_of(_at(payload, "usage", "prompt_tokens"))
        of_prompt = {name: choice.get(name) or payload.get(name) for name in ("prompt_token_ids", "prompt_logprobs")}
        about = _about(payload, own) | {"warnings": () if has_prompt or len(choices) == 1 else warnings}
        yield _choice({**choice, **of_prompt}, at, own, length, about)


def _choice(choice: Payload, source: str, request: Payload, length: int | None, about: dict[str, Any]) -> Response:
    ids = tokens_of(choice["prompt_token_ids"] or prompt_ids(request), "prompt_token_ids", source)
    prompt: Any = ids or length
    of_prompt, logprobs = choice["prompt_logprobs"], choice.get("logprobs")
    values = _at(logprobs, "token_logprobs")  # of the prompt first: nothing scores the very first token, so it has null
    is_echoed = isinstance(values, list) and values[:1] == [None]
    generated = tokens_of(choice.get("token_ids"), "token_ids", source)
    rows: list[Row] = []
    if of_prompt:
        rows = list(_prompt_rows(of_prompt, ids, source))
        prompt = len(of_prompt) if prompt is None else prompt
    if isinstance(content := _at(logprobs, "content"), list):
        rows += rows_of(content, first_row(prompt), source)
    elif _at(logprobs, "tokens") is not None:
        start = -1 if is_echoed or request.get("echo") else first_row(prompt)
        rows += _listed_rows({"token_ids": generated, **logprobs}, start, source)  # type: ignore[dict-item]
    engine = "vLLM" if of_prompt or "token_ids" in choice else "OpenAI"
    return response_of(
        rows,
        source,
        format=f"{engine} {'chat' if 'message' in choice else 'completions'}",
        prompt=prompt,
        generated=generated,
        has_prompt_rows=bool(of_prompt) or is_echoed,
        text=text_of(choice.get("text") or _at(choice, "message", "content")),
        **about,
    )


class _PromptToken(msgspec.Struct):
    logprob: float | None = None
    rank: int | None = None
    decoded_token: str | None = None


def _prompt_rows(items: object, prompt: Sequence[int], source: str) -> Iterator[Row]:
    """Read vLLM's `prompt_logprobs`: entry i scores token i, so it is the row of position i - 1; the first is null.

    The token of the prompt is in each with its rank, first if the prompt is not known; others are ranked from 1.
    """
    rows = convert(items, list[dict[Id, _PromptToken] | None], f"{source}, prompt_logprobs")
    if prompt and len(prompt) != len(rows):
        raise DumpError(f"{source}: prompt_logprobs of {len(rows)} tokens for a prompt of {len(prompt)}.")
    for index, row in enumerate(rows):
        at = f"{source}, prompt_logprobs {index}"
        if row is None:
            continue
        if not row or not index:
            raise DumpError(f"{at}: expected null for the first token, which nothing scores, then tokens.")
        entries = [entry_of(Sent(one.logprob, token, one.decoded_token), at) for token, one in row.items()]
        target = entries[0]
        if prompt:  # a server that masks tokens (top-p, a grammar) may leave it out
            lacking = Entry(prompt[index], None, None)
            target = next((entry for entry in entries if entry.token == prompt[index]), lacking)
        ranks = {one.rank for one in row.values()}
        best = next(rank for rank in range(len(entries) + 1) if rank + 1 not in ranks)
        yield Row(index - 1, entries, target, best if None not in ranks else None)


class _Lists(msgspec.Struct):
    tokens: list[str]
    token_logprobs: list[float | str | None]
    top_logprobs: list[dict[str, float | str | None] | None] | None = None
    token_ids: list[Id] | None = None


def _listed_rows(logprobs: Payload, start: int, source: str) -> Iterator[Row]:
    """Read the four lists of completions. start: position of the first row, -1 of echoed ones: the prompt's first token
    has no row. Ids of the emitted tokens count if no other token was sent.
    """
    lists = convert(logprobs, _Lists, source)
    count, tops = len(lists.tokens), lists.top_logprobs or [None] * len(lists.tokens)
    if not count == len(lists.token_logprobs) == len(tops):
        values = f"{len(lists.token_logprobs)} values and {len(tops)} lists"
        raise DumpError(f"{source}: {count} tokens, {values}; expected as many.")
    has_ids = lists.token_ids and len(lists.token_ids) == count and not any(tops)
    ids = lists.token_ids if has_ids else [None] * count
    for position, (text, value, token, top) in enumerate(
        zip(lists.tokens, lists.token_logprobs, ids or (), tops, strict=True), start
    ):
        if position >= 0:
            at = f"{source}, token {position - start}"
            entries = [entry_of(Sent(each, token=key), at) for key, each in (top or {}).items()]
            target = entry_of(Sent(value, token, token=text), at)
            yield Row(position, entries, target, None if entries else 0)


def read_completion(payload: Payload, source: str, request: Payload) -> Response:
    """Read llama.cpp: ids, texts and log-probabilities of the whole row, taken before sampling."""
    tokens = payload["completion_probabilities"]
    if isinstance(tokens, list) and any(_at(token, "prob") is not None for token in tokens):
        raise DumpError(f"{source}: holds probabilities after sampling; request it without `post_sampling_probs`.")
    prompt: Any = prompt_ids(request) or count_of(payload.get("tokens_evaluated"))
    about = _about(payload, {"n_probs": _at(payload, "generation_settings", "n_probs"), **request})
    return response_of(
        rows_of(tokens, first_row(prompt), source),
        source,
        format="llama.cpp completion",
        prompt=prompt,
        generated=tokens_of(payload.get("tokens"), "tokens", source),
        text=text_of(payload.get("content")),
        **about | {"cached": count_of(_at(payload, "timings", "cache_n"))},
    )


def read_details(payload: Payload, source: str, request: Payload) -> Response:
    """Read TGI. The first token of the prompt has no row; what is before the first of `prefill` is not known."""
    details = payload["details"]
    prefill = rows_of(details.get("prefill"), -1, source)
    tokens = convert(details.get("tokens") or [], list[dict[str, Any]], f"{source}, tokens")
    tops = convert(details.get("top_tokens") or [None] * len(tokens), list[Any], f"{source}, top_tokens")
    items = [{**token, "top_logprobs": top} for token, top in zip(tokens, tops, strict=False)]
    ids = [row.target.token for row in prefill]
    return response_of(
        [*(row for row in prefill[1:] if row.target.value is not None), *rows_of(items, first_row(len(ids)), source)],
        source,
        format="TGI details",
        prompt=ids if ids and None not in ids else None,  # type: ignore[arg-type]
        has_prompt_rows=bool(prefill),
        text=text_of(payload.get("generated_text")),
        **_about(payload, request),
    )


def read_ollama(payload: Payload, source: str, request: Payload) -> Response:
    """Read Ollama's `/api/generate` or `/api/chat`: texts and bytes, no token ids."""
    length = count_of(payload.get("prompt_eval_count"))
    return response_of(
        rows_of(payload.get("logprobs"), first_row(length), source),
        source,
        format="Ollama",
        prompt=length,
        text=text_of(_at(payload, "message", "content") or payload.get("response")),
        **_about(payload, request),
    )


def read_responses_api(payload: Payload, source: str, request: Payload) -> Response:
    """Read OpenAI's `/v1/responses`. Tokens of reasoning come before its text and have no rows, so that the text begins
    at the prompt's end only without them.
    """
    parts, output = output_texts(payload), payload.get("output")
    is_text_only = isinstance(output, list) and len(output) == 1
    length = count_of(_at(payload, "usage", "input_tokens")) if is_text_only else None
    entries = [one for part in parts for one in convert(part.get("logprobs") or [], list[Any], source)]
    return response_of(
        rows_of(entries, first_row(length), source),
        source,
        format="OpenAI responses",
        prompt=length,
        text="".join(f"{part.get('text', '')}" for part in parts),
        **_about(payload, request),
    )


def read_generate(payload: Payload, source: str, request: Payload) -> Response:
    """Read SGLang: rows of the prompt, as far as they were requested, then of what was generated."""
    meta = convert(payload["meta_info"], dict[str, Any], source)
    prompt: Any = prompt_ids(request) or count_of(meta.get("prompt_tokens"))
    prompt_rows = rows_of(_triples(meta, "input", source), 0, source)
    prompt = prompt or len(prompt_rows) or None
    # The last rows of the prompt end at its last token; the first token of all has no row.
    shift = first_row(prompt) - len(prompt_rows)
    rows = [row._replace(position=row.position + shift) for row in prompt_rows]
    rows = [row for row in rows if row.position >= 0 and (row.top or row.target.value is not None)]
    return response_of(
        [*rows, *rows_of(_triples(meta, "output", source), first_row(prompt), source)],
        source,
        format="SGLang generate",
        prompt=prompt,
        generated=tokens_of(payload.get("output_ids"), "output_ids", source),
        has_prompt_rows=bool(rows),
        text=text_of(payload.get("text")),
        **_about(payload, request) | {"cached": count_of(meta.get("cached_tokens"))},
    )


def _triples(meta: Payload, part: str, source: str) -> list[dict[str, Any]]:
    """Return the tokens of one part, 'input' or 'output', each with its list of the best, as chat has them."""
    name = f"{part}_top_logprobs"
    if f"{name}_shape" in meta:
        raise DumpError(f"{source}: {name} is one flat array; request lists of triples.")
    tokens = convert(meta.get(f"{part}_token_logprobs") or [], list[list[Any]], f"{source}, {part}_token_logprobs")
    tops = convert(meta.get(name) or [None] * len(tokens), list[list[list[Any]] | None], f"{source}, {name}")
    if len(tops) != len(tokens):
        raise DumpError(f"{source}: {len(tokens)} {part} tokens and {len(tops)} lists; expected as many.")

    def token(triple: Sequence[Any]) -> dict[str, Any]:
        return dict(zip(("logprob", "id", "text"), triple, strict=False))

    return [
        {**token(triple), "top_logprobs": [token(one) for one in top or ()]}
        for triple, top in zip(tokens, tops, strict=True)
    ]


def _at(payload: object, *names: str) -> Any:
    """Return what a payload has at a path of names, None if it has none."""
    for name in names:
        payload = payload.get(name) if isinstance(payload, Mapping) else None
    return payload


def text_of(value: object) -> str:
    """Return the value if it is a text, else ''."""
    return value if isinstance(value, str) else ""


def _about(payload: Payload, request: Payload) -> dict[str, Any]:
    """Return what responses of every format may say of themselves and of their request."""
    drafted = count_of(_at(payload, "timings", DRAFTED))
    return {
        "model": text_of(payload.get("model")),
        "cached": count_of(_at(payload, "usage", "prompt_tokens_details", "cached_tokens")),
        "settings": {} if drafted is None else {DRAFTED: f"{drafted}"},
        "top_logprobs": next((count for name in _COUNTS if (count := count_of(request.get(name)))), None),
        "prompt_key": prompt_key(request),
    }


def prompt_ids(request: Payload) -> list[int] | None:
    """Return the token ids of a request's prompt, None if it is a text or several prompts."""
    for name in ("prompt", "input_ids", "prompt_token_ids", "token_ids"):
        ids = request.get(name)
        if isinstance(ids, list) and ids and all(type(token) is int for token in ids):
            return ids
    return None


def request_of_choice(request: Payload, index: int, count: int) -> Payload:
    """Return the request with the prompt of one of `count` answers alone; answers to a prompt follow each other."""
    for name in _PROMPTS:
        prompts = request.get(name)
        if not isinstance(prompts, list) or not prompts or not all(isinstance(one, str | list) for one in prompts):
            continue
        if count % len(prompts) == 0:
            return {**request, name: prompts[index * len(prompts) // count]}
    return request


def prompt_key(request: Payload) -> str:
    """Return the prompt of a request as a text, '' if it has none."""
    prompt = next((request[name] for name in (*_PROMPTS, "messages") if request.get(name)), None)
    return "" if prompt is None else json.dumps(prompt, sort_keys=True)
