"""Responses of engines: recognized by content, one reader a format.

Formats as in the engines' sources: vllm/entrypoints/openai/completion/protocol.py and
vllm/logprobs.py (0.32), llama.cpp's tools/server/server-task.cpp,
sglang/srt/managers/tokenizer_manager.py (0.5.23), Ollama's docs/openapi.yaml, OpenAI's docs.
"""

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from ..errors import DumpError
from ..numerics.arrays import Record
from ..text import clean, plural
from .alignment import warn
from .bounded_json import documents, documents_of, error_in
from .entries import (
    Entry,
    Id,
    Row,
    Sent,
    convert,
    count_of,
    entry_of,
    first_row,
    response_of,
    rows_of,
    tokens_of,
)
from .placeholders import DRAFTED
from .records import Response
from .streams import whole_answers
from .values import values_in

Payload = Mapping[str, Any]
_OF_ROWS = "Save whole rows of logits: np.save('a.npy', np.array(rows, np.float32))."
_MOST_RESPONSES = 1 << 16
_MOST_NAMED = 5  # of failed requests
# names of prompts in requests
_PROMPTS = (
    "prompt",
    "text",
    "inputs",
    "input",
    "input_ids",
    "prompt_token_ids",
    "token_ids",
)
# paths of generated ids, first found first
_GENERATED = (
    "tokens",
    "output_ids",
    "token_ids",
)


class FailedRequestError(DumpError):
    """A request of a batch that has no answer."""


def read_responses(path: Path) -> list[Response]:
    """Read every response of a file: JSON, lists or lines of it, streams, or the output of a
    batch.
    """
    responses = []
    failures = []
    try:
        for source, document in whole_answers(documents(path)):
            try:
                responses.extend(read_payload(document, source))
            except FailedRequestError as failure:
                failures.append(str(failure))
            if len(responses) > _MOST_RESPONSES:
                raise DumpError(
                    f"{clean(path.name)}: holds more than {_MOST_RESPONSES:,} responses.",
                )
    except RecursionError:
        raise DumpError(f"{clean(path.name)}: its JSON is nested too deeply.") from None
    if not responses:
        raise DumpError(failures[0] if failures else f"{clean(path.name)}: holds no response.")
    if failures:
        more = f" and {len(failures) - _MOST_NAMED} more" if len(failures) > _MOST_NAMED else ""
        warning = f"Failed requests are left out: {'; '.join(failures[:_MOST_NAMED])}{more}."
        responses[0] = warn(responses[0], warning)
    return responses


def read_payload(payload: object, source: str, request: Payload | None = None) -> list[Response]:
    """Return the responses of a parsed document. request: the body that was sent for it, with
    tokens and settings; a document `{"request": ..., "response": ...}` has both, one of a batch
    `{"custom_id": ..., "response": ...}`.
    """
    # a stream that was logged as a text
    if isinstance(payload, str):
        streamed = documents_of(io.BytesIO(payload.encode()), source)
        logged = []
        for at, each in whole_answers(streamed):
            logged += read_payload(each, at, request)
        return logged
    if isinstance(payload, list):
        parts = ((f"{source}, response {number}", one) for number, one in enumerate(payload))
        answers = list(whole_answers(parts))
        requests = [
            request_of_choice(request or {}, at, len(answers)) for at in range(len(answers))
        ]
        each_with_own = zip(answers, requests, strict=True)
        return [one for (at, each), own in each_with_own for one in read_payload(each, at, own)]
    if isinstance(payload, int | float):
        raise DumpError(f"{source}: is a number, no response of an engine. {_OF_ROWS}")
    if not isinstance(payload, dict):
        raise DumpError(f"{source}: no response of an engine; expected a JSON object.")
    match payload:
        case {"response": {"status_code": _}} | {"custom_id": str() | int()}:
            return _of_batch(payload, source)
        case {"request": dict(own), "response": answer}:
            return read_payload(answer, source, own)
    if "choices" in payload and "completion_probabilities" not in payload:
        return list(_read_choices(payload, source, request or {}))
    for format, read, is_of_format in _READERS:
        if is_of_format(payload):
            about = _about(payload, request or {}, source)
            about |= read(payload, about["prompt"], source)
            return [response_of(source=source, format=format, **about)]
    is_error = payload.get("object") == "error"
    if error := payload.get("error") or (is_error and payload.get("message")):
        raise DumpError(f"{source}: the server answered with an error: {clean(error, 200)}")
    if values_in(payload) is not None:
        raise DumpError(
            f"{source}: holds embeddings or scores, no tokens; compare it with another such file.",
        )
    keys = ", ".join(f"'{clean(key, 30)}'" for key in list(payload)[:5])
    if isinstance(payload.get("logits"), list):
        raise DumpError(f"{source}: holds logits as JSON. {_OF_ROWS}")
    if payload.get("polygraphy_class") == "RunResults":
        raise DumpError(
            f"{source}: is RunResults of polygraphy. Save its arrays: np.savez('dump.npz',"
            " **{name: runs[0]['logits'] for name, runs in RunResults.load(...).items()}).",
        )
    raise DumpError(f"{source}: no response that is known here; its keys are {keys or 'none'}.")


