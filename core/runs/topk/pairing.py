"""Pairs of lists: rows of equal context, with every figure that follows from what was sent.

Two rows are compared only if both engines had read the same tokens: a prompt's rows up to the first token that
differs, generated ones up to where the sides diverge. If a payload lacks the prompt's tokens, they are taken for
equal, with a note on the pair.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...errors import DumpError
from ...numerics.grid import Grid, find_grid, margin_ulps
from ...numerics.topk import ListedRow, ListFigures, compare_rows
from ...text import clean, number, plural
from ..file.keep import VALUE_NAMES
from ..file.records import UNITS
from .alignment import extra_first_token, parting_of, prompt_tokens, sequence
from .placeholders import CERTAIN, MASKED, ROUNDING, Placeholders, without_placeholders
from .records import UNKNOWN_TOKEN, Keys, ListRows, ListSide, Values

_NOTHING = ListedRow(np.empty(0, np.int64), np.empty(0), 0, False)


@dataclass(frozen=True, eq=False)
class ListPosition:
    """One position of a pair at which both sides sent a row and had read the same tokens.

    targets: the tokens emitted or given next on both sides, -1 if unknown. margin_ulps: margins of both sides in ULPs
    of their grid, None if that is not sure.
    """

    prompt: int
    position: int
    is_generated: bool
    targets: tuple[int, int]
    margin_ulps: tuple[int | None, int | None]
    figures: ListFigures

    @property
    def differs_in_tokens(self) -> bool:
        """Return whether the top tokens differ, or the emitted ones if both are known."""
        return bool(self.figures.is_flip) or (UNKNOWN_TOKEN not in self.targets and self.targets[0] != self.targets[1])


@dataclass(frozen=True, eq=False)
class Meeting:
    """Two responses to one prompt. parting: first position at which the sides' tokens differ, None if they never
    do; is_prompt_checked: token ids of both prompts are known and were compared.
    """

    prompt: int
    parting: int | None
    is_parting_in_prompt: bool
    is_prompt_checked: bool


@dataclass(frozen=True, eq=False)
class ListPair:
    """Two sides compared. grids: of the reference and the variant. texts: of tokens, as far as sent.

    placeholders: values of either side that are no values of a model; they are missing in every figure. zeros: listed
    tokens of probability 0 (null, -9999.0, -inf) on either side. certain: positions at which both sides send a list
    with probability 1 for one token and 0 for the rest. has_other_text: texts of two responses are known and differ.
    """

    reference: str
    variant: str
    values: Values
    keys: Keys
    grids: tuple[Grid | None, Grid | None]
    positions: tuple[ListPosition, ...]
    meetings: tuple[Meeting, ...]
    texts: Mapping[int, str]
    notes: tuple[str, ...]
    placeholders: tuple[Placeholders, ...] = ()
    zeros: int = 0
    certain: int = 0
    has_other_text: bool = False

    @cached_property
    def common_values(self) -> int:
        """Values that both sides sent, over all positions."""
        return sum(place.figures.common for place in self.positions)

    @cached_property
    def differing(self) -> int:
        """Listed values that differ between the sides, over all positions."""
        return sum(place.figures.neq for place in self.positions)

    @cached_property
    def flips(self) -> int:
        return sum(place.figures.is_flip is True for place in self.positions)

    @cached_property
    def differs(self) -> bool:
        """Whether anything that was sent differs: a value, a top token, or an emitted one."""
        return bool(self.differing) or any(place.differs_in_tokens for place in self.positions)

    @property
    def kind(self) -> str:
        """Name of the values: `log-probabilities`."""
        return VALUE_NAMES[self.values]

    @property
    def unit(self) -> str:
        """Unit of a difference."""
        return UNITS[self.values]

    @property
    def is_void(self) -> bool:
        """True if one side alone masks tokens, or placeholders leave no value at more than half of the positions."""
        figures = [place.figures for place in self.positions]
        empty = sum(not len(each.reference.values) or not len(each.variant.values) for each in figures)
        has_one_mask = len({one.side for one in self.placeholders if one.kind == MASKED}) == 1
        return has_one_mask or (bool(self.placeholders) and 2 * empty > len(self.positions))

    @property
    def in_words(self) -> str:
        """`12 of 400 log-probabilities (2 flips) differ by up to 0.031 nats`, or the first token that differs."""
        of = f"of {self.common_values:,} {self.kind}"
        if self.differing:
            largest = number(max(place.figures.max_abs or 0.0 for place in self.positions))
            flips = f" ({plural(self.flips, 'flip')})" if self.flips else ""
            return f"{self.differing:,} {of}{flips} differ by up to {largest} {self.unit}"
        first = next((place for place in self.positions if place.differs_in_tokens), None)
        if first is None and not self.common_values:
            return f"no token has a value on both sides at any of {plural(len(self.positions), 'position')}"
        if first is None:
            return f"{self.common_values:,} {of} that both sides sent are equal"
        rows, is_flip = (first.figures.reference, first.figures.variant), first.figures.is_flip
        tokens = [token for row in rows if (token := row.token) is not None] if is_flip else first.targets
        names = [clean(repr(self.texts[token]), 40) if token in self.texts else f"{token}" for token in tokens]
        place = f"position {first.position:,}" + (f" of prompt {first.prompt}" if len(self.meetings) > 1 else "")
        return f"the {'top ' if is_flip else ''}token at {place} differs ({' / '.join(names)})"

    @property
    def compute_dtype(self) -> str | None:
        """The 16-bit format that both sides' values lie on, None if that is open or they differ."""
        names = {None if grid is None else grid.compute_dtype for grid in self.grids}
        return names.pop() if len(names) == 1 else None


