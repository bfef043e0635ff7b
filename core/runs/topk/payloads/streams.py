"""Whole answers out of the chunks of streams; every other document passes as it is.

Chunks as the engines send them: OpenAI's chat.completion.chunk and streamed text_completion (also of vLLM, SGLang,
llama.cpp), OpenAI's Responses events, Ollama's lines, llama.cpp's /completion, TGI's /generate_stream, SGLang's
/generate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

Chunk = Mapping[str, Any]
_TEXTS = ("text", "content", "response", "reasoning", "reasoning_content", "refusal", "thinking")  # go on in each chunk
_LAST_EVENTS = ("response.completed", "response.incomplete", "response.failed")


def whole_answers(documents: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Return the documents with their places, then the answers of streams, each at the place of its first chunk."""
    streams: list[tuple[str, str, list[Chunk]]] = []
    open_streams: dict[object, list[Chunk]] = {}
    for source, document in documents:
        engine, stream_id, is_chunk, is_last = (
            _about(document) if isinstance(document, dict) else ("", "", False, False)
        )
        key = engine, stream_id
        if key not in open_streams and is_chunk:
            streams.append((source, engine, []))
            open_streams[key] = streams[-1][2]
        if key not in open_streams:
            yield source, document
            continue
        open_streams[key].append(document)
        if is_last:
            del open_streams[key]
    for source, engine, chunks in streams:
        yield source, _JOINS[engine](chunks)


def _about(document: Chunk) -> tuple[str, str, bool, bool]:
    """Engine of a document, what the chunks of one answer share, whether it must be a chunk, and whether the next chunk
    is of another answer. A last chunk alone may look like a whole answer.
    """
    meta = document.get("meta_info")
    if isinstance(choices := document.get("choices"), list):
        objects = [choice for choice in choices if isinstance(choice, dict)]
        is_named = f"{document.get('object')}".endswith(".chunk") or any("delta" in choice for choice in objects)
        is_open = bool(objects) and all(choice.get("finish_reason", "") is None for choice in objects)
        is_chunk = is_named or (is_open and document.get("id") is not None)
        return "OpenAI", f"{document.get('id')}", is_chunk, False
    if isinstance(meta, dict) and meta.get("id") is not None:
        stream_id = f"{meta['id']} {document.get('index')}"
        return "SGLang", stream_id, meta.get("finish_reason", "") is None, meta.get("finish_reason") is not None
    if isinstance(document.get("token"), dict) and "generated_text" in document:
        return "TGI", "", True, document["generated_text"] is not None
    if isinstance(kind := document.get("type"), str) and kind.startswith("response."):
        return "Responses", "", True, kind in _LAST_EVENTS
    for name, engine in (("done", "Ollama"), ("stop", "llama.cpp")):
        if isinstance(document.get(name), bool):
            return engine, "", not document[name], document[name]
    return "", "", False, False


def _join(chunks: Iterable[Chunk]) -> dict[str, Any]:
    whole: dict[str, Any] = {}
    for chunk in chunks:
        _append(whole, chunk)
    return whole


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


def _openai(chunks: Sequence[Chunk]) -> dict[str, Any]:
    def by_index(choices: object) -> Chunk:
        return {f"{choice.get('index')}": choice for choice in _list(choices) if isinstance(choice, dict)}

    whole = _join({**chunk, "choices": by_index(chunk.get("choices"))} for chunk in chunks)
    return whole | {"choices": list(whole["choices"].values())}


def _tgi(chunks: Sequence[Chunk]) -> dict[str, Any]:
    """Join TGI's events: one token each, and the text in the last."""
    tokens, tops = [chunk["token"] for chunk in chunks], [chunk.get("top_tokens") or [] for chunk in chunks]
    return {"generated_text": chunks[-1]["generated_text"], "details": {"tokens": tokens, "top_tokens": tops}}


def _sglang(chunks: Sequence[Chunk]) -> dict[str, Any]:
    """Join SGLang's chunks: each holds all before it; with --stream-output, only what is new, and the prompt's rows."""
    metas = [chunk["meta_info"] for chunk in chunks]
    first, last = (_list(meta.get("output_token_logprobs")) for meta in (metas[0], metas[-1]))
    if last[: len(first)] == first:
        return dict(chunks[-1])
    whole = _join(chunks)
    return whole | {"meta_info": whole["meta_info"] | {n: v for n, v in metas[-1].items() if n.startswith("input_")}}


def _responses(events: Sequence[Chunk]) -> dict[str, Any]:
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


_JOINS: Mapping[str, Callable[[Sequence[Chunk]], dict[str, Any]]] = {
    "OpenAI": _openai,
    "SGLang": _sglang,
    "TGI": _tgi,
    "Responses": _responses,
    "Ollama": _join,
    "llama.cpp": _join,
}
