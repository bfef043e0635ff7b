"""Pairs of sparse sides: rows of equal context beside each other, with every figure that follows from what was sent.

Two rows are compared only where both engines had read the same tokens: a prompt's rows up to the first token that
differs, generated ones up to where the sides part. Where a payload does not say the prompt's tokens, they are taken for
equal, and the pair says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...errors import DumpError
from ...numerics.grid import Grid, MarginUlps, find_grid, margin_ulps, sent_error
from ...numerics.sparse import ListedRow, SparseFigures, compare_rows
from ...text import plural
from .placeholders import CERTAIN, ROUNDING, Placeholders, certain_placeholders, without_placeholders
from .records import UNKNOWN_TOKEN, Keys, ListRows, ListSide, Response, Values

_MOST_MISSING = 4  # rows at a start that tokens may show to be missing
_LEAST_EQUAL = 3  # tokens that have to agree then
NORMALISER_ERROR = 2.0**-18  # a float32 log-sum of up to 64 is rounded so far; a row's gaps do not have it
_NOTHING = ListedRow(np.empty(0, np.int64), np.empty(0), 0, False)


@dataclass(frozen=True, eq=False)
class ListPosition:
    """One position of a pair at which both sides sent a row and had read the same tokens.

    reference_chosen, variant_chosen: the token emitted or given next, -1 where unknown. chosen_change: of the
    reference's chosen token, variant minus reference, in the values' unit; None where either list lacks it.
    reference_ulps, variant_ulps: margins in ULPs of the side's grid, None where none is shown.
    """

    prompt: int
    position: int
    is_generated: bool
    reference: ListedRow
    variant: ListedRow
    reference_chosen: int
    variant_chosen: int
    chosen_change: float | None
    reference_ulps: MarginUlps | None
    variant_ulps: MarginUlps | None
    figures: SparseFigures

    @property
    def differs_in_tokens(self) -> bool:
        """Return whether the top tokens differ, or the emitted ones where both are known."""
        chosen = self.reference_chosen, self.variant_chosen
        return bool(self.figures.is_flip) or (UNKNOWN_TOKEN not in chosen and chosen[0] != chosen[1])


@dataclass(frozen=True, eq=False)
class Meeting:
    """Alignment of two responses to one prompt.

    parting: first position of the sequence at which the sides' tokens differ, None where they never do; positions are
    the reference's. is_prompt_checked: token ids of both prompts are known and were compared. only_reference,
    only_variant: rows that the other side has no row of equal context for.
    """

    prompt: int
    parting: int | None
    is_parting_in_prompt: bool
    is_prompt_checked: bool
    only_reference: int
    only_variant: int


@dataclass(frozen=True, eq=False)
class ListPair:
    """Two sparse sides compared. grids: of the reference and the variant. texts: of tokens, as far as sent.

    placeholders: values of either side that are no values of a model; they are missing in every figure. zeros: listed
    tokens of probability 0 (null, -9999.0, -inf) on either side. certain: positions at which both sides send a list
    with probability 1 for one token and 0 for the rest.
    """

    reference: str
    variant: str
    values: Values
    keys: Keys
    vocab: int | None
    grids: tuple[Grid | None, Grid | None]
    positions: tuple[ListPosition, ...]
    meetings: tuple[Meeting, ...]
    texts: Mapping[int, str]
    notes: tuple[str, ...]
    placeholders: tuple[Placeholders, ...] = ()
    zeros: int = 0
    certain: int = 0

    @cached_property
    def listed(self) -> int:
        """Values that both sides sent, over all positions."""
        return sum(place.figures.common for place in self.positions)

    @cached_property
    def differing(self) -> int:
        """Listed values that differ between the sides, over all positions."""
        return sum(int(place.figures.neq.low) for place in self.positions)

    @property
    def is_mostly_placeholders(self) -> bool:
        """Return whether placeholders leave no value to compare at more than half of the positions."""
        empty = sum(not len(place.reference.values) or not len(place.variant.values) for place in self.positions)
        return bool(self.placeholders) and 2 * empty > len(self.positions)

    @property
    def compute_dtype(self) -> str | None:
        """The 16-bit format that both sides' values lie on, None where that is open or they differ."""
        names = {None if grid is None else grid.compute_dtype for grid in self.grids}
        return names.pop() if len(names) == 1 else None


