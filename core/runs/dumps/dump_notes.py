"""Notes for a user on a dump that is taken all the same, from the first rows of its sides."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...numerics.formats import FloatFormat, format_named, values_of
from ...text import shown
from ..file.records import Prompt
from .source_dtype import DumpSide, looks_chosen, looks_normalised, narrowest

LOGITS_ALL_THE_SAME = "--holds logits (on the Upload page, 'Holds') where that is what they are"
_LEAST_VALUES, _MANY_VALUES = 32, 1 << 16  # different ones, of so many: fewer say nothing of a side's dtype
_SMALL_VOCABULARY, _LONG_PROMPT = 256, 1000  # bytes alone are 256 tokens; a prompt of more beside that few is rare


def notes_on(
    name: str,
    sides: Sequence[DumpSide],
    prompts: Sequence[Prompt],
    first: Sequence[NDArray[np.unsignedinteger]],
    fmt: FloatFormat,
    *,
    are_logits: bool,
) -> list[str]:
    """Notes for a user on a dump that is taken all the same. DumpError where its first rows are no logits of
    [positions, vocab].

    name: of its files; first: rows of every side, bits of `fmt`, its compute dtype [n, vocab]; are_logits: the user
    says so.
    """
    vocab, rows = first[0].shape[1], sum(prompt.positions for prompt in prompts)
    found = []
    for side in sides:
        if side.source.is_double:
            found.append(
                f"{side.source.array.where} is float64; its values are all float32, so it is kept, and exported, as"
                " float32."
            )
    highest = max((max(prompt.token_ids) for prompt in prompts if prompt.token_ids), default=0)
    if highest >= vocab:
        found.append(
            f"{name}: token_ids holds {highest}, beyond the vocabulary of {vocab}; are the ids those of these logits?"
        )
    longest = max(prompt.positions for prompt in prompts)
    if vocab < _SMALL_VOCABULARY and longest > _LONG_PROMPT:
        found.append(
            f"{name}: {longest:,} positions of {vocab:,} tokens each; if it is [vocab, positions], save it transposed"
            " (array.T)."
        )
    for side, bits in zip(sides, first, strict=True):
        values = values_of(bits, fmt)
        what = looks_normalised(values)
        if what:
            found.append(
                f"{side.source.array.where} looks like {what}: its sampled rows sum to 1; ULPs and margins are of"
                " those, not logits."
            )
        elif looks_chosen(values) and not are_logits:
            found.append(_chosen(side, rows, vocab))
    return found + _dtypes_apart(sides, first, fmt)


def _chosen(side: DumpSide, rows: int, vocab: int) -> str:
    """A sentence for log-probabilities of chosen tokens; DumpError where there are more rows than a vocabulary would
    have columns.
    """
    looks = (
        f"looks like chosen-token log-probabilities of {rows:,} sequences of {vocab:,} tokens, not"
        " [positions, vocab]: no value is above 0, and the rows add up to more than 1 as probabilities"
    )
    array = side.source.array
    if rows > vocab:
        raise array.refusal(looks, f"the logits of every token of the vocabulary, or {LOGITS_ALL_THE_SAME}")
    return (
        f"{array.where} {looks}; if it is so, every figure here is meaningless: save the logits of every token of the"
        " vocabulary."
    )


def _dtypes_apart(
    sides: Sequence[DumpSide], first: Sequence[NDArray[np.unsignedinteger]], fmt: FloatFormat
) -> list[str]:
    """Notes on ULPs where sides were saved or computed in different dtypes. first: rows of every side, bits of the
    compute dtype.
    """
    holds: dict[str, str] = {}  # side -> dtype of its values
    for side, bits in zip(sides, first, strict=True):
        if side.source.fmt.bits == 16 and side.source.fmt is not fmt:
            holds[side.header.name] = side.source.fmt.name
        else:
            says = len(np.unique(bits.reshape(-1)[:_MANY_VALUES])) >= _LEAST_VALUES
            holds[side.header.name] = narrowest(bits, fmt).name if says else fmt.name
    coarse = {name: dtype for name, dtype in holds.items() if dtype != fmt.name}
    saved = dict.fromkeys(side.header.source_dtype for side in sides)
    if coarse and len(set(holds.values())) > 1:
        steps = max(1 << (fmt.mantissa_bits - format_named(dtype).mantissa_bits) for dtype in coarse.values())
        coarsest = max(coarse.values(), key=lambda dtype: -format_named(dtype).mantissa_bits)
        return [
            f"the sides are of different dtypes: {_listed(holds)}. ULPs are of {fmt.name} on every side, and"
            f" one step of {coarsest} is up to {steps:,} of them, so rounding to it alone is up to {steps // 2:,} ULPs:"
            " go by differences in logits, or compare sides of one dtype."
        ]
    if len(saved) > 1:
        return [
            f"the sides were saved in different dtypes ({', '.join(saved)}); ULPs are of {fmt.name} on every side,"
            " which holds every value."
        ]
    return []


def _listed(dtypes: dict[str, str]) -> str:
    """`'a', 'b' hold bfloat16 values, 'c' holds float32 values`, the first few by name."""
    found = []
    for dtype in dict.fromkeys(dtypes.values()):
        names = [f"'{shown(name, 40)}'" for name, held in dtypes.items() if held == dtype]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        found.append(f"{', '.join(names[:3])}{more} {'holds' if len(names) == 1 else 'hold'} {dtype} values")
    return ", ".join(found)
