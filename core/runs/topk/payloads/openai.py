"""Responses of OpenAI's form: completions, chat and vLLM's additions to both; llama.cpp, Ollama and others speak it.

Formats as in the engines' sources: vllm/entrypoints/openai/completion/protocol.py and vllm/logprobs.py (0.32), Ollama's
docs/openapi.yaml, llama.cpp's tools/server.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ....errors import DumpError
from ..placeholders import DRAFTED
from ..records import Response
from .entries import (
    Entry,
    Row,
    content_rows,
    count_of,
    entry_of,
    first_row,
    is_list,
    is_object,
    response_of,
    text_of,
    tokens_of,
)

Payload = Mapping[str, Any]
_PROMPTS = ("prompt", "text", "inputs", "input", "input_ids", "prompt_token_ids", "token_ids")  # names in requests
_COUNTS = ("n_probs", "top_logprobs", "logprobs")  # what requests call the number of values per row
_SETTINGS = (
    "temperature", "top_p", "top_k", "min_p", "seed", "cache_prompt", "repeat_penalty", "presence_penalty",
    "frequency_penalty", "cache_salt", "stream",
)  # fmt: skip


def read_choices(payload: Payload, source: str, request: Payload) -> Iterator[Response]:
    """Read every choice of a completions or chat response, vLLM's `/inference/v1/generate` included."""
    usage = object_of(payload.get("usage"))
    about: dict[str, Any] = {
        "model": text_of(payload.get("model")),
        "cached": count_of(object_of(usage.get("prompt_tokens_details")).get("cached_tokens")),
        "settings": settings_of(request) | drafts_of(payload),
    }
    choices = [is_object(one, "a choice", source) for one in is_list(payload["choices"], "choices", source)]
    indices = [count_of(choice.get("index")) for choice in choices]
    if None not in indices and len(set(indices)) == len(indices):
        choices = sorted(choices, key=lambda choice: choice["index"])
    has_prompt = bool(prompt_key(request)) or any(choice.get("prompt_token_ids") for choice in choices)
    if len(choices) > 1 and not has_prompt:
        about["warnings"] = (
            f"Its {len(choices)} choices are taken for answers to one prompt; if the request had several, save it too:"
            ' {"request": ..., "response": ...}.',
        )
    for number, choice in enumerate(choices):
        at = f"{source}, choice {number}" if len(choices) > 1 else source
        own = request_of_choice(request, number, len(choices))
        is_of_all = len(choices) > 1 and own is not request  # usage then counts the tokens of all prompts
        length = None if is_of_all else count_of(usage.get("prompt_tokens"))
        of_prompt = {name: choice.get(name) or payload.get(name) for name in ("prompt_token_ids", "prompt_logprobs")}
        yield _choice({**choice, **of_prompt}, at, own, length, about)


def _choice(choice: Payload, source: str, request: Payload, length: int | None, about: dict[str, Any]) -> Response:
    prompt = choice.get("prompt_token_ids") or prompt_ids(request)
    prompt_tokens: Any = tokens_of(prompt, "prompt_token_ids", source) if prompt else length
    of_prompt, logprobs, ids = choice.get("prompt_logprobs"), object_of(choice.get("logprobs")), choice.get("token_ids")
    rows: list[Row] = []
    if of_prompt:
        entries = is_list(of_prompt, "prompt_logprobs", source)
        rows = list(_prompt_rows(entries, prompt_tokens if isinstance(prompt_tokens, tuple) else (), source))
        prompt_tokens = len(entries) if prompt_tokens is None else prompt_tokens
    values = logprobs.get("token_logprobs")  # of the prompt first: nothing scores the very first token, so it has null
    is_echoed = isinstance(values, list) and values[:1] == [None]
    if isinstance(logprobs.get("content"), list):
        rows += content_rows(logprobs["content"], prompt_tokens, source)
    elif logprobs.get("tokens") is not None:
        start = -1 if is_echoed or request.get("echo") else first_row(prompt_tokens)
        rows += _listed_rows(logprobs, start, ids, source)
    engine = "vLLM" if of_prompt or "token_ids" in choice else "OpenAI"
    return response_of(
        rows,
        source,
        format=f"{engine} {'chat' if 'message' in choice else 'completions'}",
        prompt=prompt_tokens,
        generated=tokens_of(ids, "token_ids", source) if ids else (),
        has_prompt_rows=bool(of_prompt) or is_echoed,
        top_logprobs=next((count for name in _COUNTS if (count := count_of(request.get(name)))), None),
        text=text_of(choice.get("text") or object_of(choice.get("message")).get("content")),
        prompt_key=prompt_key(request),
        **about,
    )