@dataclass(frozen=True, eq=False)
class _Prepared:
    """A response in the ids that both sides use, with positions counted from the same place.

    certain: positions at which one token has probability 1 and every other listed one has 0.
    """

    response: Response
    tokens: tuple[int, ...]
    rows: dict[int, ListedRow]
    chosen: dict[int, int]
    first_generated: int
    certain: frozenset[int]


def compare_sides(reference: ListSide, variant: ListSide) -> ListPair:
    """Both sides compared, response by response in order.

    DumpError where they answer different numbers of prompts, hold different kinds of values, or have no position of
    equal context.
    """
    names = f"'{reference.name}' and '{variant.name}'"
    if len(reference.responses) != len(variant.responses):
        raise DumpError(
            f"{names} hold {len(reference.responses)} and {len(variant.responses)} responses; expected one a prompt"
            " on both sides."
        )
    if reference.values != variant.values:
        raise DumpError(f"{names} hold {reference.values}s and {variant.values}s; expected one kind of value.")
    (reference, first), (variant, second) = (without_placeholders(side) for side in (reference, variant))
    vocab = _vocabulary(reference, variant)
    errors = [_error(side) for side in (reference, variant)]
    keys, (ids_of, texts) = _keys(reference, variant), _common_ids(reference, variant)
    grids = _grid(reference), _grid(variant)
    positions: list[ListPosition] = []
    meetings: list[Meeting] = []
    alone = [0, 0]
    both = 0
    alignment_notes: list[str] = []
    left_out = 0
    for prompt, responses in enumerate(zip(reference.responses, variant.responses, strict=True)):
        starts = _starts(*responses)
        one, other = (
            _prepared(response, start, error, ids_of)
            for response, start, error in zip(responses, starts, errors, strict=True)
        )
        meeting = _meet(prompt, one, other)
        if (gap := _gap(meeting, (one, other))) is not None:
            lacking, count = gap
            place = meeting.parting or 0
            if lacking == 0:
                one = _moved(one, place, count)
            else:
                other = _moved(other, place, count)
            meeting = _meet(prompt, one, other)
            alignment_notes.append(
                f"{(reference, variant)[lacking].name} has no rows of {plural(count, 'token')} before its"
                f" first at prompt {prompt}; its rows are aligned by their tokens."
            )
        lengths = [response.generated_from for response in responses if response.start_known]
        if starts != (0, 0) and len(lengths) == 2:
            alignment_notes.append(
                f"Prompt {prompt} has {(lengths[0] or 0) + 1:,} and {(lengths[1] or 0) + 1:,} tokens on the two sides:"
                " its inputs differ, and rows are aligned by the first generated token."
            )
        left_out += sum(len(each.response.rows) - len(each.rows) for each in (one, other))
        meetings.append(meeting)
        for number, (side, against) in enumerate(((one, other), (other, one))):
            certain = _certain_alone(side, against, meeting.parting)
            side.rows.update(dict.fromkeys(certain, _NOTHING))
            alone[number] += len(certain)
        both += len(one.certain & other.certain)
        positions.extend(_positions(meeting, one, other, grids, reference.values, vocab))
    if left_out:
        alignment_notes.append(
            f"{plural(left_out, 'row')} left out: two of the tokens print alike, or one has no text."
        )
    if not positions:
        why = f". {alignment_notes[-1]}" if left_out else f"{_why(reference, variant)}."
        raise DumpError(f"{names} have no position with equal tokens before it, so no two rows to compare{why}")
    notes = (*_notes(reference, variant, meetings, vocab), *alignment_notes)
    zeros = sum(_zeros(response.rows) for side in (reference, variant) for response in side.responses)
    return ListPair(
        reference.name,
        variant.name,
        reference.values,
        keys,
        vocab,
        grids,
        tuple(positions),
        tuple(meetings),
        texts,
        notes,
        (*first, *second, *certain_placeholders((reference, variant), alone)),
        zeros,
        both,
    )