def pairs_of(sides: Sequence[ListSide]) -> tuple[ListPair, ...]:
    """Compare the first side with every other one; sides: aligned by `align`."""
    return tuple(compare_sides(sides[0], side) for side in sides[1:])


def compare_sides(reference: ListSide, variant: ListSide) -> ListPair:
    """Compare two aligned sides, response by response. DumpError if they have no position of equal context."""
    sides, placeholders = zip(*map(without_placeholders, (reference, variant)), strict=True)
    grids = _grid(sides[0]), _grid(sides[1])
    positions: list[ListPosition] = []
    meetings: list[Meeting] = []
    alone, both = [0, 0], 0
    texts: dict[int, str] = {}
    for prompt, responses in enumerate(zip(sides[0].responses, sides[1].responses, strict=True)):
        for response in responses:
            texts.update(response.texts)
        raw = [response.rows for response in responses]
        rows = [{place: _row_at(each, index) for index, place in enumerate(each.positions.tolist())} for each in raw]
        targets = [dict(zip(each.positions.tolist(), each.targets.tolist(), strict=True)) for each in raw]
        certain = [_certain(each, reference.values) for each in raw]
        starts = [response.generated_from for response in responses if response.generated_from is not None]
        parting, first = parting_of(*map(sequence, responses)), min(starts, default=math.inf)
        is_checked = None not in map(prompt_tokens, responses)
        meetings.append(Meeting(prompt, parting, parting is not None and parting <= first, is_checked))
        places = [place for place in sorted(rows[0].keys() & rows[1].keys()) if parting is None or place < parting]
        for side, open_side in ((0, 1), (1, 0)):
            alike = (certain[side] - certain[open_side]).intersection(places)
            sure = [place for place in alike if _is_open(rows[open_side][place], reference.values)]
            rows[side].update(dict.fromkeys(sure, _NOTHING))
            alone[side] += len(sure)
        both += len(certain[0] & certain[1])
        for place in places:
            one, other = rows[0][place], rows[1][place]
            ulps, figures = (_ulps(one, grids[0]), _ulps(other, grids[1])), compare_rows(one, other, reference.values)
            tokens = targets[0][place], targets[1][place]
            positions.append(ListPosition(prompt, place, place >= first, tokens, ulps, figures))
    if not positions:
        raise DumpError(
            f"'{reference.name}' and '{variant.name}' have no position with equal tokens before it, so no two rows to"
            f" compare{_cause(reference, variant)}."
        )
    missing = [*placeholders[0], *placeholders[1]]
    for each_side, count in zip(sides, alone, strict=True):
        if count:
            total = sum(len(response.rows) for response in each_side.responses)
            what = "probability 1 for one token only, unlike the other side"
            missing.append(Placeholders(each_side.name, "certain", count, total, what))
    sent_rows = [response.rows for each_side in sides for response in each_side.responses]
    return ListPair(
        reference.name,
        variant.name,
        reference.values,
        reference.keys,
        grids,
        tuple(positions),
        tuple(meetings),
        texts,
        _notes(reference, variant, meetings),
        tuple(sorted(missing, key=lambda one: one.kind != MASKED)),
        sum(int(rows.missing[(np.diff(rows.offsets) > 0) & ~rows.full].sum()) for rows in sent_rows),
        both,
        any(a.text != b.text for a, b in zip(reference.responses, variant.responses, strict=True) if a.text and b.text),
    )


