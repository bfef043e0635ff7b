"""Pairs of sides: rows of equal context, with every figure that follows from what was sent.

Two rows are compared only if both engines had read the same tokens: a prompt's rows up to the first
token that differs, generated ones up to where the sides diverge. If a payload lacks the prompt's
tokens, they are taken for equal, with a note on the pair.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..errors import DumpError
from ..numerics.arrays import Flags, Floats, Ints
from ..numerics.grid import Grid, find_grid, margin_ulps
from ..numerics.top_tokens import TopTokenFigures, TopTokenRows, compare_rows
from ..text import clean, number, plural
from .alignment import extra_first_token, prompt_tokens, sequence
from .placeholders import (
    CONTRADICTION,
    MASKED,
    ROUNDING,
    Placeholders,
    without_placeholders,
)
from .records import UNKNOWN_TOKEN, UNSENT, Keys, Response, ResponseSide

_END = 1 << 32  # beyond every position
# of the rows: a fault may be in those that are left out
LEAST_COMPARED = 0.9


@dataclass(frozen=True)
class Meeting:
    """Two responses to one prompt. start: first position that either side generated; parting: first
    position at which the sides' tokens differ, None if they never do; is_prompt_checked: token ids
    of both prompts are known and were compared.
    """

    prompt: int
    start: int
    parting: int | None
    is_prompt_checked: bool

    @property
    def is_parting_in_prompt(self) -> bool:
        return self.parting is not None and self.parting <= self.start

    @property
    def end(self) -> int:
        return _END if self.parting is None else self.parting


@dataclass(frozen=True, eq=False)
class ResponsePair:
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
    prompts: Ints
    is_generated: Flags
    rows: tuple[TopTokenRows, TopTokenRows]
    figures: TopTokenFigures
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
    def positions(self) -> Ints:
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
    def differs_in_tokens(self) -> Flags:
        """Whether the top tokens differ, or the emitted ones if both are known. [positions]"""
        one, other = (rows.targets for rows in self.rows)
        return self.figures.is_flip.filled(False) | ((one >= 0) & (other >= 0) & (one != other))

    @cached_property
    def compared(self) -> int:
        """Positions at which both sides have a value."""
        one, other = self.rows
        return int(((one.counts > 0) & (other.counts > 0)).sum())

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
        has_one_mask = len({one.side for one in self.placeholders if one.kind == MASKED}) == 1
        are_few = 2 * self.compared < len(self.positions)
        return has_one_mask or bool(self.placeholders and are_few)

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
        what = "token"
        tokens = [rows.targets[first] for rows in self.rows]
        if self.figures.is_flip.filled(False)[first]:
            what = "top token"
            tokens = [self.figures.reference_token[first], self.figures.variant_token[first]]
        names = []
        for token in map(int, tokens):
            is_known = token in self.texts
            names.append(clean(repr(self.texts[token]), 40) if is_known else f"{token}")
        return f"the {what} at {self._place(first)} differs ({' / '.join(names)})"

    def _place(self, row: int) -> str:
        of_prompt = f" of prompt {self.prompts[row]}" if len(self.meetings) > 1 else ""
        return f"position {self.positions[row]:,}{of_prompt}"

    @property
    def compute_dtype(self) -> str | None:
        """The 16-bit format that both sides' values lie on, None if that is open or they differ."""
        names = {None if grid is None else grid.compute_dtype for grid in self.grids}
        return names.pop() if len(names) == 1 else None


def pairs_of(sides: Sequence[ResponseSide]) -> tuple[ResponsePair, ...]:
    """Compare the first side with every other one; sides: aligned by `align`.

    DumpError if two have no position of equal context.
    """
    reference, *variants = sides
    grid, *grids = _grids_of(sides)
    return tuple(
        _compare(reference, variant, (grid, other))
        for variant, other in zip(variants, grids, strict=True)
    )


def compare_sides(reference: ResponseSide, variant: ResponseSide) -> ResponsePair:
    """Compare two aligned sides; see `pairs_of`."""
    (pair,) = pairs_of([reference, variant])
    return pair


def _grids_of(sides: Sequence[ResponseSide]) -> list[Grid | None]:
    """Return the grid of each side's values; that of sides equal to the first is sought once."""
    first, *others = [_best_values(without_placeholders(side)[0]) for side in sides]
    grid = find_grid(first)
    grids = [grid]
    for values in others:
        is_equal = len(values) == len(first) and all(map(np.array_equal, values, first))
        grids.append(grid if is_equal else find_grid(values))
    return grids


