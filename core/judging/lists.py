"""Lists of top tokens judged: of a probe, of uploaded responses, and with a model's noise floor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from ..numerics.grid import Grid
from ..runs.file.evidence import (
    FAILED,
    NOTED,
    PASSED,
    Check,
    CheckFigures,
    ContextFigures,
    Evidence,
    GridFigures,
    PlaceholderFigures,
    SentFigures,
    Unmeasured,
)
from ..runs.file.records import IDENTICAL, INVALID_DUMP, UNDECIDED
from ..runs.revision import PairVerdict
from ..runs.topk.pairing import ListPair, compare_sides
from ..runs.topk.placeholders import clauses
from ..runs.topk.records import ListSide
from ..runs.topk.tokens import Compared
from ..text import number, opening, plural, shown
from .explain.causes import explain
from .explain.rows import rows_of_lists
from .explain.scoring import Cause
from .judge import Controls, NotAvailableError, Pair, Rerun, judge

Repeats = Mapping[str, bool]  # whether a side gives the same answer again, by name


@dataclass
class ListControls(Controls):
    """One pair of lists. repeats: of a probe; floor_row: of a model's noise floor."""

    listed: ListPair
    sides: Sequence[ListSide]
    repeats: Repeats = field(default_factory=dict)
    floor_row: Evidence | None = None

    def __post_init__(self) -> None:
        pair = self.listed
        self.names, self.lengths, self.dtype = (pair.reference, pair.variant), [len(pair.positions)], ""
        self.parting = next((each for each in pair.meetings if each.is_parting_in_prompt), None)
        self.is_certain = not pair.differs and 2 * pair.certain > len(pair.positions)
        self.is_text_alone = bool(self.repeats) and not pair.differs and _has_other_text(*self.sides)
        doubts = pair.differs, pair.placeholders, self.parting, self.is_certain, self.is_text_alone
        self.is_identical = pair.listed > 0 and not any(doubts)

    def validity(self) -> list[Evidence]:
        return sent_evidence(self.listed) + ([self.floor_row] if self.floor_row else [])

    def pair(self, dtype: str) -> Pair:
        if dtype:
            raise NotAvailableError("")
        return Pair(np.zeros(1), is_identical=self.is_identical)

    def rerun(self) -> Rerun:
        repeats = {name: self.repeats[name] for name in self.names if name in self.repeats}
        if not repeats:
            raise NotAvailableError("")
        moved = tuple(name for name, is_same in repeats.items() if not is_same)
        return Rerun("the same request sent again", tuple(repeats), moved)

    def arrays_alone(self) -> Evidence | None:
        if not self.explained or not self.explained[0].is_fault:
            return None
        return Evidence(Check.ARRAYS_ALONE, "the lists alone", Unmeasured(), FAILED, self.explained[0].says)

    @cached_property
    def explained(self) -> Sequence[Cause]:
        return [] if self.is_identical else explain(rows_of_lists(self.listed, self.sides[0], self.sides[1])).causes

    @property
    def causes(self) -> Sequence[str]:
        return [self.floor_row.says] if self.floor_row else [f"{opening(next(self._says())).removesuffix('.')}."]

    def _says(self) -> Iterator[str]:
        """Yield what there is to say about the pair, the most telling first."""
        pair, words = self.listed, _words(self.listed)
        placeholders = clauses(pair.placeholders)[:1]
        if pair.is_void:
            yield from placeholders
        if self.explained and (self.explained[0].is_fault or self.parting or not placeholders):
            yield self.explained[0].says
        if self.parting is not None:
            where = f"prompt {self.parting.prompt} has other tokens from position {self.parting.parting} on"
            yield f"the inputs differ: {where}"
        yield from placeholders
        if self.is_certain:
            places = f"{pair.certain:,} of {plural(len(pair.positions), 'position')}"
            yield f"at {places} both sides send probability 1 for one token: placeholders, or a mask"
        if self.is_text_alone:
            yield f"the texts differ, although {words}"
        has_ids = pair.keys == "token_id" and all(each.is_prompt_checked for each in pair.meetings)
        yield f"{words}; the served model would decide" if pair.differing and has_ids else words


def judge_probe(sides: Sequence[ListSide], pairs: Sequence[ListPair]) -> list[PairVerdict]:
    """Judge each pair of a probe, whose side 'warm again' is the rerun of 'warm'.

    What a request under load shares a batch with depends on the moment: it may differ from its rerun without a fault.
    """
    named, repeats = {side.name: side for side in sides}, {}
    for name, side in named.items():
        if (again := named.get(f"{name} again")) is not None:
            is_same = not compare_sides(side, again).differs and not _has_other_text(side, again)
            if is_same or "load:" not in name:
                repeats[name] = repeats[again.name] = is_same
    return judge_responses(sides, pairs, repeats)


def judge_responses(
    sides: Sequence[ListSide], pairs: Sequence[ListPair], repeats: Repeats | None = None
) -> list[PairVerdict]:
    """Judge each pair of responses. repeats: None if nothing says how they were requested."""
    both = [(sides[0], side) for side in sides[1:]]
    return [_judged(index, ListControls(pair, both[index], repeats or {})) for index, pair in enumerate(pairs)]


