"""Verdicts on pairs of lists: what repeated requests to a server say, as far as some tokens of each row can say it.

A difference that repeats itself is `undecided` until a floor is there: that of the model that is served, measured on
the run's tokens. What differs although nothing changed is `nondeterministic`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..numerics.grid import Grid
from ..runs.file.evidence import (
    FAILED,
    NOTED,
    PASSED,
    Check,
    ContextFigures,
    Evidence,
    GridFigures,
    ListFloorFigures,
    PlaceholderFigures,
    RerunFigures,
    SentFigures,
)
from ..runs.file.records import BUG_SUSPECTED, IDENTICAL, INVALID_DUMP, NONDETERMINISTIC, ROUNDING, UNDECIDED
from ..runs.revision import PairVerdict
from ..runs.topk.pairing import ListPair, ListPosition, compare_sides
from ..runs.topk.placeholders import clauses
from ..runs.topk.records import ListSide
from ..runs.topk.tokens import Compared
from ..text import number, opening, out_of, plural, shown, three_digits
from .explain.causes import explain
from .explain.rows import rows_of_lists
from .explain.scoring import Cause
from .ladder.noise_ratio import LARGEST_RATIO

LARGEST_AT_ONE = 10.0  # floors at one position: of twenty tokens a mean square varies more than of a vocabulary
FAR_FROM_MODEL = 10.0  # floors that engines in one dtype are apart at most
_FLOOR = "A noise floor would decide: the model that is served measures it on the same tokens."
_REQUESTS = "the requests that were sent"


@dataclass(frozen=True)
class Way:
    """One side of a probe: how its requests were sent. what: a clause on that, as `with the prefix in its cache`.

    again: name of the side that was asked in the same way once more, '' where there is none. is_timed: what it shares a
    batch with depends on the moment, so that it may differ from itself without a fault. has_text: its text is an answer
    to the prompt, as the reference's is.
    """

    what: str
    again: str = ""
    is_timed: bool = False
    has_text: bool = True


def judge_probe(sides: Sequence[ListSide], pairs: Sequence[ListPair], ways: dict[str, Way]) -> list[PairVerdict]:
    """A verdict on each pair of a probe. ways: of every side by name, the reference's with its rerun.

    A reference that does not repeat itself makes every pair `nondeterministic`: no other cause can be told from that.
    """
    by_name = {pair.variant: pair for pair in pairs}
    named = {side.name: side for side in sides}
    rerun = by_name.get(ways[sides[0].name].again)
    verdicts = []
    for index, pair in enumerate(pairs):
        way = ways[pair.variant]
        is_longer = way.has_text and not _differs(pair) and _texts_differ(sides[0], named[pair.variant])
        repeated = None
        if way.again in named:
            repeated = compare_sides(named[pair.variant], named[way.again])
        judged = _judged(pair, way, rerun, repeated)
        if is_longer and judged[0] == IDENTICAL:
            why = "One answer goes on where the other ends, or a server writes the same tokens as another text."
            says = f"{way.what} the text is another one, although {_equal(pair)[1]} {why}"
            judged = NONDETERMINISTIC if pair is rerun else UNDECIDED, says
        again = {
            name: other
            for name, other in ((pair.reference, rerun), (pair.variant, repeated if way.again in named else None))
            if other is not None
        }
        verdicts.append(_verdict(index, judged, pair, sides[0], named[pair.variant], again))
    return verdicts


@dataclass(frozen=True, eq=False)
class ListFloor:
    """A model's rounding floor on a pair of lists: mean squares at each compared position, over the tokens that both
    sides sent. apart: of the pair; floor: of reorderings of the model in `dtype`; own: of either side against the model
    [2, positions].
    """

    model: str
    dtype: str
    apart: NDArray[np.float64]
    floor: NDArray[np.float64]
    own: NDArray[np.float64]

    @property
    def ratio(self) -> float:
        """rms of the pair over rms of the floor."""
        return _ratio(self.apart, self.floor)

    @property
    def of_positions(self) -> NDArray[np.float64]:
        """Ratio at each position, over the floor there or the middle one, whichever is larger."""
        least = float(np.median(self.floor))
        return np.sqrt(self.apart / np.maximum(np.maximum(self.floor, least), 1e-300))

    @property
    def from_model(self) -> tuple[float, float]:
        """Either side's distance from the model, in floors."""
        return _ratio(self.own[0], self.floor), _ratio(self.own[1], self.floor)


