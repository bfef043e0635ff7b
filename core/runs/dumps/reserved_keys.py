"""The reserved keys of a dump: token_ids (input_ids, prompt_token_ids), tokens, prompt_lengths,
compute_dtype, reference_side, meta, and for each side `emitted`. Read, checked, and laid over its
rows.
"""

import math
from dataclasses import dataclass

import msgspec

from ...errors import DumpError, UsageError
from ...numerics.formats import LOGIT_FORMATS, FloatFormat, format_named
from ...text import clean
from ..file.records import LONGEST_NOTE, Prompt, check_token_texts
from .arrays import Arrays, Shape, StoredArray, foreign_errors
from .containers import Container

TOKEN_IDS = ("token_ids", "input_ids", "prompt_token_ids")  # the first that is there counts
RESERVED = (
    *TOKEN_IDS,
    "tokens",
    "prompt_lengths",
    "compute_dtype",
    "reference_side",
    "holds",
    "meta",
)
# the key in a file of one side; it is `emitted:SIDE` in a file of several
EMITTED = "emitted"
# the exact result of what the sides compute, and `trusted:NAME`: trusted ones in their dtype
EXACT, TRUSTED = "exact", "trusted"
TEXT_BYTES = 64 << 20  # the texts of all tokens, as an array
# half of a note: it becomes part of the run's
META_BYTES = LONGEST_NOTE // 2
MAX_TOKEN_ID = (1 << 31) - 1


def is_reserved(key: str) -> bool:
    """Return whether a key of a dump is no side."""
    return key in RESERVED or key.partition(":")[0] == EMITTED


def is_exact(key: str) -> bool:
    """Return whether a key of a dump is the exact result, or a trusted one."""
    return key == EXACT or key.startswith(f"{TRUSTED}:")


def sides_of(
    container: Container,
    fewest: int = 1,
) -> tuple[Arrays, list[StoredArray]]:
    """(arrays that are sides by key, whole numbers such as an attention mask, which are none) of a
    file.

    16-bit integers may be bits of logits. If fewer than `fewest` sides would be left, whole numbers
    count as sides, to be refused by name. Beside two sides, exact and trusted results are none.
    """
    arrays = {
        key: array
        for key, array in container.arrays.items()
        if not (is_reserved(key) and container.named)
    }
    sides = {
        key: array
        for key, array in arrays.items()
        if array.dtype.kind not in "iub" or array.dtype.itemsize == 2
    }
    if len(sides) < fewest:
        return arrays, []
    whole_numbers = [array for key, array in arrays.items() if key not in sides]
    on_trial = {key: array for key, array in sides.items() if not is_exact(key)}
    if EXACT in sides and len(on_trial) > 1:
        sides = on_trial
    return sides, whole_numbers


def exact_of(container: Container) -> Arrays:
    """Return the exact result of a file, first, and the trusted ones; of a file that calls none
    exact, all sides.
    """
    arrays = container.named
    if EXACT not in arrays:
        return sides_of(container)[0]
    return {key: arrays[key] for key in (EXACT, *arrays) if is_exact(key)}


@dataclass(frozen=True)
class Reserved:
    """Reserved keys of one file. lengths: positions of each prompt; token_ids, texts: of all rows,
    or empty.

    emitted: by side ('' for the only side of the file), the token chosen from the logits of each
    row, -1 if it was given. reference: the side the others are compared with, '' if the file names
    none.
    """

    file: str
    lengths: tuple[int, ...]
    token_ids: tuple[int, ...]
    texts: tuple[str, ...]
    compute_dtype: FloatFormat | None
    meta: str
    emitted: dict[str, tuple[int, ...]]
    reference: str


def prompts_of(one: Reserved, other: Reserved) -> tuple[Prompt, ...]:
    """Return the prompts of a dump; of a pair of files the union, which must not be
    contradictory.
    """
    for key, first, second in (
        ("token_ids", one.token_ids, other.token_ids),
        ("prompt_lengths", one.lengths[1:] and one.lengths, other.lengths[1:] and other.lengths),
    ):
        if first and second and first != second:
            raise DumpError(
                f"{other.file}: '{key}' are others than in {one.file}; expected both sides to be of"
                " the same prompts.",
            )
    ids, texts = one.token_ids or other.token_ids, one.texts or other.texts
    prompts, start = [], 0
    for length in max(one.lengths, other.lengths, key=len):
        rows = slice(start, start + length)
        prompts.append(Prompt(length, ids[rows], texts[rows]))
        start += length
    return tuple(prompts)


def holds_values(container: Container) -> bool:
    """Return whether a file says that its rows are no logits."""
    holds = _text(container, "holds")
    if holds not in ("", "logits", "values"):
        raise DumpError(
            f"{container.name}: 'holds' is '{clean(holds, 40)}'; expected logits or values.",
        )
    return holds == "values"


