"""Figures of sparse pairs in words: numbers, bounds and what is unknown, and the sentences that pages, tables and
reports share.
"""

from __future__ import annotations

from typing import Any

from ...numerics.grid import Grid
from ...text import joined, number, out_of, plural, shown
from ..topk.pairing import ListPair, ListPosition
from ..topk.placeholders import clauses
from .sparse_json import Bounded, summary_json

UNITS = {"logit": "logits", "logprob": "nats", "prob": "of probability"}


def opening(sentence: str) -> str:
    """The sentence with a capital at the beginning."""
    return sentence[:1].upper() + sentence[1:]


def told(figure: Bounded, digits: int = 4) -> str:
    """A figure for people: `0.031`, `0.031 to 0.25`, `at least 0.031`, `unknown`."""
    if figure is None:
        return "unknown"
    if not isinstance(figure, list):
        return number(figure, digits)
    low, high = number(figure[0], digits), figure[1]
    if high is None and not figure[0]:
        return "0 or more"
    return f"at least {low}" if high is None else f"{low} to {number(high, digits)}"


def token_words(row: dict[str, Any], side: str) -> str:
    """The best token of a side in a row of `position_json`: `473 ' cat'`."""
    token, text = row[f"{side}_token"], row[f"{side}_text"]
    if token is None:
        return "an unknown token"
    return str(token) if text is None else f"{token} {text!r}"


def low_of(figure: Bounded) -> float:
    """The figure, or its lower bound: of `max_abs`, the largest change that was sent."""
    return (figure[0] or 0.0) if isinstance(figure, list) else (figure or 0.0)


def told_count(count: int | list[int]) -> str:
    """A count for people: `3`, `3 to 7`."""
    return f"{count[0]:,} to {count[1]:,}" if isinstance(count, list) else f"{count:,}"


def placeholder_words(pair: ListPair) -> str:
    """Sentences on values that are no values of a model, '' where there are none."""
    return f"{'; '.join(clauses(pair.placeholders))}. These are not compared." if pair.placeholders else ""


def zeros_words(pair: ListPair) -> str:
    """Sentence on listed tokens of probability 0, '' where there are none."""
    if not pair.zeros:
        return ""
    are = "is" if pair.zeros == 1 else "are"
    return f"{plural(pair.zeros, 'placeholder')} of probability 0 (null, -9999.0 or -inf) {are} not compared."


def sentence(pair: ListPair) -> str:
    """Say what was sent and how far it differs, in a sentence or two."""
    said = summary_json(pair)
    listed, differing, places = said["listed"], said["listed_that_differ"], plural(len(pair.positions), "position")
    if not listed:
        return opening(f"{not_compared(pair)}.")
    flips = told_count(said["flips"])
    if not differing:
        says = f"All {listed:,} values that both sides sent are equal, at {places}; what was not sent may differ."
        return f"{says} {zeros_words(pair)}".strip()
    return (
        f"{out_of(differing, listed)} values that both sides sent differ, by up to {number(low_of(said['max_abs']))}"
        f" {UNITS[pair.values]}; flips: {flips} of {places}."
    )


def not_compared(pair: ListPair) -> str:
    """Clause on a pair of which no value can be compared: the first tokens that differ, if any."""
    places = plural(len(pair.positions), "position")
    first = next((place for place in pair.positions if place.differs_in_tokens), None)
    if first is None:
        return f"no value can be compared: no token has one on both sides at any of {places}"
    prompt = f" of prompt {first.prompt}" if len(pair.meetings) > 1 else ""
    where = "the first position" if first is pair.positions[0] else f"position {first.position:,}{prompt}"
    kind = "top token" if first.figures.is_flip else "token"
    tokens = [_token(token, pair) for token in _tokens_of(first)]
    after = "; other tokens after that" if any(meeting.parting is not None for meeting in pair.meetings) else ""
    return f"the {kind} at {where} differs ({' / '.join(tokens)}); no value can be compared{after}"


def _tokens_of(place: ListPosition) -> tuple[int | None, int | None]:
    """The top tokens of both sides where these differ, else those that were emitted."""
    if place.figures.is_flip:
        return place.figures.reference.token, place.figures.variant.token
    return place.reference_chosen, place.variant_chosen


def _token(token: int | None, pair: ListPair) -> str:
    text = pair.texts.get(-1 if token is None else token)
    return f"{token}" if text is None else shown(repr(text), 40)


def grid_lines(*pairs: ListPair) -> list[str]:
    """The compute dtype that the values of each side show, or that they show none; sides of which the same is said
    stand together.
    """
    sides: dict[str, list[str]] = {}
    for pair in pairs:
        for name, grid in zip((pair.reference, pair.variant), pair.grids, strict=True):
            names = sides.setdefault(_grid_words(grid), [])
            if name not in names:
                names.append(name)
    return [f"{joined(names)}: {words}" for words, names in sides.items()]


def _grid_words(grid: Grid | None) -> str:
    if grid is None:
        return "values lie on no 16-bit grid that these digits could show."
    names = grid.compute_dtype or " or ".join(grid.formats)
    return (
        f"logits of {names}, shown by the gaps of {plural(grid.rows, 'row')} (residual {number(grid.residual, 2)} of a"
        f" spacing; by chance: {number(grid.chance, 2)})."
    )


def meeting_lines(pair: ListPair) -> list[str]:
    """Say where the texts part, a sentence for each prompt that does."""
    parted = [meeting for meeting in pair.meetings if meeting.parting is not None and not meeting.is_parting_in_prompt]
    several = len(pair.meetings) > 1
    lines = [
        f"{pair.variant}: {f'prompt {meeting.prompt}: ' if several else ''}other tokens from position"
        f" {meeting.parting:,} on; rows after that are not compared."
        for meeting in parted[:10]
    ]
    return lines + ([f"{pair.variant}: and {len(parted) - 10:,} more prompts part."] if len(parted) > 10 else [])