def _compare(
    reference: ResponseSide,
    variant: ResponseSide,
    grids: tuple[Grid | None, Grid | None],
) -> ResponsePair:
    """Compare two sides, response by response."""
    sides = reference, variant
    responses = list(zip(reference.responses, variant.responses, strict=True))
    meetings = []
    texts: dict[int, str] = {}
    for prompt, both in enumerate(responses):
        for each in both:
            texts |= each.texts
        starts = [_END if each.generated_from is None else each.generated_from for each in both]
        partings = (
            place
            for place, (one, other) in enumerate(zip(*map(sequence, both), strict=False))
            if one != other and UNKNOWN_TOKEN not in (one, other)
        )
        is_checked = None not in map(prompt_tokens, both)
        meetings.append(Meeting(prompt, min(starts), next(partings, None), is_checked))
    # a row's prompt and position in one number
    keys = [side.prompts << 32 | side.rows.positions for side in sides]
    ends = np.array([each.end for each in meetings])
    sent = [each[(each & (_END - 1)) < ends[each >> 32]] for each in keys]
    shared = np.intersect1d(*sent)
    if not len(shared):
        raise DumpError(
            f"'{reference.name}' and '{variant.name}' have no position with equal tokens before it,"
            f" so no two rows to compare{_cause(responses, sides)}.",
        )
    cleaned, placeholders = zip(*map(without_placeholders, sides), strict=True)
    whole = [
        each.part(np.isin(of_side, shared)) for each, of_side in zip(cleaned, keys, strict=True)
    ]
    one, other, missing = _without_one_sided(sides, *whole)
    missing = [*placeholders[0], *placeholders[1], *missing]
    prompts = shared >> 32
    starts_of_prompts = np.array([each.start for each in meetings])
    counts = [len(np.union1d(*sent))]
    for rows, side in zip(sent, sides, strict=True):
        # a token without a row may have one on the other side
        unsent = sum(int(each.settings.get(UNSENT, "0")) for each in side.responses)
        counts.append(len(rows) + unsent)
    return ResponsePair(
        reference.name,
        variant.name,
        reference.keys,
        grids,
        prompts,
        one.positions >= starts_of_prompts[prompts],
        (one, other),
        compare_rows(one, other),
        (_margin_ulps(one, grids[0]), _margin_ulps(other, grids[1])),
        tuple(meetings),
        texts,
        _notes(sides, meetings),
        tuple(sorted(missing, key=lambda each: each.kind != MASKED)),
        zeros=sum(int(each.missing[each.counts > 0].sum()) for each in cleaned),
        certain=int((_is_certain(whole[0]) & _is_certain(whole[1])).sum()),
        has_other_text=any(a.text != b.text for a, b in responses if a.text and b.text),
        sent=max(counts),
    )


def _is_certain(rows: TopTokenRows) -> Flags:
    """Return where a list has probability 1 for one token and 0 for every other one. [rows]"""
    return (rows.counts == 1) & (rows.missing > 0) & (rows.largest == 0)


def _without_one_sided(
    sides: tuple[ResponseSide, ResponseSide],
    *rows: TopTokenRows,
) -> tuple[TopTokenRows, TopTokenRows, list[Placeholders]]:
    """Return the rows of both sides without values that are certain on one side alone, where
    another token is possible on the other; and these, and contradictions on one side, as
    placeholders.
    """
    # the value sent with a token and the one in its list
    contradicts = [np.abs(each.chosen - each.target_values) > ROUNDING for each in rows]
    is_certain = [_is_certain(each) for each in rows]
    is_open = [(each.counts > 1) | (each.largest < -ROUNDING) for each in rows]
    kept = []
    missing = []
    for own, other, side in ((0, 1, sides[0]), (1, 0, sides[1])):
        is_odd = contradicts[own] & ~contradicts[other]
        is_alone = is_certain[own] & ~is_certain[other] & is_open[other]
        kept.append(rows[own].without_values(is_alone))
        for kind, places, what in (
            (
                CONTRADICTION,
                is_odd,
                "the chosen value contradicts its list, as after sampling settings",
            ),
            ("certain", is_alone, "probability 1 for one token only, unlike the other side"),
        ):
            if count := int(places.sum()):
                missing.append(
                    Placeholders(
                        side.name,
                        kind,
                        count,
                        len(side.rows),
                        what,
                    )
                )
    return kept[0], kept[1], missing


def _cause(
    responses: Sequence[tuple[Response, Response]],
    sides: tuple[ResponseSide, ResponseSide],
) -> str:
    """Return a clause on a BOS that only one side has, if it does."""
    for both in responses:
        prompts = [prompt_tokens(each) or () for each in both]
        if (extra := extra_first_token(prompts[0], prompts[1])) is not None:
            side, is_twice = extra
            token = f"token {prompts[side][0]} in front{' twice' if is_twice else ''}"
            return f": '{sides[side].name}' has {token}, a BOS that the other lacks"
    return ""


def _best_values(rows: TopTokenRows) -> list[Floats]:
    """Return the values of each row that are the largest of the whole row."""
    return [rows.row(index)[1][:best] for index, best in enumerate(rows.best.tolist())]


def _margin_ulps(rows: TopTokenRows, grid: Grid | None) -> np.ma.MaskedArray:
    """Return the margin of each row in ULPs, masked if several counts are likely. [rows]"""
    ulps = np.ma.masked_all(len(rows), np.int64)
    for index, values in enumerate(_best_values(rows)):
        if grid is None or len(values) < 2:
            continue
        margin = margin_ulps(values, grid)
        if margin is not None and margin[0] == margin[1]:
            ulps[index] = margin[0]
    return ulps


def _notes(
    sides: tuple[ResponseSide, ResponseSide],
    meetings: Sequence[Meeting],
) -> tuple[str, ...]:
    """Return what a reader of the comparison has to know, a sentence each."""
    notes = []
    if unchecked := sum(not meeting.is_prompt_checked for meeting in meetings):
        notes.append(
            f"The token ids of {unchecked} of {len(meetings)} prompts are not known on both sides;"
            " they are taken for equal.",
        )
    parting = [meeting for meeting in meetings if meeting.parting is not None]
    for what, in_prompt in (("Generated tokens", False), ("The inputs", True)):
        if parted := [each for each in parting if each.is_parting_in_prompt == in_prompt]:
            of = f" of prompt {parted[0].prompt}" if len(meetings) > 1 else ""
            more = f", and in {plural(len(parted) - 1, 'more prompt')}" if len(parted) > 1 else ""
            place = f"position {parted[0].parting}{of} on{more}"
            notes.append(f"{what} differ from {place}; rows after it are not compared.")
    if sides[0].keys == "text":
        notes.append("Tokens are joined by text: the lists of a side have no token ids.")
    for side in sides:
        for response in side.responses:
            notes += [f"{side.name}: {warning}" for warning in response.warnings]
    return tuple(dict.fromkeys(notes))