def judge_with_floor(earlier: PairVerdict, pair: ListPair, sides: Sequence[ListSide], floor: Evidence) -> PairVerdict:
    """Judge a stored, undecided pair again with a model's noise floor."""
    rows = tuple(row for row in earlier.evidence if row.outcome != FAILED)  # what had failed had not decided
    return _judged(earlier.pair, ListControls(pair, sides, floor_row=floor), replace(earlier, evidence=rows))


def _judged(index: int, controls: ListControls, earlier: PairVerdict | None = None) -> PairVerdict:
    verdict = judge(controls, earlier).verdict
    ratio = getattr(controls.floor_row.figures, "noise_ratio", None) if controls.floor_row else None
    return PairVerdict(index, verdict.name, verdict.because, ratio, verdict.evidence)


def judge_tokens(compared: Compared) -> PairVerdict:
    """Judge two files of chosen tokens: with one value per row no cause is looked for."""
    figures, name, outcome = compared.summary, UNDECIDED, NOTED
    of = f"of {figures.finite:,} log-probabilities of chosen tokens"
    differ = f"{figures.neq:,} {of} differ by up to {number(figures.max_abs)} nats"
    says = f"{differ}; one value per position cannot tell rounding from a fault."
    constants = zip(compared.names, compared.constants, strict=True)
    if constant := next((f"'{side}' is {value}" for side, value in constants if value is not None), ""):
        name, outcome, says = INVALID_DUMP, FAILED, f"Every value of {constant}: placeholders."
    elif not figures.finite:
        says = "No token has a log-probability on both sides."
    elif not figures.neq:
        name, outcome = IDENTICAL, PASSED
        says = f"{figures.finite:,} {of} are equal; other tokens are not compared."
    sent = SentFigures(positions=compared.positions, values=figures.finite, neq=figures.neq, flips=0)
    row = Evidence(Check.SENT, "the log-probabilities of chosen tokens", sent, outcome, says)
    return PairVerdict(0, name, says, None, (row,))


def sent_evidence(pair: ListPair) -> list[Evidence]:
    """Return rows on what both sides sent: values, placeholders, inputs and the dtype that values show."""
    rows: list[Evidence] = []

    def add(check: Check, figures: CheckFigures, outcome: str, says: str, side: str | None = None) -> None:
        rows.append(Evidence(check, "the requests that were sent", figures, outcome, says, side))

    zeros = f"; {plural(pair.zeros, 'token')} of probability 0 not compared" if pair.zeros else ""
    counts = {"positions": len(pair.positions), "values": pair.listed, "neq": pair.differing, "flips": pair.flips}
    outcome = NOTED if pair.differs or not pair.listed else PASSED
    add(Check.SENT, SentFigures(**counts), outcome, f"{opening(_words(pair))}{zeros}.")
    outcome = FAILED if pair.is_void else NOTED
    for one in pair.placeholders:
        placeholders = PlaceholderFigures(kind=one.kind, tokens=one.tokens, of=one.of)
        add(Check.PLACEHOLDERS, placeholders, outcome, f"{opening(clauses([one])[0])}.", one.side)
    outcome = FAILED if any(meeting.is_parting_in_prompt for meeting in pair.meetings) else NOTED
    for note in pair.notes:
        add(Check.CONTEXT, ContextFigures(prompts=len(pair.meetings)), outcome, note)
    for name, grid in zip((pair.reference, pair.variant), pair.grids, strict=True):
        if grid is not None:
            add(Check.GRID, GridFigures(formats=grid.formats), NOTED, f"Its values are {grid_words(grid)}.", name)
    return rows


def grid_words(grid: Grid | None) -> str:
    return f"logits of {grid.compute_dtype or ' or '.join(grid.formats)}" if grid else "of no 16-bit format"


def _has_other_text(one: ListSide, other: ListSide) -> bool:
    texts = [(a.text, b.text) for a, b in zip(one.responses, other.responses, strict=True)]
    return any(a != b for a, b in texts if a and b)


def _words(pair: ListPair) -> str:
    """Return `12 of 400 log-probabilities (2 flips) differ by up to 0.031 nats`, or the first token that differs."""
    of = f"of {pair.listed:,} {pair.kind}"
    if pair.differing:
        largest = number(max(place.figures.max_abs or 0.0 for place in pair.positions))
        counted = f" ({plural(pair.flips, 'flip')})" if pair.flips else ""
        return f"{pair.differing:,} {of}{counted} differ by up to {largest} {pair.unit}"
    first = next((place for place in pair.positions if place.differs_in_tokens), None)
    if first is None and not pair.listed:
        return f"no token has a value on both sides at any of {plural(len(pair.positions), 'position')}"
    if first is None:
        return f"{pair.listed:,} {of} that both sides sent are equal"
    rows, is_flip = (first.figures.reference, first.figures.variant), first.figures.is_flip
    tokens = [token for row in rows if (token := row.token) is not None] if is_flip else first.chosen
    names = [shown(repr(pair.texts[token]), 40) if token in pair.texts else f"{token}" for token in tokens]
    prompt = f" of prompt {first.prompt}" if len(pair.meetings) > 1 else ""
    return f"the {'top ' if is_flip else ''}token at position {first.position:,}{prompt} differs ({' / '.join(names)})"
