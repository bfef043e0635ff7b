"""Answers that are values and no lists of tokens: embeddings, scores, rankings.

Formats as in vllm/entrypoints/pooling (0.32), OpenAI's, Jina's and Cohere's docs.
"""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DumpError
from ..text import clean, plural
from .bounded_json import documents, is_payload

# A format: the key of an answer's list, and of the value in each of its entries.
_FORMATS = (
    ("data", "embedding"),  # /v1/embeddings
    ("data", "score"),  # /score
    ("results", "relevance_score"),  # /rerank
)
_EXPECTED = "expected an answer of /v1/embeddings, /score or /rerank"
_Values = NDArray[np.float32]


def are_values(path: Path) -> bool:
    """Return whether a file begins with an answer of values. False also if it is no JSON: the
    reader of responses says so.
    """
    if not is_payload(path):
        return False
    try:
        return values_in(next(documents(path), ("", None))[1]) is not None
    except DumpError:
        return False


def values_in(document: Any) -> list[tuple[Any, Any]] | None:
    """Return (index or None, value) of each entry of an answer; None if it is no such answer."""
    for of_list, of_value in _FORMATS:
        entries = document.get(of_list) if isinstance(document, dict) else None
        if not isinstance(entries, list) or not entries:
            continue
        if all(isinstance(entry, dict) and of_value in entry for entry in entries):
            return [(entry.get("index"), entry[of_value]) for entry in entries]
    return None


def read_values(path: Path) -> _Values:
    """Return the values of all answers of a file, one after another, in the order of what was sent.
    [rows, n]; n is 1 of scores
    """
    rows: list[_Values] = []
    for source, document in documents(path):
        entries = values_in(document)
        if entries is None:
            raise DumpError(f"{source}: holds no values, unlike the answer before it; {_EXPECTED}.")
        own = [_row(value, source) for value in _in_order(entries, source)]
        widths = sorted({len(row) for row in [*rows[:1], *own]})
        if len(widths) > 1:
            raise DumpError(
                f"{source}: rows have {widths[0]:,} and {widths[1]:,} values; expected one length.",
            )
        rows += own
    return np.stack(rows)


def _in_order(entries: Sequence[tuple[Any, Any]], source: str) -> list[Any]:
    """Return the values by their index, which a ranking has in another order."""
    if all(index is None for index, _ in entries):
        return [value for _, value in entries]
    values = {index: value for index, value in entries if isinstance(index, int)}
    every = range(len(entries))
    if sorted(values) != list(every):
        raise DumpError(
            f"{source}: its {plural(len(entries), 'entry', 'entries')} do not have every index from"
            f" 0 to {len(entries) - 1}; request all of them, without `top_n`.",
        )
    return [values[index] for index in every]


def _row(value: Any, source: str) -> _Values:
    """Return an embedding, a list of numbers or base64 of float32, or a score. [n]"""
    try:
        if isinstance(value, str):
            row = np.frombuffer(base64.b64decode(value, validate=True), "<f4")
        else:
            row = np.atleast_1d(np.array(value, np.float64)).astype(np.float32)
    except (ValueError, TypeError) as error:
        raise DumpError(f"{source}: a value is not a number ({clean(error, 80)}).") from None
    if row.ndim != 1 or not row.size:
        raise DumpError(f"{source}: a row has the shape {row.shape}; expected [values].")
    return row
