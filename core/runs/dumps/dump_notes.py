"""Notes for a user on a valid dump, from the first rows of its sides."""

from collections.abc import Sequence

import numpy as np

from ...numerics.arrays import Bits
from ...numerics.formats import BFLOAT16, FLOAT16, FloatFormat, values_of
from ...text import clean
from ..file.records import Prompt
from .shapes import HOLDS, LOGITS
from .source_dtype import DumpSide, convert, looks_chosen, looks_normalised

# different ones, of so many: fewer say nothing of a side's dtype
_LEAST_VALUES, _MANY_VALUES = 32, 1 << 16


def notes_on(
    name: str,
    sides: Sequence[DumpSide],
    prompts: Sequence[Prompt],
    first: Sequence[Bits],
    fmt: FloatFormat,
    *,
    has_tokens: bool,
    are_logits: bool,
) -> list[str]:
    """Return notes for a user on a valid dump. DumpError if its first rows are no logits of
    [positions, vocab].

    name: of its files; first: rows of every side, bits of `fmt`, its compute dtype [n, vocab];
    has_tokens: False of values, any of which will do; are_logits: the user says so.
    """
    vocab, rows = first[0].shape[1], sum(prompt.positions for prompt in prompts)
    notes = [
        f"{side.array.label} is float64; its values are all float32, so it is kept, and exported,"
        " as float32."
        for side in sides
        if side.is_double
    ]
    if not has_tokens:
        return notes + _notes_on_dtypes(sides, first, fmt)
    longest = max(prompt.positions for prompt in prompts)
    is_transposed = vocab < longest  # perhaps
    if is_transposed:
        notes.append(
            f"{name}: {longest:,} positions of {vocab:,} tokens each; if it is [vocab, positions],"
            " save it transposed (array.T).",
        )
    for side, bits in zip(sides, first, strict=True):
        array, values = side.array, values_of(bits, fmt)
        what = looks_normalised(values)
        if is_transposed and not what and len(values) == longest and looks_normalised(values.T):
            raise array.refusal(
                "has columns that sum to 1 as probabilities, and rows that do not",
                "[positions, vocab]: save it transposed (array.T)",
            )
        if what:
            notes.append(
                f"{array.label} looks like {what}: its sampled rows sum to 1; ULPs and margins are"
                " of those, not logits.",
            )
        elif looks_chosen(values) and not are_logits:
            looks = (
                f"looks like chosen-token log-probabilities of {rows:,} sequences of {vocab:,}"
                " tokens, not [positions, vocab]: no value is above 0, and the rows add up to more"
                " than 1 as probabilities"
            )
            if rows > vocab:
                raise array.refusal(
                    looks,
                    f"the logits of every token of the vocabulary, or {HOLDS.format(LOGITS)}",
                )
            notes.append(
                f"{array.label} {looks}; if it is so, every figure here is meaningless: save the"
                " logits of every token of the vocabulary.",
            )
    return notes + _notes_on_dtypes(sides, first, fmt)


def _notes_on_dtypes(
    sides: Sequence[DumpSide],
    first: Sequence[Bits],
    fmt: FloatFormat,
) -> list[str]:
    """Return notes on ULPs of sides saved or computed in different dtypes. first: bits of the
    compute dtype.
    """
    holds: dict[FloatFormat, list[str]] = {}  # dtype of the values -> sides
    for side, bits in zip(sides, first, strict=True):
        source, dtype = side.fmt, fmt
        if source.bits == 16 and source is not fmt:
            dtype = source
        elif len(np.unique(bits.reshape(-1)[:_MANY_VALUES])) >= _LEAST_VALUES:
            narrow = (each for each in (BFLOAT16, FLOAT16) if convert(bits, fmt, each) is not None)
            dtype = next(narrow, fmt)
        holds.setdefault(dtype, []).append(f"'{clean(side.name, 40)}'")
    saved = dict.fromkeys(side.fmt.name for side in sides)
    if len(holds) > 1:
        coarsest = min(holds, key=lambda each: each.mantissa_bits)
        steps = 1 << (fmt.mantissa_bits - coarsest.mantissa_bits)
        summaries = [
            f"{', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}"
            f" {'holds' if len(names) == 1 else 'hold'} {dtype.name} values"
            for dtype, names in holds.items()
        ]
        return [
            (
                f"the sides are of different dtypes: {', '.join(summaries)}. ULPs are of {fmt.name}"
                f" on every side. Rounding to {coarsest.name} alone is up to {steps // 2:,} of"
                " them: read differences in logits, or compare sides of one dtype."
            ),
        ]
    if len(saved) > 1:
        return [
            f"the sides were saved in different dtypes ({', '.join(saved)}); ULPs are of"
            f" {fmt.name} on every side, which holds every value.",
        ]
    return []