def extra_first_token(one: Sequence[int], other: Sequence[int]) -> tuple[int, bool] | None:
    """(side that has one token more in front, whether it stands there twice) of two prompts, None where they part
    otherwise.
    """
    for side, (longer, shorter) in ((1, (other, one)), (0, (one, other))):
        if len(longer) == len(shorter) + 1 > 2 and longer[1:] == shorter and UNKNOWN_TOKEN not in longer:
            return side, longer[0] == longer[1]
    return None


def _why(reference: ListSide, variant: ListSide) -> str:
    """A clause on a BOS that only one side has."""
    for one, other in zip(reference.responses, variant.responses, strict=True):
        prompts = prompt_tokens(one) or (), prompt_tokens(other) or ()
        if (found := extra_first_token(*prompts)) is not None:
            name, tokens = (reference.name, variant.name)[found[0]], prompts[found[0]]
            return (
                f": '{name}' has token {tokens[0]} in front{' twice' if found[1] else ''}, a BOS that the other lacks"
            )
    return ""


def sides_of(responses: Sequence[Response], where: str) -> tuple[ListSide, ...]:
    """The sides that one file's responses are: repeated answers to the same prompts, first answers first.

    DumpError unless every prompt has been answered equally often, twice or more.
    """
    groups: dict[object, list[Response]] = {}
    for response in responses:
        length = response.generated_from if response.start_known else None
        groups.setdefault(prompt_tokens(response) or response.prompt_key or length, []).append(response)
    counts = {len(group) for group in groups.values()}
    if len(counts) != 1 or counts == {1}:
        answers, prompts = plural(len(responses), "answer"), plural(len(groups), "prompt")
        raise DumpError(
            f"{where}: holds {answers} to {prompts}; expected each prompt answered equally often, at least twice."
            " Give a second file for the other side."
        )
    return tuple(
        ListSide(f"answer {repeat + 1}", tuple(group[repeat] for group in groups.values()))
        for repeat in range(counts.pop())
    )


def prompt_tokens(response: Response) -> tuple[int, ...] | None:
    """Token ids of the prompt, None where not all are known."""
    end = len(response.tokens) if response.generated_from is None else response.generated_from + 1
    known = response.tokens[:end] if response.start_known else ()
    return None if not known or UNKNOWN_TOKEN in known else known


def _vocabulary(*sides: ListSide) -> int | None:
    """Tokens of the vocabulary, None where no payload says or they differ."""
    said = {response.vocab for side in sides for response in side.responses if response.vocab is not None}
    return said.pop() if len(said) == 1 else None


def _error(side: ListSide) -> float:
    """Largest error of the side's values as they were sent, and of the normaliser of a row of log-probabilities; logits
    of float32 are exact.
    """
    if side.values == "logit":
        return 0.0
    sent = max(sent_error(response.rows.values) for response in side.responses)
    return max(sent, NORMALISER_ERROR) if side.values == "logprob" else sent


def _keys(reference: ListSide, variant: ListSide) -> Keys:
    return "token_id" if reference.keys == variant.keys == "token_id" else "text"


class _Ids:
    """Token ids that both sides use: their own where both send ids, else a number for each text."""

    def __init__(self, is_by_text: bool) -> None:
        self.is_by_text = is_by_text
        self.by_text: dict[str, int] = {}

    def of(self, response: Response) -> Mapping[int, int] | None:
        """New id by the response's own, None where they stay."""
        if not self.is_by_text:
            return None
        return {own: self.by_text[text] for own, text in response.texts.items() if text in self.by_text}


