"""Pairs of lists: rows of equal context, with every figure that follows from what was sent.

Two rows are compared only if both engines had read the same tokens: a prompt's rows up to the first
token that differs, generated ones up to where the sides diverge. If a payload lacks the prompt's
tokens, they are taken for equal, with a note on the pair.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..errors import DumpError
from ..numerics.grid import Grid, find_grid, margin_ulps
from ..numerics.topk import ListFigures, ListRows, compare_rows
from ..text import clean, number, plural
from .alignment import extra_first_token, parting_of, prompt_tokens, sequence
from .placeholders import (
    CONTRADICTION,
    MASKED,
    ROUNDING,
    Placeholders,
    contradictions,
    without_placeholders,
)
from .records import UNSENT, Keys, ListSide

_END = 1 << 32  # beyond every position
LEAST_COMPARED = 0.9  # of the rows: a fault may be in those that are left out


@dataclass(frozen=True)
class Meeting:
    """Two responses to one prompt. parting: first position at which the sides' tokens differ, None
    if they never do; is_prompt_checked: token ids of both prompts are known and were compared.
    """

    prompt: int
    parting: int | None
    is_parting_in_prompt: bool
    is_prompt_checked: bool


@dataclass(frozen=True, eq=False)
class ListPair:
    """Two sides compared at the positions at which both sent a row and had read the same tokens.

    prompts, is_generated: of each position; rows: of both sides there, without placeholders; their
    targets are the tokens emitted or given next. margin_ulps: margins of both sides in ULPs of
    their grid, masked if not sure. grids: of both sides. texts: of tokens, as far as sent.
    placeholders: values of either side that are no values of a model; they are missing in every
    figure. zeros: listed tokens of probability 0 (null, -9999.0, -inf) on either side. certain:
    positions at which both sides send a list with probability 1 for one token and 0 for the rest.
    has_other_text: texts of two responses are known and differ. sent: rows that either side sent,
    or generated and did not send, before the sides diverge.
    """

    reference: str
    variant: str
    keys: Keys
    grids: tuple[Grid | None, Grid | None]
    prompts: NDArray[np.int64]
    is_generated: NDArray[np.bool_]
    rows: tuple[ListRows, ListRows]
    figures: ListFigures
    margin_ulps: tuple[np.ma.MaskedArray, np.ma.MaskedArray]
    meetings: tuple[Meeting, ...]
    texts: Mapping[int, str]
    notes: tuple[str, ...]
    placeholders: tuple[Placeholders, ...] = ()
    zeros: int = 0
    certain: int = 0
    has_other_text: bool = False
    sent: int = 0

    @property
    def positions(self) -> NDArray[np.int64]:
        return self.rows[0].positions

    @cached_property
    def common_values(self) -> int:
        """Values that both sides sent, over all positions."""
        return int(self.figures.common.sum())

    @cached_property
    def differing(self) -> int:
        """Listed values that differ between the sides, over all positions."""
        return int(self.figures.neq.sum())

    @cached_property
    def flips(self) -> int | None:
        """Positions whose top tokens differ, of those that both sides sent; None if there are
        none.
        """
        known = self.figures.is_flip.compressed()
        return int(known.sum()) if len(known) else None

    @cached_property
    def differs_in_tokens(self) -> NDArray[np.bool_]:
        """Whether the top tokens differ, or the emitted ones if both are known. [positions]"""
        one, other = (rows.targets for rows in self.rows)
        return self.figures.is_flip.filled(False) | ((one >= 0) & (other >= 0) & (one != other))

    @cached_property
    def compared(self) -> int:
        """Positions at which both sides have a value."""
        return int(np.logical_and(*(rows.counts > 0 for rows in self.rows)).sum())

    @property
    def is_most_compared(self) -> bool:
        """Whether enough rows are compared for another verdict than `undecided`."""
        return self.compared >= LEAST_COMPARED * self.sent

    @property
    def left_out(self) -> str:
        """`1 of 8 rows compared; others are on one side only, or without usable values`, '' if all
        are compared.
        """
        if self.compared >= self.sent:
            return ""
        rows = f"{self.compared:,} of {plural(self.sent, 'row')} compared"
        return f"{rows}; others are on one side only, or without usable values"

    @property
    def differs(self) -> bool:
        """Whether anything that was sent differs: a value, a top token, or an emitted one."""
        return bool(self.differing or self.differs_in_tokens.any())

    @property
    def is_void(self) -> bool:
        """True if one side alone masks tokens, or placeholders leave no value at more than half of
        the positions.
        """
        is_empty = np.logical_or(*(rows.counts == 0 for rows in self.rows))
        has_one_mask = len({one.side for one in self.placeholders if one.kind == MASKED}) == 1
        return has_one_mask or bool(self.placeholders and 2 * is_empty.sum() > len(self.positions))

    @property
    def in_words(self) -> str:
        """`12 of 400 log-probabilities (2 flips) differ by up to 0.031 nats`, or the first token
        that differs.
        """
        of = f"of {self.common_values:,} log-probabilities"
        if self.differing:
            flips = f" ({plural(self.flips, 'flip')})" if self.flips else ""
            size = f"{number(float(self.figures.max_abs.max()))} nats"
            row = int((self.figures.neq > 0).argmax())
            place = f", the first at {self._place(row)}" if row else ""
            return f"{self.differing:,} {of}{flips} differ by up to {size}{place}"
        if not self.differs_in_tokens.any():
            if not self.common_values:
                return (
                    "no token has a value on both sides at any of"
                    f" {plural(len(self.positions), 'position')}"
                )
            return f"{self.common_values:,} {of} that both sides sent are equal"
        first = int(self.differs_in_tokens.argmax())
        is_flip = self.figures.is_flip.filled(False)[first]
        tops = self.figures.reference_token, self.figures.variant_token
        tokens = [
            int((top if is_flip else rows.targets)[first])
            for top, rows in zip(tops, self.rows, strict=True)
        ]
        names = [
            clean(repr(self.texts[token]), 40) if token in self.texts else f"{token}"
            for token in tokens
        ]
        return (
            f"the {'top ' if is_flip else ''}token at {self._place(first)} differs"
            f" ({' / '.join(names)})"
        )

    def _place(self, row: int) -> str:
        of_prompt = f" of prompt {self.prompts[row]}" if len(self.meetings) > 1 else ""
        return f"position {self.positions[row]:,}{of_prompt}"

    @property
    def compute_dtype(self) -> str | None:
        """The 16-bit format that both sides' values lie on, None if that is open or they differ."""
        names = {None if grid is None else grid.compute_dtype for grid in self.grids}
        return names.pop() if len(names) == 1 else None