def object_of(value: object) -> Payload:
    """Return the value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


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


def settings_of(echoed: Payload) -> dict[str, str]:
    """Return settings that a payload echoes, temperature and the like, as texts."""
    return {name: f"{echoed[name]}" for name in _SETTINGS if isinstance(echoed.get(name), int | float | str)}


def drafts_of(payload: Payload) -> dict[str, str]:
    """Return how many drafted tokens were accepted, as llama.cpp's timings say."""
    accepted = count_of(object_of(payload.get("timings")).get(DRAFTED))
    return {} if accepted is None else {DRAFTED: f"{accepted}"}


def _prompt_rows(items: Sequence[Any], prompt: Sequence[int], source: str) -> Iterator[Row]:
    """Read vLLM's `prompt_logprobs`: entry i scores token i, so it is the row of position i - 1; the first is null.

    The token of the prompt is in each with its rank, first if the prompt is not known; others are ranked from 1.
    """
    if prompt and len(prompt) != len(items):
        raise DumpError(f"{source}: prompt_logprobs of {len(items)} tokens for a prompt of {len(prompt)}.")
    for index, row in enumerate(items):
        at = f"{source}, prompt_logprobs {index}"
        if row is None:
            continue
        if index == 0:
            raise DumpError(f"{at}: is not null; expected null for the first token, which nothing scores.")
        entries = []
        for key, value in is_object(row, "a row", at).items():
            if not key.isdecimal() or len(key) > 10:
                raise DumpError(f"{at}: the key {key[:60]!r} is not a token id.")
            entry = is_object(value, f"token {key}", at)
            entries.append(entry_of({**entry, "id": int(key), "token": entry.get("decoded_token")}, at))
        if not entries:
            raise DumpError(f"{at}: holds no token.")
        target = entries[0]
        if prompt:  # a server that masks tokens (top-p, a grammar) may leave it out
            lacking = Entry(prompt[index], None, None)
            target = next((entry for entry in entries if entry.token == prompt[index]), lacking)
        ranks = {entry.rank for entry in entries}
        best = next(rank for rank in range(len(entries) + 1) if rank + 1 not in ranks)
        yield Row(index - 1, tuple(entries), target, best if None not in ranks else None)


def _listed_rows(logprobs: Payload, start: int, token_ids: object, source: str) -> Iterator[Row]:
    """Read the four lists of completions. start: position of the first row, -1 of echoed ones: the prompt's first token
    has no row. token_ids: of the emitted tokens, if the payload has them outside these lists.
    """
    tokens, values = (is_list(logprobs.get(name), name, source) for name in ("tokens", "token_logprobs"))
    tops = is_list(logprobs.get("top_logprobs") or [None] * len(tokens), "top_logprobs", source)
    if not len(tokens) == len(values) == len(tops):
        raise DumpError(
            f"{source}: {len(tokens)} tokens, {len(values)} values and {len(tops)} lists; expected as many."
        )
    id_list = logprobs.get("token_ids") or token_ids
    ids = tokens_of(id_list, "token_ids", source) if isinstance(id_list, list) and len(id_list) == len(tokens) else None
    for index, (token, value, top) in enumerate(zip(tokens, values, tops, strict=True)):
        at = f"{source}, token {index}"
        is_id = type(token) is int  # mlx-lm before 0.25
        if start + index < 0:
            continue
        target = entry_of({"id" if is_id else "token": token, "logprob": value}, at)
        if target.token is None and ids is not None:
            target = replace(target, token=ids[index])
        entries = []
        for key, each in is_object(top or {}, "its list of the best", at).items():
            name = {"id": int(key)} if is_id and key.isdecimal() else {"token": key}
            entry = entry_of({**name, "logprob": each}, at)
            is_chosen = entry.token is None and (entry.text, entry.value) == (target.text, target.value)
            entries.append(target if is_chosen else entry)
        yield Row(start + index, tuple(entries), target, None if entries else 0)