def _of_batch(payload: Payload, source: str) -> list[Response]:
    """Return the responses to one request of a batch, as OpenAI's batch API and `vllm run-batch`
    write them.
    """
    name = payload.get("custom_id", payload.get("id", ""))
    answer = payload.get("response")
    error = payload.get("error")
    if "url" in payload and answer is None and not error:
        raise DumpError(
            f"{source}: is a request of a batch, and no answer; expected the batch's output file.",
        )
    answer = answer if isinstance(answer, dict) else {}
    status = answer.get("status_code")
    body = answer.get("body", answer or None)
    if error or not isinstance(body, dict) or (isinstance(status, int) and status >= 400):
        reason = error_in(error or body)
        if reason is None:
            reason = f"status {status}"
        raise FailedRequestError(f"{source}: request '{clean(name)}' failed: {clean(reason, 120)}")
    return [
        replace(response, prompt_key=f"custom_id {name}") for response in read_payload(body, source)
    ]


def _read_choices(payload: Payload, source: str, request: Payload) -> Iterator[Response]:
    """Read every choice of a completions or chat response, vLLM's `/inference/v1/generate`
    included.
    """
    choices = convert(payload["choices"], list[Record], f"{source}, choices")
    indices = [count_of(choice.get("index")) for choice in choices]
    if None not in indices and len(set(indices)) == len(indices):
        choices = sorted(choices, key=lambda choice: choice["index"])
    are_several = len(choices) > 1
    for number, choice in enumerate(choices):
        at = f"{source}, choice {number}" if are_several else source
        own = request_of_choice(request, number, len(choices))
        whole = {**payload, **choice}
        whole["prompt_logprobs"] = choice.get("prompt_logprobs") or payload.get("prompt_logprobs")
        ids = choice.get("prompt_token_ids") or payload.get("prompt_token_ids")
        if are_several and own is not request:
            # it counts the tokens of all prompts
            whole["usage"] = None
        about = _about(whole, {**own, "prompt": ids} if ids else own, at)
        about["prompt_key"] = _prompt_key(own)
        if are_several:
            # of all choices
            about["counted"] = None
        if are_several and not ids and not _prompt_key(request):
            about["warnings"] = (
                f"Its {len(choices)} choices are taken for answers to one prompt; if the request"
                ' had several, save it too: {"request": ..., "response": ...}.',
            )
        yield response_of(source=at, **about | _choice(whole, about["prompt"], at))


def _choice(choice: Payload, prompt: Any, source: str) -> Record:
    of_prompt = choice["prompt_logprobs"]
    logprobs = first_value(choice, dict, "logprobs") or {}
    # of the prompt first: nothing scores the very first token, so it has null
    values = logprobs.get("token_logprobs")
    is_echoed = isinstance(values, list) and values[:1] == [None]
    rows = []
    if of_prompt:
        rows = list(_prompt_rows(of_prompt, prompt if isinstance(prompt, tuple) else (), source))
        prompt = len(of_prompt) if prompt is None else prompt
    if isinstance(logprobs.get("content"), list):
        rows += rows_of(logprobs["content"], first_row(prompt), source)
    elif logprobs.get("tokens") is not None:
        start = -1 if is_echoed else first_row(prompt)
        rows += _listed_rows({"token_ids": choice.get("token_ids"), **logprobs}, start, source)
    engine = "vLLM" if of_prompt or "token_ids" in choice else "OpenAI"
    return {
        "rows": rows,
        "format": f"{engine} {'chat' if 'message' in choice else 'completions'}",
        "prompt": prompt,
        "has_prompt_rows": bool(of_prompt) or is_echoed,
    }


