"""The reserved keys of a dump: token_ids (input_ids, prompt_token_ids), tokens, prompt_lengths, compute_dtype,
reference_side, meta, and for each side `emitted` and `dtype`. Read, checked, and laid over its rows.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

import msgspec

from ...errors import DumpError, UsageError
from ...numerics.formats import LOGIT_FORMATS, FloatFormat, format_named
from ...text import clean
from ..file.bounds import LONGEST_NOTE
from ..file.records import Prompt, check_token_texts
from .arrays import StoredArray, foreign_errors
from .containers import Container

TOKEN_IDS = ("token_ids", "input_ids", "prompt_token_ids")  # the first that is there counts
RESERVED = (*TOKEN_IDS, "tokens", "prompt_lengths", "compute_dtype", "reference_side", "meta")
EMITTED = "emitted"  # in a file of one side; `emitted:SIDE` in a file of several
DTYPE = "dtype:"  # and the side whose 16-bit bits it names, if compute_dtype is different
TEXT_BYTES = 64 << 20  # the texts of all tokens, as an array
META_BYTES = LONGEST_NOTE // 2  # of UTF-8: it becomes part of the run's note
MAX_TOKEN_ID = (1 << 31) - 1


def is_reserved(key: str) -> bool:
    """Return whether a key of a dump is no side."""
    return key in RESERVED or key == EMITTED or key.startswith((f"{EMITTED}:", DTYPE))


def sides_of(container: Container, fewest: int = 1) -> tuple[dict[str, StoredArray], list[StoredArray]]:
    """(arrays that are sides by key, whole numbers such as an attention mask, which are none) of a file.

    16-bit integers may be bits of logits. If fewer than `fewest` sides would be left, whole numbers count as sides, to
    be refused by name.
    """
    arrays = {key: array for key, array in container.arrays.items() if not is_reserved(key) or container.kind == "npy"}
    sides = {key: array for key, array in arrays.items() if array.dtype.kind not in "iub" or array.dtype.itemsize == 2}
    if len(sides) < fewest:
        return arrays, []
    return sides, [array for key, array in arrays.items() if key not in sides]


@dataclass(frozen=True)
class Reserved:
    """Reserved keys of one file. lengths: positions of each prompt; token_ids, texts: of all rows, or empty.

    emitted: by side ('' for the only side of the file), the token chosen from the logits of each row, -1 if it was
    given. side_dtypes: what the 16-bit bits of a side are, by its name; reference: the side the others are compared
    with, '' if the file names none.
    """

    file: str
    lengths: tuple[int, ...]
    token_ids: tuple[int, ...]
    texts: tuple[str, ...]
    compute_dtype: FloatFormat | None
    meta: str
    emitted: dict[str, tuple[int, ...]]
    side_dtypes: dict[str, FloatFormat]
    reference: str


def prompts_of(one: Reserved, other: Reserved) -> tuple[Prompt, ...]:
    """Return the prompts of a dump; of a pair of files the union, which must not be contradictory."""
    if one.token_ids and other.token_ids and one.token_ids != other.token_ids:
        problem = f"'token_ids' are others than in {one.file}"
        raise DumpError(f"{other.file}: {problem}; expected both sides to be of the same tokens.")
    if min(len(one.lengths), len(other.lengths)) > 1 and one.lengths != other.lengths:
        problem = f"'prompt_lengths' are others than in {one.file}"
        raise DumpError(f"{other.file}: {problem}; expected both sides to be of the same prompts.")
    ids, texts = one.token_ids or other.token_ids, one.texts or other.texts
    prompts, start = [], 0
    for length in max(one.lengths, other.lengths, key=len):
        prompts.append(Prompt(length, ids[start : start + length], texts[start : start + length]))
        start += length
    return tuple(prompts)


def read_reserved(container: Container, shape: tuple[int, ...]) -> Reserved:
    """Return the reserved keys of one file whose sides have `shape`, [..., vocab] of one to three axes."""
    arrays = {} if container.kind == "npy" else container.arrays
    counts = (shape[0], shape[1]) if len(shape) == 3 else (1, math.prod(shape[:-1]))

    def refusal(key: str, problem: str, need: str) -> DumpError:
        return DumpError(f"{container.name}: '{clean(key, 60)}' {problem}; expected {need}.")

    def text(key: str) -> str:
        """Return a single text, from an array or from safetensors' `__metadata__`; empty if there is none."""
        if key not in arrays:
            return container.texts.get(key, "")
        if arrays[key].size != 1:
            raise arrays[key].refusal(f"has shape {clean(arrays[key].shape)}", "a single text")
        return _strings(arrays[key], 4 * META_BYTES)[0]  # numpy's characters have four bytes each

    def dtype(key: str) -> FloatFormat:
        try:
            return format_named(text(key).strip())
        except UsageError:
            raise refusal(key, f"is '{clean(text(key))}'", f"one of {', '.join(LOGIT_FORMATS)}") from None

    lengths = (counts[1],) * counts[0]
    if "prompt_lengths" in arrays:
        lengths = _prompt_lengths(arrays["prompt_lengths"], shape)
    meta = text("meta")
    if (size := len(meta.encode("utf-8", "replace"))) > META_BYTES:
        raise refusal("meta", f"takes {size:,} bytes", f"at most {META_BYTES:,}")
    if meta:
        with foreign_errors(f"{container.name}: 'meta'", "one JSON text"):
            json.loads(meta)
    side_dtypes = {key.removeprefix(DTYPE): dtype(key) for key in (*arrays, *container.texts) if key.startswith(DTYPE)}
    for side in side_dtypes.keys() - arrays.keys():
        raise refusal(f"{DTYPE}{side}", "belongs to no side", f"'{DTYPE}SIDE'")
    reference = text("reference_side")
    if reference and (reference not in arrays or is_reserved(reference)):
        raise refusal("reference_side", f"is '{clean(reference, 60)}'", "the name of a side")
    has_numbers = "tokens" in arrays and arrays["tokens"].dtype.kind in "iu"
    ids: tuple[int, ...] = ()
    for key in [*TOKEN_IDS, *(["tokens"] if has_numbers else [])]:
        if key in arrays and not ids:
            if arrays[key].size == shape[-1] != math.prod(counts):
                problem = f"has {shape[-1]} ids, as many as the last axis of the sides"
                raise arrays[key].refusal(problem, "sides of [positions, vocab]: save them transposed (array.T)")
            ids = _whole_numbers(arrays[key], counts)
    return Reserved(
        container.name,
        lengths,
        ids,
        () if has_numbers else _tokens(container, arrays.get("tokens"), counts),
        dtype("compute_dtype") if "compute_dtype" in arrays or "compute_dtype" in container.texts else None,
        meta,
        {
            key.partition(":")[2]: _whole_numbers(array, counts, lowest=-1)
            for key, array in arrays.items()
            if key == EMITTED or key.startswith(f"{EMITTED}:")
        },
        side_dtypes,
        reference,
    )


