"""The reserved keys of a dump: token_ids (input_ids, prompt_token_ids), tokens, prompt_lengths, compute_dtype,
reference_side, meta, and for each side `emitted` and `dtype`. Read, checked, and laid over its rows.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from ...errors import DumpError, UsageError
from ...numerics.formats import LOGIT_FORMATS, FloatFormat, format_named
from ...text import shown
from ..file.bounds import LONGEST_NOTE
from ..file.records import Prompt, check_token_texts
from .arrays import StoredArray, foreign_errors, load
from .containers import Container

TOKEN_IDS = ("token_ids", "input_ids", "prompt_token_ids")  # the first that is there counts
RESERVED = (*TOKEN_IDS, "tokens", "prompt_lengths", "compute_dtype", "reference_side", "meta")
EMITTED = "emitted"  # in a file of one side; `emitted:SIDE` beside several
DTYPE = "dtype:"  # and the side whose 16-bit bits it names, where compute_dtype is another
TEXT_BYTES = 64 << 20  # the texts of all tokens, as an array
META_BYTES = LONGEST_NOTE // 2  # of UTF-8: it becomes part of the run's note
MAX_TOKEN_ID = (1 << 31) - 1


def is_reserved(key: str) -> bool:
    """Return whether a key of a dump is no side."""
    return key in RESERVED or key == EMITTED or key.startswith((f"{EMITTED}:", DTYPE))


def sides_of(container: Container, fewest: int = 1) -> tuple[dict[str, StoredArray], list[StoredArray]]:
    """(arrays that are sides by key, whole numbers such as an attention mask, which are none) of a file.

    16-bit integers may be bits of logits. Where fewer than `fewest` sides would be left, whole numbers count as sides,
    to be refused by name.
    """
    arrays = {key: array for key, array in container.arrays.items() if not is_reserved(key) or container.kind == "npy"}
    sides = {key: array for key, array in arrays.items() if array.dtype.kind not in "iub" or array.dtype.itemsize == 2}
    if len(sides) < fewest:
        return arrays, []
    return sides, [array for key, array in arrays.items() if key not in sides]


@dataclass(frozen=True)
class Layout:
    """Layout of rows by prompt. vocab: tokens; prompts: with ids and texts where the dump has them; rows: positions of
    them all.
    """

    vocab: int
    prompts: tuple[Prompt, ...]

    @property
    def rows(self) -> int:
        return sum(prompt.positions for prompt in self.prompts)


@dataclass(frozen=True)
class Reserved:
    """Reserved keys of one file, beside its logits. lengths: positions of each prompt; token_ids, texts: of all rows,
    or empty.

    emitted: by side ('' for the only side of the file), the token chosen from the logits of each row, -1 where it was
    given. side_dtypes: what the 16-bit bits of a side are, by its name; reference: the side the others are compared
    with, '' where it is not said.
    """

    file: str
    vocab: int
    lengths: tuple[int, ...]
    token_ids: tuple[int, ...]
    texts: tuple[str, ...]
    compute_dtype: FloatFormat | None
    meta: str
    emitted: dict[str, tuple[int, ...]]
    side_dtypes: dict[str, FloatFormat]
    reference: str

    def over(self, other: Reserved | None) -> Layout:
        """The layout of a dump, filled up from the second file of a pair; the two must not contradict each other."""
        lengths, token_ids, texts = self.lengths, self.token_ids, self.texts
        if other is not None:
            if token_ids and other.token_ids and token_ids != other.token_ids:
                raise DumpError(
                    f"{other.file}: 'token_ids' are others than in {self.file}; expected both sides to be of the same"
                    " tokens."
                )
            if len(lengths) > 1 and len(other.lengths) > 1 and lengths != other.lengths:
                raise DumpError(
                    f"{other.file}: 'prompt_lengths' are others than in {self.file}; expected both sides to be of the"
                    " same prompts."
                )
            lengths = max(lengths, other.lengths, key=len)
            token_ids, texts = token_ids or other.token_ids, texts or other.texts
        prompts, start = [], 0
        for length in lengths:
            prompts.append(Prompt(length, token_ids[start : start + length], texts[start : start + length]))
            start += length
        return Layout(self.vocab, tuple(prompts))


def read_reserved(container: Container, shape: tuple[int, ...]) -> Reserved:
    """The reserved keys of one file whose sides have `shape`: [vocab], [positions, vocab] or [prompts, positions,
    vocab].
    """
    arrays = container.arrays
    if container.kind == "npy":
        arrays = {}
    counts = (shape[0], shape[1]) if len(shape) == 3 else (1, math.prod(shape[:-1]))
    lengths: tuple[int, ...] = (counts[1],) * counts[0]
    if "prompt_lengths" in arrays:
        lengths = _prompt_lengths(arrays["prompt_lengths"], shape)
    named = _text(container, "compute_dtype")
    compute_dtype = None if named is None else _dtype(container, "compute_dtype", named)
    of_sides = [key for key in (*arrays, *container.texts) if key.startswith(DTYPE)]
    side_dtypes = {key.removeprefix(DTYPE): _dtype(container, key, _text(container, key) or "") for key in of_sides}
    for side in side_dtypes.keys() - arrays.keys():
        raise _refusal(container, f"{DTYPE}{shown(side, 60)}", "belongs to no side", f"'{DTYPE}SIDE'")
    meta = _text(container, "meta") or ""
    if (size := len(meta.encode("utf-8", "replace"))) > META_BYTES:
        raise _refusal(container, "meta", f"takes {size:,} bytes", f"at most {META_BYTES:,}")
    if meta:
        with foreign_errors(f"{container.name}: 'meta'", "one JSON text"):
            json.loads(meta)
    has_numbers = "tokens" in arrays and arrays["tokens"].dtype.kind in "iu"
    named_ids = [key for key in TOKEN_IDS if key in arrays] + (["tokens"] if has_numbers else [])
    ids = _token_ids(arrays[named_ids[0]], counts, shape[-1]) if named_ids else ()
    emitted = {
        key.partition(":")[2]: _emitted(array, counts)
        for key, array in arrays.items()
        if key == EMITTED or key.startswith(f"{EMITTED}:")
    }
    reference = _text(container, "reference_side") or ""
    if reference and (reference not in arrays or is_reserved(reference)):
        raise _refusal(container, "reference_side", f"is '{shown(reference, 60)}'", "the name of a side")
    return Reserved(
        container.name,
        shape[-1],
        lengths,
        ids,
        () if has_numbers else _tokens(container, counts),
        compute_dtype,
        meta,
        emitted,
        side_dtypes,
        reference,
    )


def _dtype(container: Container, key: str, named: str) -> FloatFormat:
    try:
        return format_named(named.strip())
    except UsageError:
        raise _refusal(container, key, f"is '{shown(named)}'", f"one of {', '.join(LOGIT_FORMATS)}") from None


def _refusal(container: Container, key: str, found: str, expected: str) -> DumpError:
    return DumpError(f"{container.name}: '{key}' {found}; expected {expected}.")


def _whole_numbers(array: StoredArray, shape_fits: bool, expected: str, *, lowest: int = 0) -> NDArray[Any]:
    """A small array of integers from `lowest` up, loaded once its dtype and shape are known to be right. Flat, C
    order.
    """
    if array.dtype.kind not in "iu":
        raise array.refusal(f"has the dtype {shown(array.dtype)}", "whole numbers")
    if not shape_fits:
        raise array.refusal(f"has shape {shown(array.shape)}", expected)
    values = load(array).reshape(-1)
    if int(values.min()) < lowest or int(values.max()) > MAX_TOKEN_ID:
        wrong = values[(values < lowest) | (values > MAX_TOKEN_ID)][0]
        raise array.refusal(f"holds {wrong}", f"numbers from {lowest} to {MAX_TOKEN_ID}")
    return values


def _fits(shape: tuple[int, ...], counts: tuple[int, int]) -> bool:
    """One entry for each position: the shape of the sides without their vocabulary, axes of size 1 as one likes."""
    return [n for n in shape if n != 1] == [n for n in counts if n != 1]


def _one_each(counts: tuple[int, int]) -> str:
    return (
        f"one for each position: {counts[1]}" if counts[0] == 1 else f"one for each position of each prompt: {counts}"
    )


def _token_ids(array: StoredArray, counts: tuple[int, int], vocab: int) -> tuple[int, ...]:
    if array.size == vocab != counts[0] * counts[1]:
        raise array.refusal(
            f"has {vocab} ids, as many as the last axis of the sides",
            "sides of [positions, vocab]: save them transposed (array.T)",
        )
    return tuple(_whole_numbers(array, _fits(array.shape, counts), _one_each(counts)).tolist())


def _emitted(array: StoredArray, counts: tuple[int, int]) -> tuple[int, ...]:
    return tuple(_whole_numbers(array, _fits(array.shape, counts), _one_each(counts), lowest=-1).tolist())


def _prompt_lengths(array: StoredArray, shape: tuple[int, ...]) -> tuple[int, ...]:
    rows = math.prod(shape[:-1])
    fits = len(shape) <= 2 and len(array.shape) == 1 and array.size <= rows
    lengths = _whole_numbers(array, fits, f"at most {rows} lengths beside sides of (all positions, vocab)").tolist()
    if sum(lengths) != rows or min(lengths) < 1:
        raise array.refusal(
            f"adds up to {sum(lengths)}, its smallest is {min(lengths)}",
            f"lengths from 1 up that add up to {rows} positions",
        )
    return tuple(lengths)


def _strings(array: StoredArray, limit: int) -> list[str]:
    """The texts of an array of unicode ('U') or UTF-8 bytes ('S'), flat; what is no valid unicode is replaced."""
    if array.dtype.kind not in "US":
        raise array.refusal(f"has the dtype {shown(array.dtype)}", "text")
    if array.nbytes > limit:
        raise array.refusal(f"takes {array.nbytes} bytes", f"at most {limit}")
    with foreign_errors(array.where, "valid text"):
        loaded = load(array).reshape(-1)
        if array.dtype.kind == "U" and int(loaded.view(f"{array.dtype.str[0]}u4").max()) > 0x10FFFF:
            raise ValueError("a character beyond unicode")  # numpy would fail on it with an internal error
        values = loaded.tolist()
    # A token may be a piece of a UTF-8 sequence: its bytes are then shown as such.
    return [
        (
            v.decode("utf-8", "backslashreplace")
            if isinstance(v, bytes)
            else v.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
        )
        for v in values
    ]


def _text(container: Container, key: str) -> str | None:
    """A reserved single text, from an array or from safetensors' `__metadata__`; None where there is none."""
    array = container.arrays.get(key) if container.kind != "npy" else None
    if array is None:
        return container.texts.get(key)
    if array.size != 1:
        raise array.refusal(f"has shape {shown(array.shape)}", "a single text")
    return _strings(array, 4 * META_BYTES)[0]  # numpy's characters have four bytes each