def _ratio(squares: NDArray[np.float64], floor: NDArray[np.float64]) -> float:
    total = float(floor.mean())
    if not total:
        return float("inf") if squares.any() else 0.0
    return float(np.sqrt(squares.mean() / total))


def judge_with_floor(earlier: PairVerdict, names: tuple[str, str], floor: ListFloor) -> PairVerdict:
    """The verdict on a pair that was undecided, by a model's floor: `rounding` where it is within it over all positions
    and at each, and the model is what the sides were computed with. A list never makes a bug of a pair: what lies
    beyond may be a cache or activations of fewer bits. names: of the reference and the variant.
    """
    if earlier.name != UNDECIDED:
        return earlier
    ratio, worst = floor.ratio, float(floor.of_positions.max())
    near, far = sorted(floor.from_model)
    base = f"rounding floors of {floor.model} in {floor.dtype} (4 reorderings, over the tokens that were sent)"
    measured = f"it is {three_digits(ratio)} {base}, {three_digits(worst)} at one position"
    name = UNDECIDED
    if near > FAR_FROM_MODEL:
        says = (
            f"{measured}; but neither side is what this model computes, the nearer one is {three_digits(near)} floors"
            " off: other weights, or fewer bits somewhere, such as a cache of 16."
        )
    elif far > FAR_FROM_MODEL:
        side = names[0] if floor.from_model[0] < floor.from_model[1] else names[1]
        says = f"{measured}; only '{side}' is what this model computes, the other is {three_digits(far)} floors off."
    elif ratio <= LARGEST_RATIO and worst <= LARGEST_AT_ONE:
        name, says = ROUNDING, f"{measured}."
    else:
        says = f"{measured}, more than another order of sums makes: fewer bits somewhere, or a fault."
    before = earlier.because.replace(_FLOOR, "").strip()
    known = np.isfinite([ratio, worst, *floor.from_model]).all()
    figures = (
        ListFloorFigures(
            compute_dtype=floor.dtype,
            noise_ratio=ratio,
            worst_position_ratio=worst,
            reference_noise_ratio=floor.from_model[0],
            variant_noise_ratio=floor.from_model[1],
        )
        if known
        else None
    )
    outcome = PASSED if name == ROUNDING else NOTED
    row = [] if figures is None else [Evidence(Check.LIST_FLOOR, floor.model, figures, outcome, opening(says))]
    return replace(
        earlier,
        name=name,
        because=f"{before} {opening(says)}".strip(),
        noise_ratio=ratio if known else None,
        evidence=(*earlier.evidence, *row),
    )


def other_weights(names: tuple[str, str], floor: ListFloor) -> Cause | None:
    """The sides of a pair compared with a model that they are said to be: the cause where one side or neither is what
    it computes, None where both are, or where the model has no floor there. names: of the reference and the variant.
    """
    if not floor.floor.any():
        return None
    far = [distance > FAR_FROM_MODEL for distance in floor.from_model]
    if not any(far):
        return None
    reference, variant = (three_digits(distance) for distance in floor.from_model)
    sides: dict[str, float | int | str | list[int]] = {
        "floors_of_reference": floor.from_model[0],
        "floors_of_variant": floor.from_model[1],
    }
    base = f"what {floor.model} computes in {floor.dtype}"
    if all(far):
        says = (
            f"Neither side is {base}: '{names[0]}' is {reference} of its rounding floors off, '{names[1]}' {variant};"
            " both hold another checkpoint, fewer bits, or another text than the run says."
        )
        return Cause("another model", says, sides)
    near, off = (names[1], names[0]) if far[0] else names
    distances = (variant, reference) if far[0] else (reference, variant)
    says = (
        f"'{near}' is {base} ({distances[0]} of its rounding floors off), '{off}' is not ({distances[1]}): other"
        " weights, another checkpoint, or fewer bits on that side."
    )
    return Cause("other weights", says, sides)


