"""Responses of OpenAI's form: completions, chat and vLLM's additions to both; llama.cpp, Ollama and others speak it.

Formats as in the engines' sources: vllm/entrypoints/openai/completion/protocol.py and vllm/logprobs.py (0.32), Ollama's
docs/openapi.yaml, llama.cpp's tools/server.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ....errors import DumpError
from ..placeholders import DRAFTED
from ..records import Response
from .entries import count_of, is_list, is_object, response_of, text_key, token_of, tokens_of, value_of
from .rows import Entry, Row

_PROMPTS = ("prompt", "text", "inputs", "input", "input_ids", "prompt_token_ids", "token_ids")  # names in requests
_COUNTS = ("logprobs", "top_logprobs", "n_probs")  # what requests call the number of values a row


def read_choices(payload: Mapping[str, Any], where: str, request: Mapping[str, Any]) -> Iterator[Response]:
    """Every choice of a completions or chat response, vLLM's `/inference/v1/generate` included."""
    usage = payload.get("usage") if isinstance(payload.get("usage"), dict) else {}
    details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
    about: dict[str, Any] = {
        "model": text_of(payload.get("model")),
        "cached": count_of(details.get("cached_tokens")) if isinstance(details, dict) else None,
        "settings": settings_of(request) | drafts_of(payload),
    }
    listed = [is_object(one, "a choice", where) for one in is_list(payload["choices"], "choices", where)]
    indices = [count_of(choice.get("index")) for choice in listed]
    if None not in indices and len(set(indices)) == len(indices):
        listed = [choice for _, choice in sorted(zip(indices, listed, strict=True), key=lambda pair: pair[0] or 0)]
    has_prompt = bool(prompt_key(request)) or any(choice.get("prompt_token_ids") for choice in listed)
    if len(listed) > 1 and not has_prompt:
        about["warnings"] = (
            f"Its {len(listed)} choices are taken for answers to one prompt; if the request had several, save it too:"
            ' {"request": ..., "response": ...}.',
        )
    for number, choice in enumerate(listed):
        at = f"{where}, choice {number}" if len(listed) > 1 else where
        own = request_of_choice(request, number, len(listed))
        is_of_all = len(listed) > 1 and own is not request  # usage then counts the tokens of all prompts
        yield _choice(choice, payload, at, own, {} if is_of_all else usage, about)


def _choice(
    choice: Mapping[str, Any],
    payload: Mapping[str, Any],
    where: str,
    request: Mapping[str, Any],
    usage: Any,
    about: dict[str, Any],
) -> Response:
    prompt = choice.get("prompt_token_ids") or payload.get("prompt_token_ids") or prompt_ids(request)
    length = count_of(usage.get("prompt_tokens")) if isinstance(usage, dict) else None
    known: Any = tokens_of(prompt, "prompt_token_ids", where) if prompt else length
    of_prompt = choice.get("prompt_logprobs") or payload.get("prompt_logprobs")
    rows: list[Row] = []
    if of_prompt:
        listed = is_list(of_prompt, "prompt_logprobs", where)
        rows = list(_prompt_rows(listed, known if isinstance(known, tuple) else (), where))
        if known is None:
            known = len(of_prompt)
    logprobs = choice.get("logprobs")
    start = max(0, (known if isinstance(known, int) else len(known or (0,))) - 1)
    name = "chat" if "message" in choice else "completions"
    is_vllm = bool(of_prompt) or "token_ids" in choice
    if isinstance(logprobs, dict) and isinstance(logprobs.get("content"), list):
        rows += content_rows(logprobs["content"], start, where)
    elif isinstance(logprobs, dict) and logprobs.get("tokens") is not None:
        echoed = bool(request.get("echo")) or _is_echoed(logprobs)
        rows += list(
            _listed_rows(logprobs, 0 if echoed else start, where, is_echoed=echoed, token_ids=choice.get("token_ids"))
        )
    return response_of(
        rows,
        where,
        format=f"{'vLLM' if is_vllm else 'OpenAI'} {name}",
        prompt=known,
        generated=tokens_of(choice["token_ids"], "token_ids", where) if choice.get("token_ids") else (),
        has_prompt_rows=bool(of_prompt) or (isinstance(logprobs, dict) and _is_echoed(logprobs)),
        asked=asked_of(request),
        text=text_of(choice.get("text") or _message(choice)),
        prompt_key=prompt_key(request),
        **about,
    )


