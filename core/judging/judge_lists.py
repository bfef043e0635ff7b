"""Verdicts on pairs of lists of top tokens: of a probe, of uploaded responses, and over a model's noise floor.

A difference that repeats itself is `undecided` until the served model measures a noise floor on the run's tokens. What
differs although nothing changed is `nondeterministic`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..numerics.grid import Grid
from ..runs.file import evidence
from ..runs.file.evidence import FAILED, NOTED, PASSED, Check, Evidence
from ..runs.file.records import BUG_SUSPECTED, IDENTICAL, INVALID_DUMP, NONDETERMINISTIC, ROUNDING, UNDECIDED
from ..runs.revision import PairVerdict
from ..runs.topk.pairing import ListPair, compare_sides
from ..runs.topk.placeholders import clauses
from ..runs.topk.records import ListSide
from ..runs.topk.tokens import Compared
from ..text import number, opening, plural, shown, three_digits
from .explain.causes import explain
from .explain.rows import rows_of_lists
from .explain.scoring import Cause
from .judge import FOREIGN, WIDE

LARGEST_AT_ONE = 10.0  # floors at one position: of twenty tokens a mean square varies more than of a vocabulary
_REQUESTS = "the requests that were sent"

Judged = tuple[str, str]  # name of the verdict, and why
Reruns = dict[str, ListPair | None]  # sides compared with their rerun, by name


@dataclass(frozen=True)
class Way:
    """Condition of a side of a probe. what: a clause, as `with the prefix in its cache`.

    again: name of its rerun, '' if there is none. is_timed: what it shares a batch with depends on the moment, so that
    it may differ from itself without a fault. has_text: its text is an answer to the prompt, as the reference's is.
    """

    what: str
    again: str = ""
    is_timed: bool = False
    has_text: bool = True


def judge_probe(sides: Sequence[ListSide], pairs: Sequence[ListPair], ways: dict[str, Way]) -> list[PairVerdict]:
    """Return a verdict on each pair of a probe. ways: the condition of every side by name."""
    named = {side.name: side for side in sides}
    rerun = {pair.variant: pair for pair in pairs}.get(ways[sides[0].name].again)
    verdicts = []
    for index, pair in enumerate(pairs):
        way, side = ways[pair.variant], named[pair.variant]
        repeated = compare_sides(side, named[way.again]) if way.again in named else None
        judged = _of_probe(pair, way, rerun, repeated)
        texts = ([response.text for response in each.responses] for each in (sides[0], side))
        if judged[0] == IDENTICAL and way.has_text and len(set(map(tuple, texts))) > 1:
            says = f"the text {way.what} differs, although {_words(pair)}"
            judged = NONDETERMINISTIC if pair is rerun else UNDECIDED, says
        again = {pair.reference: rerun, pair.variant: repeated}
        verdicts.append(_verdict(index, judged, pair, (sides[0], side), again))
    return verdicts


def judge_responses(sides: Sequence[ListSide], pairs: Sequence[ListPair]) -> list[PairVerdict]:
    """Return a verdict on each pair of uploaded responses, of which nothing says how they were requested."""
    verdicts = []
    for index, pair in enumerate(pairs):
        judged = _without_rerun(pair) or (UNDECIDED, f"{_words(pair)}; whether each side repeats itself is unknown")
        verdicts.append(_verdict(index, judged, pair, (sides[0], sides[index + 1]), {}))
    return verdicts


def judge_tokens(compared: Compared) -> PairVerdict:
    """Return the verdict on two files of chosen tokens: with one value per row no cause is looked for."""
    figures, name = compared.summary, UNDECIDED
    of = f"of {figures.finite:,} log-probabilities of chosen tokens"
    constants = zip(compared.names, compared.constants, strict=True)
    constant = next((f"'{side}' is {value}" for side, value in constants if value is not None), None)
    if constant:
        name, says = INVALID_DUMP, f"every value of {constant}: placeholders"
    elif not figures.finite:
        says = "no token has a log-probability on both sides"
    elif not figures.neq:
        name, says = IDENTICAL, f"{figures.finite:,} {of} are equal; other tokens are not compared"
    else:
        differ = f"{figures.neq:,} {of} differ by up to {number(figures.max_abs)} nats"
        says = f"{differ}; one value per position cannot tell rounding from a fault"
    sent = evidence.SentFigures(positions=compared.positions, values=figures.finite, neq=figures.neq, flips=0)
    outcome = {INVALID_DUMP: FAILED, IDENTICAL: PASSED}.get(name, NOTED)
    row = Evidence(Check.SENT, "the log-probabilities of chosen tokens", sent, outcome, f"{opening(says)}.")
    return PairVerdict(0, name, f"{says}.", None, (row,))


@dataclass(frozen=True, eq=False)
class ListFloor:
    """A model's noise floor on a pair of lists: mean squares over the tokens that both sides sent. [positions]

    apart: of the pair; floor: of reorderings of the model in `dtype`; own: of either side to the model [2, positions].
    """

    model: str
    dtype: str
    apart: NDArray[np.float64]
    floor: NDArray[np.float64]
    own: NDArray[np.float64]

    def ratio(self, squares: NDArray[np.float64]) -> float:
        """Return rms over rms of the floor."""
        total = float(self.floor.mean())
        if not total:
            return float("inf") if squares.any() else 0.0
        return float(np.sqrt(squares.mean() / total))

    @property
    def worst(self) -> float:
        """Largest ratio at one position, over the floor there or the median one, whichever is larger."""
        least = max(float(np.median(self.floor)), 1e-300)
        return float(np.sqrt(self.apart / np.maximum(self.floor, least)).max())

    @property
    def from_model(self) -> tuple[float, float]:
        """Distance of either side to the model, in floors."""
        return self.ratio(self.own[0]), self.ratio(self.own[1])


def judge_with_floor(earlier: PairVerdict, names: tuple[str, str], floor: ListFloor) -> PairVerdict:
    """Return the verdict on an undecided pair over a model's noise floor: `rounding` within it, if both sides are what
    the model computes. Beyond it the pair stays `undecided`: a cache or activations of fewer bits are no bug.
    """
    if earlier.name != UNDECIDED:
        return earlier
    ratio, worst, distances = floor.ratio(floor.apart), floor.worst, floor.from_model
    size = f"{three_digits(ratio)}x the noise floor of {floor.model} in {floor.dtype}"
    size += f", {three_digits(worst)}x at one position"
    cause = other_weights(names, floor)
    name, because = UNDECIDED, f"the pair is {size}: a lower precision, or a fault."
    if ratio <= WIDE.over_all and worst <= LARGEST_AT_ONE and max(distances) <= FOREIGN:
        name, because = ROUNDING, f"rounding noise: the pair is {size}."
    elif cause is not None:
        because = cause.says
    if not np.isfinite([ratio, worst, *distances]).all():
        return replace(earlier, because=because, noise_ratio=None)
    measured = evidence.ListFloorFigures(
        compute_dtype=floor.dtype,
        noise_ratio=ratio,
        worst_position_ratio=worst,
        reference_noise_ratio=distances[0],
        variant_noise_ratio=distances[1],
    )
    outcome = PASSED if name == ROUNDING else NOTED
    row = Evidence(Check.LIST_FLOOR, floor.model, measured, outcome, f"The pair is {size}.")
    return replace(earlier, name=name, because=because, noise_ratio=ratio, evidence=(*earlier.evidence, row))


def other_weights(names: tuple[str, str], floor: ListFloor) -> Cause | None:
    """Return the cause that one side or neither is what a model computes, None if both are or it has no floor."""
    if not floor.floor.any() or max(floor.from_model) <= FOREIGN:
        return None
    distances = dict(zip(("floors_of_reference", "floors_of_variant"), floor.from_model, strict=True))
    away = [f"({three_digits(distance)} noise floors away)" for distance in floor.from_model]
    sides = [f"'{names[0]}' {away[0]}", f"'{names[1]}' {away[1]}"]
    base = f"what {floor.model} computes in {floor.dtype}"
    if min(floor.from_model) > FOREIGN:
        says = f"Neither {sides[0]} nor {sides[1]} is {base}: another checkpoint, fewer bits, or another text."
        return Cause("another model", says, distances)
    near, off = sides if floor.from_model[0] < floor.from_model[1] else reversed(sides)
    return Cause("other weights", f"{near} is {base}, {off} is not: other weights or fewer bits.", distances)


def _verdict(index: int, judged: Judged, pair: ListPair, sides: Sequence[ListSide], again: Reruns) -> PairVerdict:
    """Return the verdict of a pair: masks and placeholders come first, then a cause. again: reruns of sides by name."""
    name, because = judged
    if name != IDENTICAL and (causes := explain(rows_of_lists(pair, sides[0], sides[1])).causes):
        name = BUG_SUSPECTED if name == UNDECIDED and causes[0].is_fault else name
        because = because if name == NONDETERMINISTIC else causes[0].says
    if pair.has_one_mask or (pair.placeholders and name in (IDENTICAL, UNDECIDED)):
        name = INVALID_DUMP if pair.has_one_mask or pair.is_mostly_placeholders else UNDECIDED
        because = clauses(pair.placeholders)[0]
    return PairVerdict(index, name, f"{because.removesuffix('.')}.", None, tuple(_evidence(pair, again)))


def _evidence(pair: ListPair, again: Reruns) -> list[Evidence]:
    counts = {"positions": len(pair.positions), "values": pair.listed, "neq": pair.differing, "flips": pair.flips}
    zeros = f"; {plural(pair.zeros, 'token')} of probability 0 not compared" if pair.zeros else ""
    outcome = NOTED if pair.differs or not pair.listed else PASSED
    rows = [
        Evidence(Check.SENT, _REQUESTS, evidence.SentFigures(**counts), outcome, f"{opening(_words(pair))}{zeros}.")
    ]
    for one in pair.placeholders:
        figures = evidence.PlaceholderFigures(kind=one.kind, tokens=one.tokens, of=one.of)
        says = f"{opening(clauses([one])[0])}."
        rows.append(Evidence(Check.PLACEHOLDERS, _REQUESTS, figures, FAILED, says, one.side))
    outcome = FAILED if any(meeting.is_parting_in_prompt for meeting in pair.meetings) else NOTED
    context = evidence.ContextFigures(prompts=len(pair.meetings))
    rows += [Evidence(Check.CONTEXT, _REQUESTS, context, outcome, note) for note in pair.notes]
    for name, grid in zip((pair.reference, pair.variant), pair.grids, strict=True):
        if grid is not None:
            formats = evidence.GridFigures(formats=grid.formats)
            rows.append(Evidence(Check.GRID, _REQUESTS, formats, NOTED, grid_words(grid), name))
    for name, other in again.items():
        if other is not None:
            repeats = evidence.RerunFigures(not_repeatable=(name,) if other.differs else ())
            says = f"{opening(_words(other))}." if other.differs else "The same request has the same answer."
            outcome = FAILED if other.differs else PASSED
            rows.append(Evidence(Check.AGAIN, other.variant, repeats, outcome, says, name))
    return rows


def _of_probe(pair: ListPair, way: Way, rerun: ListPair | None, repeated: ListPair | None) -> Judged:
    judged, is_steady = _without_rerun(pair), rerun is None or not rerun.differs
    if judged is not None and (is_steady or judged[0] == INVALID_DUMP):
        return judged
    if pair is rerun:
        return NONDETERMINISTIC, f"sent alone twice, the same request has two answers: {_words(pair)}"
    if not is_steady:
        says = f"sent alone, the same request does not repeat itself; a difference {way.what} proves nothing"
        return NONDETERMINISTIC, says
    says = f"{_words(pair)} {way.what}"
    alone = "; alone it repeats itself" if rerun is not None else ""
    if repeated is None:
        return UNDECIDED, f"{says}{alone}"
    if not repeated.differs:
        return UNDECIDED, f"{says}; {'each' if alone else 'there it'} repeats itself"
    if way.is_timed:
        return UNDECIDED, f"{says}, differently each time{alone}"
    return NONDETERMINISTIC, f"{_words(repeated)} between two requests {way.what}{alone}"


def _without_rerun(pair: ListPair) -> Judged | None:
    """Return name and clause of a pair of other inputs, or of which nothing differs; None of any other."""
    other = next((meeting for meeting in pair.meetings if meeting.is_parting_in_prompt), None)
    if other is not None:
        where = f"prompt {other.prompt} has other tokens from position {other.parting} on"
        return INVALID_DUMP, f"the inputs differ: {where}"
    if pair.differs:
        return None
    if pair.listed and 2 * pair.certain > len(pair.positions):
        places = f"{pair.certain:,} of {plural(len(pair.positions), 'position')}"
        return UNDECIDED, f"at {places} both sides send probability 1 for one token: placeholders, or a mask"
    return IDENTICAL if pair.listed else UNDECIDED, _words(pair)


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


def grid_words(grid: Grid | None) -> str:
    """Return the compute dtype that the values of a side show, or that they show none."""
    if grid is None:
        return "No 16-bit format holds its values."
    names = grid.compute_dtype or " or ".join(grid.formats)
    return f"Its values are logits of {names}, as the gaps of {plural(grid.rows, 'row')} show."