def read_reserved(container: Container, shape: Shape) -> Reserved:
    """Return the reserved keys of one file whose sides have `shape`, [..., vocab] of one to three
    axes.
    """
    name, arrays = container.name, container.named
    prompts, positions = (1, 1, *shape[:-1])[-2:]
    counts, lengths = (prompts, positions), (positions,) * prompts
    if "prompt_lengths" in arrays:
        array = arrays["prompt_lengths"]
        rows = math.prod(shape[:-1])
        need = (
            f"lengths from 1 up that add up to {rows} positions, with sides of (all positions,"
            " vocab)"
        )
        if len(shape) > 2 or len(array.shape) != 1 or array.size > rows:
            raise array.refusal(f"has shape {clean(array.shape)}", need)
        lengths = _whole_numbers(array, None, lowest=1)
        if sum(lengths) != rows:
            raise array.refusal(f"adds up to {sum(lengths)}", need)
    meta, dtype, reference = (
        _text(container, key) for key in ("meta", "compute_dtype", "reference_side")
    )
    if (size := len(meta.encode("utf-8", "replace"))) > META_BYTES:
        raise DumpError(f"{name}: 'meta' takes {size:,} bytes; expected at most {META_BYTES:,}.")
    try:
        compute_dtype = format_named(dtype.strip()) if dtype else None
    except UsageError:
        expected = ", ".join(LOGIT_FORMATS)
        raise DumpError(
            f"{name}: 'compute_dtype' is '{clean(dtype)}'; expected one of {expected}.",
        ) from None
    if reference and (reference not in arrays or is_reserved(reference)):
        raise DumpError(
            f"{name}: 'reference_side' is '{clean(reference, 60)}'; expected the name of a side.",
        )
    tokens = arrays.get("tokens")
    has_numbers = tokens is not None and tokens.dtype.kind in "iu"
    with_ids = [arrays[key] for key in (*TOKEN_IDS, *["tokens"] * has_numbers) if key in arrays]
    emitted = {}
    for key, array in arrays.items():
        what, _, side = key.partition(":")
        is_emitted = what == EMITTED
        if not is_emitted and key not in (*TOKEN_IDS, "tokens"):
            continue
        if array.size == shape[-1] != math.prod(counts):
            raise array.refusal(
                f"has {shape[-1]} entries, as many as the last axis of the sides",
                "sides of [positions, vocab]: save them transposed (array.T)",
            )
        if is_emitted:
            emitted[side] = _whole_numbers(array, counts, lowest=-1)
    ids = _whole_numbers(with_ids[0], counts) if with_ids else ()
    texts = () if has_numbers else _tokens(container, tokens, counts)
    return Reserved(name, lengths, ids, texts, compute_dtype, meta, emitted, reference)


def _text(container: Container, key: str) -> str:
    """Return a single text, from an array or from safetensors' `__metadata__`; empty if there is
    none.
    """
    array = container.named.get(key)
    if array is None:
        return container.texts.get(key, "")
    if array.size != 1:
        raise array.refusal(f"has shape {clean(array.shape)}", "a single text")
    # numpy's characters have four bytes each
    return _strings(array, 4 * META_BYTES)[0]


def _check_fits(array: StoredArray, counts: tuple[int, int]) -> None:
    """Raise DumpError unless there is one entry per position; axes of size 1 are ignored."""
    if [n for n in array.shape if n != 1] != [n for n in counts if n != 1]:
        many = counts[1] if counts[0] == 1 else f"{counts}, prompts and positions"
        raise array.refusal(f"has shape {clean(array.shape)}", f"one for each position: {many}")


def _whole_numbers(
    array: StoredArray,
    counts: tuple[int, int] | None,
    lowest: int = 0,
) -> tuple[int, ...]:
    """Return a small array of integers from `lowest` up, one a position of `counts`.

    Flat, C order.
    """
    if array.dtype.kind not in "iu":
        raise array.refusal(f"has the dtype {clean(array.dtype)}", "whole numbers")
    if counts:
        _check_fits(array, counts)
    values = array.load().tolist()
    if wrong := [value for value in values if not lowest <= value <= MAX_TOKEN_ID]:
        raise array.refusal(f"holds {wrong[0]}", f"numbers from {lowest} to {MAX_TOKEN_ID}")
    return tuple(values)


def _strings(array: StoredArray, limit: int) -> list[str]:
    """Return the texts of an array of unicode ('U') or UTF-8 bytes ('S'), flat; invalid unicode is
    replaced.
    """
    if array.dtype.kind not in "US" or array.nbytes > limit:
        raise array.refusal(
            f"has {array.nbytes} bytes of the dtype {clean(array.dtype)}",
            f"text of at most {limit} bytes",
        )
    with foreign_errors(array.label, "valid text"):
        texts = array.load().tolist()
    # A token may be a piece of a UTF-8 sequence: its bytes are then shown as such.
    return [
        text.decode("utf-8", "backslashreplace") if isinstance(text, bytes) else _unicode(text)
        for text in texts
    ]


def _unicode(text: str) -> str:
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def _tokens(
    container: Container,
    array: StoredArray | None,
    counts: tuple[int, int],
) -> tuple[str, ...]:
    """Return the texts of all tokens, no longer than those of a run may be; empty if there are
    none.
    """
    if array:
        _check_fits(array, counts)
        texts = _strings(array, TEXT_BYTES)
    else:
        listed = container.texts.get("tokens", "")
        with foreign_errors(f"{container.name}: 'tokens'", "a JSON list of texts"):
            entries = msgspec.json.decode(listed or "[]", type=list[str | list[str]])
        texts = []
        for entry in entries:
            texts += map(_unicode, [entry] if isinstance(entry, str) else entry)
        if "tokens" in container.texts and len(texts) != math.prod(counts):
            raise DumpError(
                f"{container.name}: 'tokens' lists {len(texts)} texts; expected one for each"
                f" position: {math.prod(counts)}.",
            )
    try:
        check_token_texts(texts)
    except UsageError as error:
        raise DumpError(f"{container.name}: 'tokens': {error}") from None
    return tuple(texts)