def judge_responses(sides: Sequence[ListSide], pairs: Sequence[ListPair]) -> list[PairVerdict]:
    """A verdict on each pair of uploaded responses, of which nothing says how they were asked for."""
    return [
        _verdict(index, _of_upload(pair), pair, sides[0], side, {})
        for index, (pair, side) in enumerate(zip(pairs, sides[1:], strict=True))
    ]


def judge_tokens(compared: Compared) -> PairVerdict:
    """The verdict on two files of chosen tokens: with one value a row no cause is looked for."""
    figures, (first, second) = compared.summary, compared.names
    sent = f"{out_of(figures.neq, figures.finite)} log-probabilities of chosen tokens that both sides have differ"
    constant = [
        (name, value) for name, value in zip(compared.names, compared.constants, strict=True) if value is not None
    ]
    if constant:
        name, says = INVALID_DUMP, f"every value of '{constant[0][0]}' is {constant[0][1]}: placeholders."
    elif not figures.finite:
        name, says = UNDECIDED, "no token has a log-probability on both sides."
    elif not figures.neq:
        name = IDENTICAL
        says = (
            f"all {figures.finite:,} log-probabilities that both sides have are equal; other tokens are not compared."
        )
    else:
        name = UNDECIDED
        says = (
            f"{sent}, by up to {number(figures.max_abs)} nats. One value a position does not tell rounding from"
            f" a fault: score the same tokens once more with '{first}' and with '{second}', or bring"
            " whole rows of some of them."
        )
    counts = SentFigures(positions=compared.positions, values=figures.finite, neq=figures.neq, flips=0)
    outcome = FAILED if constant else PASSED if name == IDENTICAL else NOTED
    row = Evidence(Check.SENT, "the log-probabilities of chosen tokens", counts, outcome, opening(says))
    return PairVerdict(0, name, says, None, (row,))


def _verdict(
    index: int,
    judged: tuple[str, str],
    pair: ListPair,
    reference: ListSide,
    variant: ListSide,
    again: dict[str, ListPair],
) -> PairVerdict:
    """The verdict with the cause that was found in front, placeholders before everything, and its evidence. again:
    sides with their rerun, by name.
    """
    name, because = judged
    if name != IDENTICAL and (causes := explain(rows_of_lists(pair, reference, variant)).causes):
        because = f"{causes[0].says} {opening(because)}"
        name = BUG_SUSPECTED if name == UNDECIDED and causes[0].is_fault else name
    if pair.placeholders:
        if name in (IDENTICAL, UNDECIDED):
            name = UNDECIDED
            if pair.is_mostly_placeholders:
                name, because = INVALID_DUMP, f"{_difference(pair)}." if _differs(pair) else _equal(pair)[1]
        because = f"{'; '.join(clauses(pair.placeholders))}. These are not compared. {opening(because)}"
    return PairVerdict(index, name, because, None, tuple(_evidence(pair, again)))