def pairs_of(sides: Sequence[ListSide]) -> tuple[ListPair, ...]:
    """Compare the first side with every other one; sides: aligned by `align`."""
    return tuple(compare_sides(sides[0], side) for side in sides[1:])


def compare_sides(reference: ListSide, variant: ListSide) -> ListPair:
    """Compare two aligned sides, response by response.

    DumpError if they have no position of equal context.
    """
    sides = reference, variant
    responses = list(zip(reference.responses, variant.responses, strict=True))
    starts = [
        min(_END if one.generated_from is None else one.generated_from for one in both)
        for both in responses
    ]
    meetings = []
    for prompt, (both, start) in enumerate(zip(responses, starts, strict=True)):
        parting = parting_of(*map(sequence, both))
        is_checked = None not in map(prompt_tokens, both)
        meetings.append(
            Meeting(prompt, parting, parting is not None and parting <= start, is_checked),
        )
    cleaned, placeholders = zip(*map(without_placeholders, sides), strict=True)
    keys = [side.prompts << 32 | side.rows.positions for side in sides]
    ends = np.array([_END if each.parting is None else each.parting for each in meetings])
    shared = np.intersect1d(keys[0], keys[1], assume_unique=True)
    shared = shared[(shared & (_END - 1)) < ends[shared >> 32]]
    if not len(shared):
        raise DumpError(
            f"'{reference.name}' and '{variant.name}' have no position with equal tokens before it,"
            f" so no two rows to compare{_cause(reference, variant)}.",
        )
    sent = np.union1d(keys[0], keys[1])
    unsent = max(
        sum(int(response.settings.get(UNSENT, "0")) for response in side.responses)
        for side in sides
    )
    rows = [
        each.part(np.isin(of_side, shared)) for each, of_side in zip(cleaned, keys, strict=True)
    ]
    contradicts = [contradictions(each) for each in rows]
    # Probability 1 for one token and 0 for every other one, and another token is possible.
    is_certain = [(each.counts == 1) & (each.missing > 0) & (each.largest == 0) for each in rows]
    is_open = [(each.counts > 1) | (each.largest < -ROUNDING) for each in rows]
    missing = [*placeholders[0], *placeholders[1]]
    for index, side in enumerate(sides):
        if (is_on_one_side := contradicts[index] & ~contradicts[1 - index]).any():
            what = "the chosen value contradicts its list, as after sampling settings"
            missing.append(
                Placeholders(
                    side.name,
                    CONTRADICTION,
                    int(is_on_one_side.sum()),
                    len(side.rows),
                    what,
                ),
            )
        is_alone = is_certain[index] & ~is_certain[1 - index] & is_open[1 - index]
        rows[index] = rows[index].without_values(is_alone)
        if is_alone.any():
            what = "probability 1 for one token only, unlike the other side"
            missing.append(
                Placeholders(side.name, "certain", int(is_alone.sum()), len(side.rows), what),
            )
    tops = [
        [each.row(index)[1][:best] for index, best in enumerate(each.best.tolist())]
        for each in cleaned
    ]
    grids = [find_grid(values) for values in tops]
    return ListPair(
        reference.name,
        variant.name,
        reference.keys,
        (grids[0], grids[1]),
        shared >> 32,
        rows[0].positions >= np.array(starts)[shared >> 32],
        (rows[0], rows[1]),
        compare_rows(rows[0], rows[1]),
        (_margin_ulps(rows[0], grids[0]), _margin_ulps(rows[1], grids[1])),
        tuple(meetings),
        {token: text for both in responses for one in both for token, text in one.texts.items()},
        _notes(reference, variant, meetings),
        tuple(sorted(missing, key=lambda one: one.kind != MASKED)),
        sum(int(each.missing[each.counts > 0].sum()) for each in cleaned),
        int((is_certain[0] & is_certain[1]).sum()),
        any(one.text != other.text for one, other in responses if one.text and other.text),
        int(((sent & (_END - 1)) < ends[sent >> 32]).sum()) + unsent,
    )