def _common_ids(reference: ListSide, variant: ListSide) -> tuple[_Ids, dict[int, str]]:
    """The ids that both sides use, and their texts. DumpError if they have to be joined by text and one has none."""
    ids = _Ids(_keys(reference, variant) == "text")
    texts: dict[int, str] = {}
    for side in (reference, variant):
        for response in side.responses:
            if not ids.is_by_text:
                texts.update(response.texts)
                continue
            if len(response.rows.token_ids) and not response.texts:
                raise DumpError(
                    f"side '{side.name}' has no texts of tokens, and the other side has no ids; expected token ids on"
                    " both sides, or texts on both."
                )
            for text in response.texts.values():
                ids.by_text.setdefault(text, len(ids.by_text))
    if ids.is_by_text:
        texts = {number: text for text, number in ids.by_text.items()}
    return ids, texts


def _grid(side: ListSide) -> Grid | None:
    """The 16-bit grid of a side, None where none is shown or its values have no gaps of logits."""
    if side.values == "prob" or any(response.processed for response in side.responses):
        return None
    found = [_listed(response.rows, row, 0.0) for response in side.responses for row in range(len(response.rows))]
    return find_grid([row.values[: row.best] for row in found])


def _listed(rows: ListRows, index: int, error: float, ids: Mapping[int, int] | None = None) -> ListedRow:
    """One row in the ids that both sides use; values of -inf are left out, for they have no mass."""
    tokens, values = rows.row(index)
    finite = np.isfinite(values)
    tokens, values = tokens[finite], values[finite]
    if ids is not None:
        tokens = np.array([ids[token] for token in tokens.tolist()], np.int64)
    best = min(int(rows.best[index]), len(values))
    return ListedRow(tokens, values, best, bool(rows.full[index]), error)


def _zeros(rows: ListRows) -> int:
    """Placeholders of single tokens in rows that hold other values."""
    return int(rows.missing[(np.diff(rows.offsets) > 0) & ~rows.full].sum())


def _starts(reference: Response, variant: Response) -> tuple[int, int]:
    """Offsets added to each side's positions so that both count from the same place.

    A response that does not say where it starts begins at the other's first generated position.
    """
    if reference.start_known == variant.start_known:
        return _starts_of_lengths(reference, variant)
    known = reference if reference.start_known else variant
    if known.generated_from is None:
        raise DumpError(
            "one side sends rows of a prompt only and the other of generated tokens only; expected positions that"
            " both have."
        )
    return (0, known.generated_from) if reference.start_known else (known.generated_from, 0)


def _starts_of_lengths(reference: Response, variant: Response) -> tuple[int, int]:
    """Offsets of responses to prompts of two lengths, of which only generated rows were sent: they meet where
    generation starts.
    """
    sides = (reference, variant)
    ends = [side.generated_from for side in sides]
    if not reference.start_known or None in ends or None not in [prompt_tokens(side) for side in sides]:
        return 0, 0
    if any(len(side.rows) and side.rows.positions[0] < (end or 0) for side, end in zip(sides, ends, strict=True)):
        return 0, 0
    later = max(end or 0 for end in ends)
    return later - (ends[0] or 0), later - (ends[1] or 0)


def _prepared(response: Response, start: int, error: float, ids: _Ids) -> _Prepared:
    mapping = ids.of(response)
    rows = {
        int(position) + start: _listed(response.rows, index, error, mapping)
        for index, position in enumerate(response.rows.positions)
        if mapping is None or _has_distinct_texts(response.rows.row(index)[0], mapping)
    }
    chosen = {
        int(position) + start: _renamed(int(token), mapping)
        for position, token in zip(response.rows.positions, response.rows.chosen, strict=True)
    }
    tokens = tuple(_renamed(token, mapping) for token in response.tokens)
    tokens = (UNKNOWN_TOKEN,) * start + tokens  # those of the prompt, which the response does not say
    generated = response.generated_from
    first = math.inf if generated is None else generated + start
    one = np.diff(response.rows.offsets) == 1
    sure = one & (response.rows.missing > 0)
    values = response.rows.values[response.rows.offsets[:-1][sure]]
    places = response.rows.positions[sure][values == CERTAIN.get(response.values)] + start
    certain = frozenset(places.tolist())
    return _Prepared(response, _with_chosen(tokens, chosen), rows, chosen, int(min(first, 1 << 62)), certain)