def _check_fits(array: StoredArray, counts: tuple[int, int]) -> None:
    """Raise DumpError unless there is one entry per position; axes of size 1 are ignored."""
    if [n for n in array.shape if n != 1] != [n for n in counts if n != 1]:
        many = counts[1] if counts[0] == 1 else f"{counts}, prompts and positions"
        raise array.refusal(f"has shape {clean(array.shape)}", f"one for each position: {many}")


def _whole_numbers(array: StoredArray, counts: tuple[int, int] | None, lowest: int = 0) -> tuple[int, ...]:
    """Return a small array of integers from `lowest` up, one a position of `counts`. Flat, C order."""
    if array.dtype.kind not in "iu":
        raise array.refusal(f"has the dtype {clean(array.dtype)}", "whole numbers")
    if counts:
        _check_fits(array, counts)
    values = array.load().tolist()
    if wrong := [value for value in values if not lowest <= value <= MAX_TOKEN_ID]:
        raise array.refusal(f"holds {wrong[0]}", f"numbers from {lowest} to {MAX_TOKEN_ID}")
    return tuple(values)


def _prompt_lengths(array: StoredArray, shape: tuple[int, ...]) -> tuple[int, ...]:
    rows = math.prod(shape[:-1])
    if len(shape) > 2 or len(array.shape) != 1 or array.size > rows:
        need = f"at most {rows} lengths with sides of (all positions, vocab)"
        raise array.refusal(f"has shape {clean(array.shape)}", need)
    lengths = _whole_numbers(array, None)
    if sum(lengths) != rows or min(lengths) < 1:
        problem = f"adds up to {sum(lengths)}, its smallest is {min(lengths)}"
        raise array.refusal(problem, f"lengths from 1 up that add up to {rows} positions")
    return lengths


def _strings(array: StoredArray, limit: int) -> list[str]:
    """Return the texts of an array of unicode ('U') or UTF-8 bytes ('S'), flat; invalid unicode is replaced."""
    if array.dtype.kind not in "US":
        raise array.refusal(f"has the dtype {clean(array.dtype)}", "text")
    if array.nbytes > limit:
        raise array.refusal(f"takes {array.nbytes} bytes", f"at most {limit}")
    with foreign_errors(array.label, "valid text"):
        loaded = array.load()
        if array.dtype.kind == "U" and int(loaded.view(f"{array.dtype.str[0]}u4").max()) > 0x10FFFF:
            raise ValueError("a character beyond unicode")  # numpy would fail on it with an internal error
    # A token may be a piece of a UTF-8 sequence: its bytes are then shown as such.
    return [
        text.decode("utf-8", "backslashreplace") if isinstance(text, bytes) else _unicode(text)
        for text in loaded.tolist()
    ]


def _unicode(text: str) -> str:
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def _tokens(container: Container, array: StoredArray | None, counts: tuple[int, int]) -> tuple[str, ...]:
    """Return the texts of all tokens, no longer than those of a run may be; empty if there are none."""
    if array is not None:
        _check_fits(array, counts)
        texts = _strings(array, TEXT_BYTES)
    else:
        with foreign_errors(f"{container.name}: 'tokens'", "a JSON list of texts"):
            entries = msgspec.convert(json.loads(container.texts.get("tokens") or "[]"), list[str | list[str]])
        texts = [_unicode(text) for one in entries for text in ([one] if isinstance(one, str) else one)]
        if "tokens" in container.texts and len(texts) != math.prod(counts):
            problem, need = f"'tokens' lists {len(texts)} texts", f"one for each position: {math.prod(counts)}"
            raise DumpError(f"{container.name}: {problem}; expected {need}.")
    try:
        check_token_texts(texts)
    except UsageError as error:
        raise DumpError(f"{container.name}: 'tokens': {error}") from None
    return tuple(texts)