def _evidence(pair: ListPair, again: dict[str, ListPair]) -> list[Evidence]:
    """What the verdict rests on, and what a reader of the comparison has to know."""
    figures = SentFigures(
        positions=len(pair.positions),
        values=pair.listed,
        neq=pair.differing,
        flips=sum(place.figures.is_flip is True for place in pair.positions),
    )
    outcome = NOTED if _differs(pair) or not pair.listed else PASSED
    says = f"{_difference(pair)}." if outcome == NOTED else _equal(pair)[1]
    rows = [Evidence(Check.SENT, _REQUESTS, figures, outcome, opening(says))]
    for one in pair.placeholders:
        says = f"{opening(clauses([one])[0])}."
        placeholder = PlaceholderFigures(kind=one.kind, tokens=one.tokens, of=one.of)
        rows.append(Evidence(Check.PLACEHOLDERS, _REQUESTS, placeholder, FAILED, says, one.side))
    is_other = any(meeting.is_parting_in_prompt for meeting in pair.meetings)
    context = ContextFigures(prompts=len(pair.meetings))
    for note in (*_partings(pair), *pair.notes):
        rows.append(Evidence(Check.CONTEXT, _REQUESTS, context, FAILED if is_other else NOTED, note))
    for name, grid in zip((pair.reference, pair.variant), pair.grids, strict=True):
        shown_by = GridFigures(formats=() if grid is None else grid.formats)
        rows.append(Evidence(Check.GRID, _REQUESTS, shown_by, NOTED, grid_words(grid), name))
    for name, other in again.items():
        failed = _differs(other)
        says = _difference(other) if failed else "the same request has the same answer"
        repeats = RerunFigures(not_repeatable=(name,) if failed else ())
        rows.append(
            Evidence(Check.AGAIN, other.variant, repeats, FAILED if failed else PASSED, f"{opening(says)}.", name)
        )
    return rows


def _of_upload(pair: ListPair) -> tuple[str, str]:
    if found := _other_inputs(pair):
        return found
    if not _differs(pair):
        return _equal(pair)
    return UNDECIDED, (
        f"{_difference(pair)}. Nothing says whether either engine repeats its own answer: probe it, or send each"
        " request twice."
    )


def _judged(pair: ListPair, way: Way, rerun: ListPair | None, repeated: ListPair | None) -> tuple[str, str]:
    if found := _other_inputs(pair):
        return found
    if rerun is not None and _differs(rerun):
        if pair is rerun:
            return (NONDETERMINISTIC, f"the same request alone, sent twice, has two answers: {_difference(pair)}.")
        return NONDETERMINISTIC, (
            f"alone, the same request is answered differently each time, so what it does {way.what} cannot be told from"
            f" that: {_difference(pair)}."
        )
    if not _differs(pair):
        return _equal(pair)
    alone = "alone it repeats itself; " if rerun is not None else ""
    if repeated is not None and _differs(repeated):
        if way.is_timed:
            return UNDECIDED, (
                f"{alone}{way.what} it differs, and differently each time, as requests share batches by their moment:"
                f" {_difference(pair)}. Its arithmetic depends on the batch. {_FLOOR}"
            )
        return NONDETERMINISTIC, f"{alone}{way.what} it does not repeat itself: {_difference(repeated)}."
    again = ", and repeats itself there too" if repeated is not None else ""
    return UNDECIDED, f"{alone}{way.what} it differs{again}: {_difference(pair)}. {_FLOOR}"


def _other_inputs(pair: ListPair) -> tuple[str, str] | None:
    """Sides that have read other tokens have nothing to do with rounding."""
    other = [meeting for meeting in pair.meetings if meeting.is_parting_in_prompt]
    if not other:
        return None
    first = other[0]
    return INVALID_DUMP, (
        f"prompt {first.prompt} has other tokens on the two sides from position {first.parting} on: the engines were"
        " not given the same input."
    )


def _differs(pair: ListPair) -> bool:
    """Return whether anything that was sent differs: a value, a top token, or an emitted one."""
    return bool(pair.differing) or any(place.differs_in_tokens for place in pair.positions)


def _texts_differ(reference: ListSide, variant: ListSide) -> bool:
    """Return whether an answer reads otherwise: one that ended earlier has no other value."""
    both = zip(reference.responses, variant.responses, strict=True)
    return any(one.text != other.text for one, other in both)