def _tokens(container: Container, counts: tuple[int, int]) -> tuple[str, ...]:
    array = container.arrays.get("tokens") if container.kind != "npy" else None
    if array is not None:
        if not _fits(array.shape, counts):
            raise array.refusal(f"has shape {shown(array.shape)}", _one_each(counts))
        return _checked(container, _strings(array, TEXT_BYTES))
    if "tokens" not in container.texts:
        return ()
    with foreign_errors(f"{container.name}: 'tokens'", "a JSON list of texts"):
        listed: Any = json.loads(container.texts["tokens"])
        if listed and isinstance(listed, list) and all(isinstance(part, list) for part in listed):
            listed = [text for part in listed for text in part]
        if not isinstance(listed, list) or not all(isinstance(text, str) for text in listed):
            raise ValueError("something else")
        listed = [text.encode("utf-8", "surrogatepass").decode("utf-8", "replace") for text in listed]
    if len(listed) != counts[0] * counts[1]:
        raise _refusal(container, "tokens", f"lists {len(listed)} texts", _one_each(counts))
    return _checked(container, listed)


def _checked(container: Container, texts: list[str]) -> tuple[str, ...]:
    """The texts of all tokens, no longer than those of a run may be."""
    try:
        check_token_texts(texts)
    except UsageError as error:
        raise DumpError(f"{container.name}: 'tokens': {error}") from None
    return tuple(texts)