def _certain_alone(side: _Prepared, other: _Prepared, parting: int | None) -> list[int]:
    """Positions of equal context at which one side is certain of a token and the other one sent a row that is not."""
    certain, found = CERTAIN.get(side.response.values, 0.0), []
    for position in side.certain - other.certain:
        row = other.rows.get(position, _NOTHING)
        is_open = len(row.values) > 1 or (len(row.values) == 1 and row.values[0] < certain - ROUNDING)
        if is_open and (parting is None or position < parting):
            found.append(position)
    return found


def _has_distinct_texts(token_ids: NDArray[np.int64], mapping: Mapping[int, int]) -> bool:
    """Return whether every token of a row has a text, and no two print alike."""
    named = [mapping.get(token) for token in token_ids.tolist()]
    return None not in named and len(set(named)) == len(named)


def _renamed(token: int, mapping: Mapping[int, int] | None) -> int:
    return token if mapping is None or token == UNKNOWN_TOKEN else mapping.get(token, UNKNOWN_TOKEN)


def _with_chosen(tokens: tuple[int, ...], chosen: Mapping[int, int]) -> tuple[int, ...]:
    """The sequence with what rows say of the token after them, where it was unknown."""
    filled = list(tokens)
    for position, token in chosen.items():
        filled.extend([UNKNOWN_TOKEN] * (position + 2 - len(filled)))
        if filled[position + 1] == UNKNOWN_TOKEN:
            filled[position + 1] = token
    return tuple(filled)


def _meet(prompt: int, reference: _Prepared, variant: _Prepared) -> Meeting:
    """Find where the two sequences part, and how many rows have no partner."""
    parting = next(
        (
            place
            for place, (one, other) in enumerate(zip(reference.tokens, variant.tokens, strict=False))
            if UNKNOWN_TOKEN not in (one, other) and one != other
        ),
        None,
    )
    usable = [position for position in reference.rows if parting is None or position < parting]
    shared = sum(position in variant.rows for position in usable)
    first = min(reference.first_generated, variant.first_generated)
    known = [prompt_tokens(side.response) is not None for side in (reference, variant)]
    return Meeting(
        prompt,
        parting,
        parting is not None and parting <= first,
        all(known),
        len(reference.rows) - shared,
        len(variant.rows) - shared,
    )


def _gap(meeting: Meeting, sides: tuple[_Prepared, _Prepared]) -> tuple[int, int] | None:
    """Find which side (0 or 1) lacks how many of the first rows, None if neither does: the sides have no token in
    common as they are, and many with one moved.
    """
    place = meeting.parting
    if place is None:
        return None
    starts = {side.first_generated + 1 for side in sides}
    has_agreed = any(
        UNKNOWN_TOKEN not in pair for pair in zip(sides[0].tokens[:place], sides[1].tokens[:place], strict=False)
    )
    in_prompt = place not in starts
    if len(starts) > 1 or (in_prompt and (has_agreed or meeting.is_prompt_checked)):
        return None
    for count in range(1, _MOST_MISSING + 1):
        for side in (0, 1):
            shorter, longer = sides[side].tokens[place:], sides[1 - side].tokens[place + count :]
            pairs = [pair for pair in zip(shorter, longer, strict=False) if UNKNOWN_TOKEN not in pair][:8]
            is_same = len(pairs) >= _LEAST_EQUAL and all(one == other for one, other in pairs)
            if is_same and (in_prompt or not _begins_with_its_rows(sides[side].response)):
                return side, count
    return None