def vocabulary_size(sides: Sequence[ListSide]) -> int | None:
    """Tokens of the vocabulary, None if no payload says or they differ."""
    sizes = {
        response.vocab
        for side in sides
        for response in side.responses
        if response.vocab is not None
    }
    return sizes.pop() if len(sizes) == 1 else None


def _cause(reference: ListSide, variant: ListSide) -> str:
    """Return a clause on a BOS that only one side has, if it does."""
    for one, other in zip(reference.responses, variant.responses, strict=True):
        prompts = prompt_tokens(one) or (), prompt_tokens(other) or ()
        if (extra := extra_first_token(*prompts)) is not None:
            name, tokens = (reference.name, variant.name)[extra[0]], prompts[extra[0]]
            twice = " twice" if extra[1] else ""
            return f": '{name}' has token {tokens[0]} in front{twice}, a BOS that the other lacks"
    return ""


def _margin_ulps(rows: ListRows, grid: Grid | None) -> np.ma.MaskedArray:
    """Return the margin of each row in ULPs, masked if several counts are likely. [rows]"""
    ulps = np.ma.masked_all(len(rows), np.int64)
    for index, best in enumerate(rows.best.tolist() if grid is not None else ()):
        margin = (
            margin_ulps(rows.row(index)[1][:best], grid) if grid is not None and best > 1 else None
        )
        if margin is not None and margin[0] == margin[1]:
            ulps[index] = margin[0]
    return ulps


def _notes(reference: ListSide, variant: ListSide, meetings: Sequence[Meeting]) -> tuple[str, ...]:
    """Return what a reader of the comparison has to know, a sentence each."""
    notes: list[str] = []
    if unchecked := sum(not meeting.is_prompt_checked for meeting in meetings):
        prompts = f"{unchecked} of {len(meetings)} prompts"
        notes.append(
            f"The token ids of {prompts} are not known on both sides; they are taken for equal.",
        )
    for what, in_prompt in (("Generated tokens", False), ("The inputs", True)):
        parted = [
            one
            for one in meetings
            if one.parting is not None and one.is_parting_in_prompt == in_prompt
        ]
        if parted:
            of = f" of prompt {parted[0].prompt}" if len(meetings) > 1 else ""
            more = f", and in {plural(len(parted) - 1, 'more prompt')}" if len(parted) > 1 else ""
            place = f"position {parted[0].parting}{of} on{more}"
            notes.append(f"{what} differ from {place}; rows after it are not compared.")
    if reference.keys == "text":
        notes.append("Tokens are joined by text: the lists of a side have no token ids.")
    for side in (reference, variant):
        warnings = dict.fromkeys(
            warning for response in side.responses for warning in response.warnings
        )
        notes.extend(f"{side.name}: {warning}" for warning in warnings)
    return tuple(notes)