class _PromptToken(msgspec.Struct):
    logprob: float | None = None
    rank: int | None = None
    decoded_token: str | None = None


def _prompt_rows(items: object, prompt: Sequence[int], source: str) -> Iterator[Row]:
    """Read vLLM's `prompt_logprobs`: entry i scores token i, so it is the row of position i - 1;
    the first is null.

    The token of the prompt is in each with its rank, first if the prompt is not known; others are
    ranked from 1.
    """
    rows = convert(items, list[dict[Id, _PromptToken] | None], f"{source}, prompt_logprobs")
    if prompt and len(prompt) != len(rows):
        raise DumpError(
            f"{source}: prompt_logprobs of {len(rows)} tokens for a prompt of {len(prompt)}.",
        )
    for index, row in enumerate(rows):
        if row is None:
            continue
        at = f"{source}, prompt_logprobs {index}"
        if not row or not index:
            raise DumpError(
                f"{at}: expected null for the first token, which nothing scores, then tokens.",
            )
        entries = [
            entry_of(Sent(one.logprob, token, one.decoded_token), at) for token, one in row.items()
        ]
        target = entries[0]
        # a server that masks tokens (top-p, a grammar) may leave it out
        if prompt:
            lacking = Entry(prompt[index], None, None)
            target = next((entry for entry in entries if entry.token == prompt[index]), lacking)
        ranks = {one.rank for one in row.values()}
        best = next(rank for rank in range(len(entries) + 1) if rank + 1 not in ranks)
        yield Row(index - 1, entries, target, best if None not in ranks else None)


_Value = float | str | None


class _Lists(msgspec.Struct):
    """Lists of completions; mlx-lm's older server sends ids for texts, and [id, value] pairs."""

    tokens: list[str | Id]
    token_logprobs: list[_Value]
    top_logprobs: list[dict[str, _Value] | list[tuple[Id, _Value]] | None] | None = None
    token_ids: list[Id] | None = None


def _listed_rows(logprobs: Payload, start: int, source: str) -> Iterator[Row]:
    """Read the four lists of completions. start: position of the first row, -1 of echoed ones: the
    prompt's first token has no row. Ids of the emitted tokens count if no other token was sent.
    """
    lists = convert(logprobs, _Lists, source)
    count = len(lists.tokens)
    none = [None] * count
    tops = lists.top_logprobs or none
    if not count == len(lists.token_logprobs) == len(tops):
        values = f"{len(lists.token_logprobs)} values and {len(tops)} lists"
        raise DumpError(f"{source}: {count} tokens, {values}; expected as many.")
    ids = lists.token_ids or ()
    if len(ids) != count or any(tops):
        ids = none
    emitted = zip(lists.tokens, lists.token_logprobs, ids, tops, strict=True)
    for position, (text, value, token, top) in enumerate(emitted, start):
        if position >= 0:
            at = f"{source}, token {position - start}"
            listed = top.items() if isinstance(top, dict) else top or ()
            entries = [_named(key, each, None, at) for key, each in listed]
            yield Row(position, entries, _named(text, value, token, at), None if entries else 0)


def _named(name: str | int, value: _Value, token: int | None, source: str) -> Entry:
    """Read a token by its text, with its id if that is known, or by its id in place of a text."""
    sent = Sent(value, token, token=name) if isinstance(name, str) else Sent(value, name)
    return entry_of(sent, source)


def _read_completion(payload: Payload, prompt: Any, source: str) -> Record:
    """Read llama.cpp: ids, texts and log-probabilities of the whole row, taken before sampling."""
    tokens = payload["completion_probabilities"]
    listed = first_value(payload, list, "completion_probabilities") or []
    if any(isinstance(token, dict) and "prob" in token for token in listed):
        raise DumpError(
            f"{source}: holds probabilities after sampling; request it without"
            " `post_sampling_probs`.",
        )
    return {"rows": rows_of(tokens, first_row(prompt), source)}


