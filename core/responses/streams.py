"""Whole answers out of the chunks of streams; every other document passes as it is.

Chunks as the engines send them: OpenAI's chat.completion.chunk and streamed text_completion (also
of vLLM, SGLang, llama.cpp), Ollama's lines, llama.cpp's /completion.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

Chunk = Mapping[str, Any]
# go on in each chunk
_TEXTS = ("text", "content", "response", "reasoning", "reasoning_content", "refusal", "thinking")


def whole_answers(documents: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Return the documents with their places, then the answers of streams, each at the place of its
    first chunk.
    """
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
        yield source, _openai(chunks) if engine == "OpenAI" else _join(chunks)


def _about(document: Chunk) -> tuple[str, str, bool, bool]:
    """Engine of a document, what the chunks of one answer share, whether it must be a chunk, and
    whether the next chunk is of another answer. A last chunk alone may look like a whole answer.
    """
    if isinstance(choices := document.get("choices"), list):
        objects = [choice for choice in choices if isinstance(choice, dict)]
        is_named = f"{document.get('object')}".endswith(".chunk") or any(
            "delta" in choice for choice in objects
        )
        is_open = bool(objects) and all(
            choice.get("finish_reason", "") is None for choice in objects
        )
        is_chunk = is_named or (is_open and document.get("id") is not None)
        return "OpenAI", f"{document.get('id')}", is_chunk, False
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
    """Add a chunk: texts and lists go on from the chunk before; of anything else the last is
    right.
    """
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
        listed = choices if isinstance(choices, list) else []
        return {f"{choice.get('index')}": choice for choice in listed if isinstance(choice, dict)}

    whole = _join({**chunk, "choices": by_index(chunk.get("choices"))} for chunk in chunks)
    return whole | {"choices": list(whole["choices"].values())}