def _message(choice: Mapping[str, Any]) -> object:
    message = choice.get("message")
    return message.get("content") if isinstance(message, dict) else ""


def text_of(value: object) -> str:
    """The value, if it is a text; else ''."""
    return value if isinstance(value, str) else ""


def asked_of(request: Mapping[str, Any]) -> int | None:
    """Values a row that a request asked for, where it says a count."""
    return next((found for name in reversed(_COUNTS) if (found := count_of(request.get(name)))), None)


def prompt_ids(request: Mapping[str, Any]) -> list[int] | None:
    """Token ids of a request's prompt, None where it is a text or several prompts."""
    for name in ("prompt", "input_ids", "prompt_token_ids", "token_ids"):
        found = request.get(name)
        if isinstance(found, list) and found and all(type(token) is int for token in found):
            return found
    return None


def request_of_choice(request: Mapping[str, Any], index: int, count: int) -> Mapping[str, Any]:
    """The request as if it had only the prompt of one of `count` answers; answers to a prompt follow each other."""
    for name in _PROMPTS:
        prompts = request.get(name)
        if not isinstance(prompts, list) or not prompts or not all(isinstance(one, str | list) for one in prompts):
            continue
        if count % len(prompts) == 0:
            return {**request, name: prompts[index * len(prompts) // count]}
    return request


def prompt_key(request: Mapping[str, Any]) -> str:
    """Return the prompt of a request as a text, '' if it has none."""
    asked = next((request[name] for name in (*_PROMPTS, "messages") if request.get(name)), None)
    return "" if asked is None else json.dumps(asked, sort_keys=True)


def settings_of(said: Mapping[str, Any]) -> dict[str, str]:
    """Settings that a payload echoes, temperature and the like, as texts."""
    names = ("temperature", "top_p", "top_k", "min_p", "seed", "cache_prompt", "repeat_penalty", "presence_penalty")
    more = ("frequency_penalty", "cache_salt", "stream")
    return {name: f"{said[name]}" for name in (*names, *more) if isinstance(said.get(name), int | float | str)}


def drafts_of(payload: Mapping[str, Any]) -> dict[str, str]:
    """Drafted tokens that were accepted, as llama.cpp's timings say."""
    timings = payload.get("timings")
    accepted = count_of(timings.get(DRAFTED)) if isinstance(timings, dict) else None
    return {} if accepted is None else {DRAFTED: f"{accepted}"}


def _prompt_rows(listed: Sequence[Any], prompt: Sequence[int], where: str) -> Iterator[Row]:
    """Rows of vLLM's `prompt_logprobs`: entry i scores token i, so it is the row of position i - 1; the first is null.

    The token of the prompt is in each with its rank, first where the prompt is not known; others are ranked from 1.
    """
    if prompt and len(prompt) != len(listed):
        raise DumpError(f"{where}: prompt_logprobs of {len(listed)} tokens for a prompt of {len(prompt)}.")
    for index, found in enumerate(listed):
        if found is None:
            continue
        at = f"{where}, prompt_logprobs {index}"
        if index == 0:
            raise DumpError(f"{at}: is not null; expected null for the first token, which nothing scores.")
        entries = []
        for key, value in is_object(found, "a row", at).items():
            said = is_object(value, f"token {key}", at)
            if not key.isascii() or not key.isdigit() or len(key) > 10:
                raise DumpError(f"{at}: the key {key[:60]!r} is no token id.")
            text = said.get("decoded_token")
            entries.append(
                Entry(
                    int(key),
                    text if isinstance(text, str) else None,
                    value_of(said.get("logprob"), at),
                    count_of(said.get("rank")),
                )
            )
        if not entries:
            raise DumpError(f"{at}: holds no token.")
        chosen = entries[0]
        if prompt:  # a server that masks tokens (top-p, a grammar) may leave it out
            lacking = Entry(prompt[index], None, None)
            chosen = next((entry for entry in entries if entry.token == prompt[index]), lacking)
        ranks = {entry.rank for entry in entries}
        best = next(rank for rank in range(len(entries) + 1) if rank + 1 not in ranks)
        yield Row(index - 1, tuple(entries), chosen, best if None not in ranks else None)


def content_rows(listed: Any, start: int, where: str) -> list[Row]:
    """Rows of chat's `content`: the chosen token and its list of the best, by id where the engine sends ids."""
    rows = []
    for index, found in enumerate(listed):
        at = f"{where}, generated token {index}"
        said = is_object(found, "a token", at)
        chosen = entry_of(said, at)
        top = tuple(
            entry_of(is_object(one, "an entry", at), at)
            for one in is_list(said.get("top_logprobs") or [], "top_logprobs", at)
        )
        # vLLM puts the chosen token first and cuts the list at k, also where it is none of the best.
        is_first = len(top) > 1 and top[0].value is not None and top[1].value is not None
        is_displaced = is_first and (top[0].value or 0.0) < (top[1].value or 0.0)
        rows.append(Row(start + index, top, chosen, len(top) - is_displaced))
    return rows


def entry_of(said: Mapping[str, Any], where: str) -> Entry:
    """One token with its log-probability, by id where there is one; texts that are cut characters are told by bytes."""
    token = said.get("id", said.get("token_id"))
    text = said.get("token", said.get("text"))
    if token is None and isinstance(text, str):
        token, text = text_key(text)
        data = said.get("bytes")
        if token is None and isinstance(data, list) and data and "\ufffd" in f"{text}":
            text = "".join(f"<0x{byte:02X}>" for byte in data if type(byte) is int and 0 <= byte < 256)
    if token is None and not isinstance(text, str):
        raise DumpError(f"{where}: a token has neither id nor text.")
    return Entry(
        None if token is None else token_of(token, where),
        text if isinstance(text, str) else None,
        value_of(said.get("logprob"), where),
        count_of(said.get("rank")),
    )


def _is_echoed(logprobs: Mapping[str, Any]) -> bool:
    """Return whether rows of the prompt come first: nothing scores the very first token, so its value is null."""
    values = logprobs.get("token_logprobs")
    return isinstance(values, list) and bool(values) and values[0] is None


def _listed_rows(
    logprobs: Mapping[str, Any], start: int, where: str, *, is_echoed: bool, token_ids: object = None
) -> Iterator[Row]:
    """Rows of completions' four lists; echoed ones begin with the prompt's first token, which has no row. token_ids:
    of the emitted tokens, if the payload has them beside these lists.
    """
    tokens = is_list(logprobs.get("tokens"), "tokens", where)
    values = is_list(logprobs.get("token_logprobs"), "token_logprobs", where)
    tops = logprobs.get("top_logprobs") or [None] * len(tokens)
    if not len(tokens) == len(values) == len(is_list(tops, "top_logprobs", where)):
        raise DumpError(f"{where}: {len(tokens)} tokens, {len(values)} values and {len(tops)} lists; expected as many.")
    beside = logprobs.get("token_ids") or token_ids
    ids = tokens_of(beside, "token_ids", where) if isinstance(beside, list) and len(beside) == len(tokens) else None
    for index, (token, value, top) in enumerate(zip(tokens, values, tops, strict=True)):
        at = f"{where}, token {index}"
        is_id = type(token) is int  # mlx-lm before 0.25
        if not isinstance(token, str) and not is_id:
            raise DumpError(f"{at}: is no text.")
        if is_echoed and index == 0:
            continue
        number, text = (token_of(token, at), None) if is_id else text_key(token)
        number = ids[index] if number is None and ids is not None else number
        chosen = Entry(number, text, value_of(value, at))
        listed = {} if top is None else is_object(top, "its list of the best", at)
        keys = [(int(key), None) if is_id and key.isdecimal() else text_key(key) for key in listed]
        entries = [Entry(*key, value_of(each, at)) for key, each in zip(keys, listed.values(), strict=True)]
        is_same = [(entry.text, entry.value) == (chosen.text, chosen.value) for entry in entries]
        named = tuple(chosen if same else entry for same, entry in zip(is_same, entries, strict=True))
        yield Row(start + index - is_echoed, named, chosen, None if named else 0)