def _read_output(payload: Payload, prompt: Any, source: str) -> Record:
    """Read OpenAI's `/v1/responses`. Tokens of reasoning come before its text and have no rows, so
    that the text begins at the prompt's end only without them.
    """
    items = convert(payload.get("output") or [], list[Record], f"{source}, output")
    if len(items) != 1:
        prompt = None
    entries = []
    text = ""
    for item in items:
        parts = first_value(item, list, "content") or []
        for part in convert(parts, list[Record], f"{source}, content"):
            if part.get("type") == "output_text":
                entries += convert(part.get("logprobs") or [], list[Any], source)
                text += f"{part.get('text', '')}"
    return {
        "rows": rows_of(entries, first_row(prompt), source),
        "prompt": prompt,
        "text": text,
    }


def _read_generate(payload: Payload, prompt: Any, source: str) -> Record:
    """Read SGLang: rows of the prompt, as far as they were requested, then of what was
    generated.
    """
    meta = convert(payload["meta_info"], Record, source)
    if meta.get("finish_reason", "") is None:
        raise DumpError(f"{source}: is a part of SGLang's own stream; request it without `stream`.")
    triples = _triples(meta, "input", source)
    prompt = prompt or len(triples) or None
    first = first_row(prompt)
    # The last rows of the prompt end at its last token; the first token of all has no row.
    rows = [
        row
        for row in rows_of(triples, first - len(triples), source)
        if row.position >= 0 and (row.top or row.target.value is not None)
    ]
    generated = rows_of(_triples(meta, "output", source), first, source)
    return {
        "rows": rows + generated,
        "prompt": prompt,
        "has_prompt_rows": bool(rows),
    }


def _read_offline(payload: Payload, prompt: Any, source: str) -> Record:
    """Read the `RequestOutput` of vLLM's `LLM` as JSON: rows of the answer are like those of the
    prompt.
    """
    answers = convert(payload["outputs"], list[Record], f"{source}, outputs")
    if len(answers) != 1:
        raise DumpError(
            f"{source}: holds {plural(len(answers), 'answer')}; expected one, of `n=1`.",
        )
    (answer,) = answers
    prompt = tokens_of(payload["prompt_token_ids"], "prompt", source)
    tokens = (*prompt, *tokens_of(answer.get("token_ids"), "generated tokens", source))
    of_prompt = payload.get("prompt_logprobs")
    rows = [*(of_prompt or [None] * len(prompt)), *(answer.get("logprobs") or [])]
    return {
        "rows": list(_prompt_rows(rows, tokens[: len(rows)], source)),
        "prompt": prompt,
        "text": str(answer.get("text", "")),
        "has_prompt_rows": bool(of_prompt),
    }


def _triples(meta: Payload, part: str, source: str) -> list[Record]:
    """Return the tokens of one part, 'input' or 'output', each with its list of the best, as chat
    has them.
    """
    name = f"{part}_top_logprobs"
    if f"{name}_shape" in meta:
        raise DumpError(f"{source}: {name} is one flat array; request lists of triples.")
    of_tokens = f"{part}_token_logprobs"
    tokens = convert(meta.get(of_tokens) or [], list[list[Any]], f"{source}, {of_tokens}")
    tops = meta.get(name) or [None] * len(tokens)
    tops = convert(tops, list[list[list[Any]] | None], f"{source}, {name}")
    if len(tops) != len(tokens):
        raise DumpError(
            f"{source}: {len(tokens)} {part} tokens and {len(tops)} lists; expected as many.",
        )

    def token(triple: Sequence[Any]) -> Record:
        return dict(zip(("logprob", "id", "text"), triple, strict=False))

    return [
        token(triple) | {"top_logprobs": list(map(token, top or ()))}
        for triple, top in zip(tokens, tops, strict=True)
    ]


def first_value(payload: Payload, kind: type, *paths: str) -> Any:
    """Return the first value of a kind that a payload has at one of these paths of names, None if
    it has none.
    """
    for path in paths:
        value: Any = payload
        for name in path.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        if type(value) is kind and value != "":
            return value
    return None