def _begins_with_its_rows(response: Response) -> bool:
    """Return whether the text of a response begins with the token of its first generated row."""
    rows = response.rows
    first = next((at for at, place in enumerate(rows.positions) if place >= (response.generated_from or 0)), None)
    token = "" if first is None else response.texts.get(int(rows.chosen[first]), "").lstrip(" Ġ▁")
    return bool(response.text and token) and response.text.lstrip().startswith(token)


def _moved(side: _Prepared, place: int, count: int) -> _Prepared:
    """The side with `count` unknown tokens before its token at `place`."""
    tokens = (*side.tokens[:place], *[UNKNOWN_TOKEN] * count, *side.tokens[place:])
    rows = {at + count * (at >= place - 1): row for at, row in side.rows.items()}
    chosen = {at + count * (at >= place - 1): token for at, token in side.chosen.items()}
    certain = frozenset(at + count * (at >= place - 1) for at in side.certain)
    return replace(side, tokens=tokens, rows=rows, chosen=chosen, certain=certain)


def _positions(
    meeting: Meeting,
    reference: _Prepared,
    variant: _Prepared,
    grids: tuple[Grid | None, Grid | None],
    values: Values,
    vocab: int | None,
) -> Iterator[ListPosition]:
    for position in sorted(reference.rows.keys() & variant.rows.keys()):
        if meeting.parting is not None and position >= meeting.parting:
            return
        rows = reference.rows[position], variant.rows[position]
        chosen = reference.chosen[position], variant.chosen[position]
        yield ListPosition(
            prompt=meeting.prompt,
            position=position,
            is_generated=position >= min(reference.first_generated, variant.first_generated),
            reference=rows[0],
            variant=rows[1],
            reference_chosen=chosen[0],
            variant_chosen=chosen[1],
            chosen_change=_change_of(chosen[0], *rows),
            reference_ulps=_ulps(rows[0], grids[0]),
            variant_ulps=_ulps(rows[1], grids[1]),
            figures=compare_rows(*rows, values, vocab),
        )


def _change_of(token: int, reference: ListedRow, variant: ListedRow) -> float | None:
    """Variant minus reference at one token, None where either list lacks it."""
    found = [value_of(row, token) for row in (reference, variant)]
    return None if found[0] is None or found[1] is None else found[1] - found[0]


def value_of(row: ListedRow, token: int) -> float | None:
    """The value of a token in a row, None where it is not listed."""
    places: NDArray[np.int64] = np.flatnonzero(row.token_ids == token)
    return float(row.values[places[0]]) if len(places) else None


def _ulps(row: ListedRow, grid: Grid | None) -> MarginUlps | None:
    return None if grid is None or row.best < 2 else margin_ulps(row.values[: row.best], grid)


def _notes(reference: ListSide, variant: ListSide, meetings: Sequence[Meeting], vocab: int | None) -> tuple[str, ...]:
    """Notes that a reader of the comparison has to know, a sentence each."""
    notes: list[str] = []
    unchecked = sum(not meeting.is_prompt_checked for meeting in meetings)
    if unchecked:
        notes.append(
            f"The token ids of {unchecked} of {len(meetings)} prompts are not known on both sides; they are taken for"
            " equal."
        )
    in_prompt = [meeting for meeting in meetings if meeting.is_parting_in_prompt]
    if in_prompt:
        notes.append(
            f"Prompt {in_prompt[0].prompt} has other tokens on the two sides from position {in_prompt[0].parting} on:"
            " its inputs differ, and rows after that are not compared."
        )
    if reference.keys != variant.keys or reference.keys == "text":
        notes.append("Tokens are joined by text: the lists of a side have no token ids.")
    if vocab is None:
        notes.append("How many values differ has no upper bound: nothing says how many tokens the vocabulary has.")
    for side in (reference, variant):
        warnings = dict.fromkeys(warning for response in side.responses for warning in response.warnings)
        notes.extend(f"{side.name}: {warning}" for warning in warnings)
        if any(response.processed for response in side.responses):
            notes.append(
                f"{side.name}: its values were processed (temperature, penalties or a mask), so they are not the"
                " model's own."
            )
    return tuple(notes)
