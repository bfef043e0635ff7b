"""Recognise a payload by its content: the format of a response decides its reader, never a file's name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ....errors import DumpError
from ....text import shown
from ..records import SparseResponse
from . import bounded_json
from .entries import count_of, is_list, response_of
from .llamacpp import read_completion
from .openai import content_rows, read_choices, settings_of
from .sglang import read_generate
from .tgi import read_details

_JSON_STARTS = (b"{", b"[")
_MOST_RESPONSES = 1 << 16


def is_payload(path: Path) -> bool:
    """Return whether a file begins as JSON does, after white space and a byte order mark, and is no run file, whose
    first bytes are a checksum.
    """
    with path.open("rb") as file:
        head = file.read(4096)
    return head[8:12] != b"DUCK" and head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in _JSON_STARTS


def read_responses(path: Path) -> list[SparseResponse]:
    """Every response of a file: one JSON document, a list of them, or one a line.

    DumpError, one sentence, for what is no response of an engine that is known here.
    """
    found: list[SparseResponse] = []
    for where, document in bounded_json.documents(path):
        found.extend(read_payload(document, where))
        if len(found) > _MOST_RESPONSES:
            raise DumpError(f"{shown(path.name)}: holds more than {_MOST_RESPONSES:,} responses.")
    if not found:
        raise DumpError(f"{shown(path.name)}: holds no response.")
    return found


def read_payload(payload: object, where: str, request: Mapping[str, Any] | None = None) -> list[SparseResponse]:
    """The responses of a parsed document. request: the body that was sent for it, which says tokens and settings; a
    document `{"request": ..., "response": ...}` has both.
    """
    if isinstance(payload, list):
        return [
            found
            for number, one in enumerate(payload)
            for found in read_payload(one, f"{where}, response {number}", request)
        ]
    if not isinstance(payload, dict):
        raise DumpError(f"{where}: no response of an engine; expected a JSON object.")
    if isinstance(payload.get("request"), dict) and "response" in payload:
        return read_payload(payload["response"], where, payload["request"])
    return list(_read(payload, where, request or {}))


def _read(payload: Mapping[str, Any], where: str, request: Mapping[str, Any]) -> Iterator[SparseResponse]:
    if "completion_probabilities" in payload:
        yield read_completion(payload, where, request)
    elif "choices" in payload:
        yield from read_choices(payload, where, request)
    elif "meta_info" in payload:
        yield read_generate(payload, where, request)
    elif isinstance(payload.get("details"), dict):
        yield read_details(payload, where, request)
    elif isinstance(payload.get("logprobs"), list):
        yield _ollama(payload, where, request)
    elif "resps" in payload and "doc_id" in payload:
        raise DumpError(
            f"{where}: samples of lm-eval hold one summed log-probability a choice and no positions; there is nothing"
            " to compare position by position in them."
        )
    elif "error" in payload:
        raise DumpError(f"{where}: the server answered with an error: {shown(payload['error'], 200)}")
    else:
        keys = ", ".join(f"'{shown(key, 30)}'" for key in list(payload)[:5])
        raise DumpError(f"{where}: no response that is known here; its keys are {keys or 'none'}.")


def _ollama(payload: Mapping[str, Any], where: str, request: Mapping[str, Any]) -> SparseResponse:
    """A response of Ollama's `/api/generate` or `/api/chat`: texts and bytes, no token ids."""
    length = count_of(payload.get("prompt_eval_count"))
    rows = content_rows(is_list(payload["logprobs"], "logprobs", where), max(0, (length or 1) - 1), where)
    message = payload.get("message")
    text = message.get("content") if isinstance(message, dict) else payload.get("response")
    options = request.get("options")
    return response_of(
        rows,
        where,
        format="Ollama",
        prompt=length,
        text=text if isinstance(text, str) else "",
        model=payload["model"] if isinstance(payload.get("model"), str) else "",
        settings=settings_of(options if isinstance(options, dict) else request),
    )
