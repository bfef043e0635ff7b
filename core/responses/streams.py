"""Whole answers out of the chunks of streams; every other document passes as it is.

Chunks as the engines send them: OpenAI's chat.completion.chunk and streamed text_completion (also
of vLLM, SGLang, llama.cpp), Ollama's lines, llama.cpp's /completion.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..numerics.arrays import Record

Chunk = Mapping[str, Any]
# go on in each chunk
_TEXTS = (
    "text",
    "content",
    "response",
    "reasoning",
    "reasoning_content",
    "refusal",
    "thinking",
)


def whole_answers(documents: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Return the documents with their places, then the answers of streams, each at the place of its
    first chunk.
    """
    streams = []
    open_streams: dict[str, list[Chunk]] = {}
    for source, document in documents:
        key, is_chunk, is_last = _about(document)
        if key not in open_streams and is_chunk:
            open_streams[key] = []
            streams.append((source, open_streams[key]))
        if key not in open_streams:
            yield source, document
            continue
        open_streams[key].append(document)
        if is_last:
            del open_streams[key]
    for source, chunks in streams:
        yield source, _join(chunks)


def _about(document: Any) -> tuple[str, bool, bool]:
    """Return what the chunks of one answer share, whether a document must be a chunk, and whether
    the next chunk is of another answer. A last chunk alone may look like a whole answer.
    """
    match document:
        case {"choices": list(choices)}:
            stream_id = document.get("id")
            objects = [choice for choice in choices if isinstance(choice, dict)]
            is_chunk = f"{document.get('object')}".endswith(".chunk")
            is_chunk |= any("delta" in choice for choice in objects)
            if objects and stream_id is not None:
                # completions are not named chunks; one that has not ended is of a stream
                is_chunk |= all(choice.get("finish_reason", "") is None for choice in objects)
            return f"OpenAI {stream_id}", is_chunk, False
        case {"done": bool(is_last)}:
            return "Ollama", not is_last, is_last
        case {"stop": bool(is_last)}:
            return "llama.cpp", not is_last, is_last
    return "", False, False


def _join(chunks: Iterable[Chunk]) -> Record:
    whole: Record = {}
    for chunk in chunks:
        choices = chunk.get("choices")
        # any of them may be in a chunk
        if isinstance(choices, list):
            by_index = {}
            for choice in choices:
                if isinstance(choice, dict):
                    by_index[f"{choice.get('index')}"] = choice
            chunk = {**chunk, "choices": by_index}
        _append(whole, chunk)
    if isinstance(whole.get("choices"), dict):
        whole["choices"] = list(whole["choices"].values())
    return whole


def _append(into: Record, chunk: Chunk) -> None:
    """Add a chunk: texts and lists go on from the chunk before; of anything else the last is
    right.
    """
    for key, value in chunk.items():
        name = "message" if key == "delta" else key
        current: Any = into.get(name)
        is_text = isinstance(value, str) and name in _TEXTS
        if type(value) is type(current) and (is_text or isinstance(value, list)):
            into[name] = current + value
        elif isinstance(value, dict):
            inner = dict(current) if isinstance(current, dict) else {}
            _append(inner, value)
            into[name] = inner
        elif value is not None or name not in into:
            into[name] = value
