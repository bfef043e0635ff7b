"""Whole answers out of the chunks of streams; every other document passes as it is.

Chunks as the engines send them: OpenAI's chat.completion.chunk and streamed text_completion (also of vLLM, SGLang,
llama.cpp), OpenAI's Responses events, Ollama's lines, llama.cpp's /completion, TGI's /generate_stream, SGLang's
/generate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .bounded_json import StreamEvent

Chunk = Mapping[str, Any]
_TEXTS = ("text", "content", "response", "reasoning", "reasoning_content", "refusal", "thinking")  # go on in each chunk
_LAST_EVENTS = ("response.completed", "response.incomplete", "response.failed")


@dataclass
class _Stream:
    """The chunks of one answer so far. unfinished: indices of choices that go on."""

    source: str
    kind: str
    chunks: list[Chunk] = field(default_factory=list)
    unfinished: set[str] = field(default_factory=set)


def whole_answers(documents: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Return the documents with their places; the chunks of a stream are one document, at the place of the first."""
    answers: list[tuple[str, Any] | _Stream] = []
    streams: dict[tuple[str, object], _Stream] = {}
    for source, document in documents:
        kind, chunk_id, is_chunk, states = _about(document) if isinstance(document, dict) else ("", None, False, {})
        stream = streams.get((kind, chunk_id))
        if stream is not None and not stream.unfinished and states:  # a usage of its own after the last chunk has none
            stream = None
        if stream is None and is_chunk:
            stream = streams[kind, chunk_id] = _Stream(source, kind)
            answers.append(stream)
        if stream is not None:
            stream.chunks.append(document)
            stream.unfinished |= states.keys()
            stream.unfinished -= {index for index, is_last in states.items() if is_last}
        elif answers:
            answers.append((source, document))
        else:
            yield source, document
    for answer in answers:
        yield (answer.source, _join(answer)) if isinstance(answer, _Stream) else answer


def _about(document: Chunk) -> tuple[str, object, bool, dict[str, bool]]:
    """Kind of a document, what the chunks of one answer share, whether it must be a chunk, and for each choice whether
    this is its last one. A last chunk alone may look like a whole answer.
    """
    meta = document.get("meta_info")
    if isinstance(choices := document.get("choices"), list):
        objects = [choice for choice in choices if isinstance(choice, dict)]
        states = {f"{choice.get('index')}": choice.get("finish_reason") is not None for choice in objects}
        is_named = f"{document.get('object')}".endswith(".chunk") or any("delta" in choice for choice in objects)
        is_open = bool(objects) and all(choice.get("finish_reason", "") is None for choice in objects)
        is_chunk = is_named or (is_open and document.get("id") is not None) or isinstance(document, StreamEvent)
        return "OpenAI", f"{document.get('id')}", is_chunk, states
    if isinstance(meta, dict) and meta.get("id") is not None:
        is_last = meta.get("finish_reason", "") is not None
        return "SGLang", f"{meta['id']} {document.get('index')}", not is_last, {"": is_last}
    if isinstance(document.get("token"), dict) and "generated_text" in document:
        return "TGI", None, True, {"": document["generated_text"] is not None}
    if isinstance(kind := document.get("type"), str) and kind.startswith("response."):
        return "Responses", None, True, {"": kind in _LAST_EVENTS}
    for name, engine in (("done", "Ollama"), ("stop", "llama.cpp")):
        if isinstance(document.get(name), bool):
            return engine, None, not document[name], {"": document[name]}
    return "", None, False, {}


def _join(stream: _Stream) -> dict[str, Any]:
    if stream.kind == "SGLang":
        return _generate(stream.chunks)
    if stream.kind == "Responses":
        return _response(stream.chunks)
    whole: dict[str, Any] = {}
    for chunk in stream.chunks:
        piece = dict(chunk)
        if stream.kind == "TGI":  # one token each, and the text in the last
            lists = {"tokens": [chunk["token"]], "top_tokens": [chunk.get("top_tokens") or []]}
            details = chunk["details"] if isinstance(chunk.get("details"), dict) else {}
            piece = {"generated_text": chunk["generated_text"], "details": {**details, **lists}}
        elif stream.kind == "OpenAI":
            choices = [choice for choice in _list(chunk.get("choices")) if isinstance(choice, dict)]
            piece["choices"] = {f"{choice.get('index')}": choice for choice in choices}
        _append(whole, piece)
    return whole | ({"choices": list(whole["choices"].values())} if stream.kind == "OpenAI" else {})


def _append(into: dict[str, Any], chunk: Chunk) -> None:
    """Add a chunk: texts and lists go on from the chunk before; of anything else the last is right."""
    for key, value in chunk.items():
        name = "message" if key == "delta" else key
        current = into.get(name)
        is_text = isinstance(value, str) and isinstance(current, str) and name in _TEXTS
        if is_text or (isinstance(value, list) and isinstance(current, list)):
            into[name] = current + value
        elif isinstance(value, dict):
            inner = dict(current) if isinstance(current, dict) else {}
            _append(inner, value)
            into[name] = inner
        elif value is not None or name not in into:
            into[name] = value


def _generate(chunks: Sequence[Chunk]) -> dict[str, Any]:
    """SGLang's chunks: each holds all before it; with --stream-output, only what is new."""
    whole = dict(chunks[0])
    meta = dict(whole["meta_info"])
    for chunk in chunks[1:]:
        current, new = (_list(each.get("output_token_logprobs")) for each in (meta, chunk["meta_info"]))
        is_all = new[: len(current)] == current
        for name, value in chunk["meta_info"].items():
            is_part = name.startswith("output_") and isinstance(value, list) and isinstance(meta.get(name), list)
            if value is not None:
                meta[name] = meta[name] + value if is_part and not is_all else value
        for name, value in chunk.items():
            is_part = name in ("text", "output_ids") and type(value) is type(whole.get(name)) in (str, list)
            whole[name] = whole[name] + value if is_part and not is_all else value
    return whole | {"meta_info": meta}


def _response(events: Sequence[Chunk]) -> dict[str, Any]:
    """Return the Responses object of the last event, with log-probabilities of the text's deltas if it has none."""
    last: Chunk = next((event["response"] for event in reversed(events) if isinstance(event.get("response"), dict)), {})
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    logprobs = [one for event in deltas for one in _list(event.get("logprobs"))]
    has_own = any(part.get("logprobs") for part in output_texts(last))
    if has_own or not logprobs:
        return {"object": "response", **last}
    text = "".join(f"{event.get('delta', '')}" for event in deltas)
    content = [{"type": "output_text", "text": text, "logprobs": logprobs}]
    return {"object": "response", **last, "output": [{"type": "message", "content": content}]}


def output_texts(response: Chunk) -> list[Chunk]:
    """Return the texts of a Responses object, in order."""
    items = [item for item in _list(response.get("output")) if isinstance(item, dict)]
    parts = [part for item in items for part in _list(item.get("content"))]
    return [part for part in parts if isinstance(part, dict) and part.get("type") == "output_text"]


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