def _difference(pair: ListPair) -> str:
    if not pair.listed:
        return not_compared(pair)
    largest = max((place.figures.max_abs or 0.0 for place in pair.positions), default=0.0)
    flips = sum(place.figures.is_flip is True for place in pair.positions)
    flipped = f", and the best token at {out_of(flips, len(pair.positions))} positions" if flips else ""
    return f"{out_of(pair.differing, pair.listed)} values that both sent differ, by up to {number(largest)}{flipped}"


def _equal(pair: ListPair) -> tuple[str, str]:
    """The verdict on a pair of which nothing differs: without a value on both sides, nothing was compared."""
    if not pair.listed:
        return UNDECIDED, f"{not_compared(pair)}; the tokens are the same."
    values = (
        "the 1 value that both sides sent is"
        if pair.listed == 1
        else f"all {pair.listed:,} values that both sides sent are"
    )
    says = f"{values} equal; what was not sent is not compared."
    if 2 * pair.certain > len(pair.positions):
        certain = (
            f"at {pair.certain:,} of {plural(len(pair.positions), 'position')} both sides send probability 1 for one"
        )
        return UNDECIDED, f"{certain} token and 0 for the rest: placeholders, or a mask. {opening(says)}"
    return IDENTICAL, f"{says} {zeros_words(pair)}".strip()


def zeros_words(pair: ListPair) -> str:
    """Sentence on listed tokens of probability 0, '' where there are none."""
    if not pair.zeros:
        return ""
    are = "is" if pair.zeros == 1 else "are"
    return f"{plural(pair.zeros, 'placeholder')} of probability 0 (null, -9999.0 or -inf) {are} not compared."


def not_compared(pair: ListPair) -> str:
    """Clause on a pair of which no value can be compared: the first tokens that differ, if any."""
    places = plural(len(pair.positions), "position")
    first = next((place for place in pair.positions if place.differs_in_tokens), None)
    if first is None:
        return f"no value can be compared: no token has one on both sides at any of {places}"
    prompt = f" of prompt {first.prompt}" if len(pair.meetings) > 1 else ""
    where = "the first position" if first is pair.positions[0] else f"position {first.position:,}{prompt}"
    kind = "top token" if first.figures.is_flip else "token"
    texts = [pair.texts.get(-1 if token is None else token) for token in _tokens_of(first)]
    tokens = [
        f"{token}" if text is None else shown(repr(text), 40)
        for token, text in zip(_tokens_of(first), texts, strict=True)
    ]
    after = "; other tokens after that" if any(meeting.parting is not None for meeting in pair.meetings) else ""
    return f"the {kind} at {where} differs ({' / '.join(tokens)}); no value can be compared{after}"


def _tokens_of(place: ListPosition) -> tuple[int | None, int | None]:
    """The top tokens of both sides where these differ, else those that were emitted."""
    figures = place.figures
    return (figures.reference.token, figures.variant.token) if figures.is_flip else place.chosen


def grid_words(grid: Grid | None) -> str:
    """The compute dtype that the values of a side show, or that they show none."""
    if grid is None:
        return "Its values lie on no 16-bit grid that these digits could show."
    names = grid.compute_dtype or " or ".join(grid.formats)
    return (
        f"Logits of {names}, shown by the gaps of {plural(grid.rows, 'row')} (residual {number(grid.residual, 2)} of a"
        f" spacing; by chance: {number(grid.chance, 2)})."
    )


def _partings(pair: ListPair) -> list[str]:
    """Say where the texts part, a sentence for each prompt that does."""
    parted = [meeting for meeting in pair.meetings if meeting.parting is not None and not meeting.is_parting_in_prompt]
    several = len(pair.meetings) > 1
    lines = [
        f"{f'Prompt {meeting.prompt}: other' if several else 'Other'} tokens from position {meeting.parting:,} on; rows"
        " after that are not compared."
        for meeting in parted[:10]
    ]
    return lines + ([f"{len(parted) - 10:,} more prompts part."] if len(parted) > 10 else [])