def vocabulary_size(sides: Sequence[ListSide]) -> int | None:
    """Tokens of the vocabulary, None if no payload says or they differ."""
    sizes = {response.vocab for side in sides for response in side.responses if response.vocab is not None}
    return sizes.pop() if len(sizes) == 1 else None


def _cause(reference: ListSide, variant: ListSide) -> str:
    """Return a clause on a BOS that only one side has, or on rows that were left out."""
    for one, other in zip(reference.responses, variant.responses, strict=True):
        prompts = prompt_tokens(one) or (), prompt_tokens(other) or ()
        if (extra := extra_first_token(*prompts)) is not None:
            name, tokens = (reference.name, variant.name)[extra[0]], prompts[extra[0]]
            return (
                f": '{name}' has token {tokens[0]} in front{' twice' if extra[1] else ''}, a BOS that the other lacks"
            )
    warnings = [warning for side in (reference, variant) for one in side.responses for warning in one.warnings]
    left_out = next((warning for warning in warnings if "left out: two" in warning), "")
    return f": {left_out.rstrip('.')}" if left_out else ""


def _grid(side: ListSide) -> Grid | None:
    """Return the 16-bit grid of a side, None if none is shown or its values have no gaps of logits."""
    if side.values == "prob" or any(response.processed for response in side.responses):
        return None
    rows = [_row_at(response.rows, row) for response in side.responses for row in range(len(response.rows))]
    return find_grid([row.values[: row.best] for row in rows])


def _row_at(rows: ListRows, index: int) -> ListedRow:
    """One row; values of -inf are left out, for they have no mass."""
    tokens, values = rows.row(index)
    finite = np.isfinite(values)
    tokens, values = tokens[finite], values[finite]
    return ListedRow(tokens, values, min(int(rows.best[index]), len(values)), bool(rows.full[index]))


def _certain(rows: ListRows, values: Values) -> set[int]:
    """Positions at which one token has probability 1 and every other listed one has 0."""
    sure = (np.diff(rows.offsets) == 1) & (rows.missing > 0)
    return set(rows.positions[sure][rows.values[rows.offsets[:-1][sure]] == CERTAIN.get(values)].tolist())


def _is_open(row: ListedRow, values: Values) -> bool:
    """Return whether more than one token of a row is possible."""
    return len(row.values) > 1 or (len(row.values) == 1 and row.values[0] < CERTAIN.get(values, 0.0) - ROUNDING)


def _ulps(row: ListedRow, grid: Grid | None) -> int | None:
    """Return the margin in ULPs, None if several counts are likely."""
    margin = None if grid is None or row.best < 2 else margin_ulps(row.values[: row.best], grid)
    return margin[0] if margin is not None and margin[0] == margin[1] else None


def _notes(reference: ListSide, variant: ListSide, meetings: Sequence[Meeting]) -> tuple[str, ...]:
    """Return what a reader of the comparison has to know, a sentence each."""
    notes: list[str] = []
    if unchecked := sum(not meeting.is_prompt_checked for meeting in meetings):
        prompts = f"{unchecked} of {len(meetings)} prompts"
        notes.append(f"The token ids of {prompts} are not known on both sides; they are taken for equal.")
    for what, in_prompt in (("Generated tokens", False), ("The inputs", True)):
        parted = [one for one in meetings if one.parting is not None and one.is_parting_in_prompt == in_prompt]
        if parted:
            of = f" of prompt {parted[0].prompt}" if len(meetings) > 1 else ""
            more = f", and in {plural(len(parted) - 1, 'more prompt')}" if len(parted) > 1 else ""
            place = f"position {parted[0].parting}{of} on{more}"
            notes.append(f"{what} differ from {place}; rows after it are not compared.")
    if reference.keys == "text":
        notes.append("Tokens are joined by text: the lists of a side have no token ids.")
    for side in (reference, variant):
        warnings = dict.fromkeys(warning for response in side.responses for warning in response.warnings)
        notes.extend(f"{side.name}: {warning}" for warning in warnings)
        if any(response.processed for response in side.responses):
            notes.append(
                f"{side.name}: temperature, penalties or a mask are in its values; they are not the model's own."
            )
    return tuple(notes)