def generated_ids(payload: Any, source: str, _: Payload) -> tuple[int, ...]:
    """Return the ids of what was generated, without rows; empty if the payload has none."""
    choices = first_value(payload, list, "choices") or [payload]
    return tokens_of(first_value(choices[0], list, *_GENERATED), "generated tokens", source)


def _about(payload: Payload, request: Payload, source: str) -> Record:
    """Return what responses of every format may say of themselves and of their request."""

    def text(*paths: str) -> str:
        return first_value(payload, str, *paths) or ""

    def count(*paths: str) -> int | None:
        return count_of(first_value(payload, int, *paths))

    ids = first_value(request, list, "prompt", "input_ids", "prompt_token_ids", "token_ids") or []
    prompt: tuple[int, ...] | int | None = count(
        "tokens_evaluated",
        "prompt_eval_count",
        "meta_info.prompt_tokens",
        "usage.prompt_tokens",
        "usage.input_tokens",
    )
    # not texts, nor several
    if ids and all(type(token) is int for token in ids):
        prompt = tokens_of(ids, "prompt", source)
    counted = count(
        "usage.completion_tokens",
        "usage.output_tokens",
        "meta_info.completion_tokens",
        "eval_count",
    )
    # of which no rows are sent
    reasoning = count(
        "usage.completion_tokens_details.reasoning_tokens",
        "usage.output_tokens_details.reasoning_tokens",
    )
    if counted and reasoning:
        counted -= reasoning
    drafted = count(f"timings.{DRAFTED}")
    settings = {} if drafted is None else {DRAFTED: f"{drafted}"}
    if fingerprint := text("system_fingerprint"):
        settings["system_fingerprint"] = fingerprint
    n_probs = first_value(payload, int, "generation_settings.n_probs")
    requested = first_value(
        request,
        int,
        "n_probs",
        "top_logprobs",
        "top_logprobs_num",
        "logprobs",
    )
    return {
        "model": text("model"),
        "text": text("text", "content", "response", "generated_text", "message.content"),
        "prompt": prompt,
        "generated": tokens_of(first_value(payload, list, *_GENERATED), "generated tokens", source),
        "counted": counted,
        "cached": count(
            "timings.cache_n",
            "meta_info.cached_tokens",
            "usage.prompt_tokens_details.cached_tokens",
        ),
        "settings": settings,
        "top_logprobs": count_of(requested or n_probs) or None,
        "prompt_key": _prompt_key(request),
    }


def request_of_choice(request: Payload, index: int, count: int) -> Payload:
    """Return the request with the prompt of one of `count` answers alone; answers to a prompt
    follow each other.
    """
    for name in _PROMPTS:
        prompts = request.get(name)
        if not isinstance(prompts, list) or not prompts or count % len(prompts):
            continue
        if all(isinstance(one, str | list) for one in prompts):
            return {**request, name: prompts[index * len(prompts) // count]}
    return request


def _prompt_key(request: Payload) -> str:
    """Return the prompt of a request as a text, '' if it has none."""
    prompt = next((request[name] for name in (*_PROMPTS, "messages") if request.get(name)), None)
    return "" if prompt is None else json.dumps(prompt, sort_keys=True)


_READERS: tuple[tuple[str, Callable[..., Record], Callable[[Payload], bool]], ...] = (
    (
        "llama.cpp completion",
        _read_completion,
        lambda payload: "completion_probabilities" in payload,
    ),
    ("SGLang generate", _read_generate, lambda payload: "meta_info" in payload),
    (
        "vLLM offline",
        _read_offline,
        lambda payload: "outputs" in payload and "prompt_token_ids" in payload,
    ),
    ("OpenAI responses", _read_output, lambda payload: payload.get("object") == "response"),
    (
        "Ollama",
        # /api/generate or /api/chat: texts and bytes, no token ids
        lambda payload, prompt, source: {
            "rows": rows_of(payload.get("logprobs"), first_row(prompt), source),
        },
        lambda payload: first_value(payload, list, "logprobs") is not None or "done" in payload,
    ),
)
