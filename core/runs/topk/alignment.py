"""Sides in one form, so that their rows can be compared: token ids and positions that all of them share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ...errors import DumpError, UsageError
from ...text import plural, series
from ..file.bounds import MAX_SIDES
from .records import UNKNOWN_TOKEN, ListSide, Response

_MOST_MISSING = 4  # rows at a start that tokens may show to be missing
_LEAST_EQUAL = 3  # tokens that have to agree then


def align(sides: Sequence[ListSide]) -> tuple[ListSide, ...]:
    """Return the sides with token ids and positions that all share, those of the reference first.

    What was moved or left out becomes a warning; sides that are aligned already stay as they are. DumpError if they
    cannot be compared, UsageError for fewer than two, more than a run has, or equal names.
    """
    names = [side.name for side in sides]
    if not 2 <= len(sides) <= MAX_SIDES:
        raise UsageError(f"a run has 2 to {MAX_SIDES} sides, not {len(sides):,}.")
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"two sides are called '{twice[0]}'; every side of a run needs its own name.")
    first = sides[0]
    for side in sides[1:]:
        both, counts = f"'{first.name}' and '{side.name}'", (len(first.responses), len(side.responses))
        if counts[0] != counts[1]:
            raise DumpError(
                f"{both} hold {counts[0]} and {counts[1]} responses; expected one per prompt on both sides."
            )
        if first.values != side.values:
            raise DumpError(f"{both} hold {first.values}s and {side.values}s; expected one kind of value.")
    if any(side.keys == "text" for side in sides):
        sides = _by_text(sides)
    prompts = [
        _in_place(prompt, responses)
        for prompt, responses in enumerate(zip(*(side.responses for side in sides), strict=True))
    ]
    return tuple(replace(side, responses=own) for side, own in zip(sides, zip(*prompts, strict=True), strict=True))


def prompt_tokens(response: Response) -> tuple[int, ...] | None:
    """Token ids of the prompt, None if not all are known."""
    end = len(response.tokens) if response.generated_from is None else response.generated_from + 1
    tokens = response.tokens[:end] if response.start_known else ()
    return None if not tokens or UNKNOWN_TOKEN in tokens else tokens


def extra_first_token(one: Sequence[int], other: Sequence[int]) -> tuple[int, bool] | None:
    """(side that has one token more in front, whether it stands there twice) of two prompts, None if they part
    otherwise.
    """
    for side, (longer, shorter) in ((1, (other, one)), (0, (one, other))):
        if len(longer) == len(shorter) + 1 > 2 and longer[1:] == shorter and UNKNOWN_TOKEN not in longer:
            return side, longer[0] == longer[1]
    return None


def sequence(response: Response) -> tuple[int, ...]:
    """Return the tokens of a response; unknown ones are filled in from the rows before them."""
    filled = list(response.tokens)
    for position, token in zip(response.rows.positions.tolist(), response.rows.targets.tolist(), strict=True):
        filled.extend([UNKNOWN_TOKEN] * (position + 2 - len(filled)))
        if filled[position + 1] == UNKNOWN_TOKEN:
            filled[position + 1] = token
    return tuple(filled)


def parting_of(reference: Sequence[int], variant: Sequence[int]) -> int | None:
    """First place at which two sequences have different tokens, None if they never do."""
    both = enumerate(zip(reference, variant, strict=False))
    return next((place for place, pair in both if UNKNOWN_TOKEN not in pair and pair[0] != pair[1]), None)


def warn(response: Response, *warnings: str) -> Response:
    return replace(response, warnings=tuple(dict.fromkeys((*response.warnings, *warnings))))


def _by_text(sides: Sequence[ListSide]) -> list[ListSide]:
    """Return the sides with a number for each text as token ids. Rows with two tokens that print alike are left out."""
    numbers: dict[str, int] = {}
    for side in sides:
        for response in side.responses:
            if len(response.rows.token_ids) and not response.texts:
                raise DumpError(
                    f"side '{side.name}' has no texts of tokens, and the other side has no ids; expected token ids on"
                    " both sides, or texts on both."
                )
            for text in response.texts.values():
                numbers.setdefault(text, len(numbers))
    return [
        replace(side, responses=tuple(_renumber(response, numbers) for response in side.responses)) for side in sides
    ]


def _renumber(response: Response, numbers: Mapping[str, int]) -> Response:
    new = {own: numbers[text] for own, text in response.texts.items()}
    texts = sorted((numbers[text], text) for text in response.texts.values())
    rows = response.rows
    lists = [[new.get(token, UNKNOWN_TOKEN) for token in rows.row(index)[0].tolist()] for index in range(len(rows))]
    usable = np.array([UNKNOWN_TOKEN not in ids and len(set(ids)) == len(ids) for ids in lists], np.bool_)
    ids = np.array([token for row_ids in lists for token in row_ids], np.int64)
    targets = np.array([new.get(token, UNKNOWN_TOKEN) for token in rows.targets.tolist()], np.int64)
    renumbered = replace(
        response,
        keys="text",
        tokens=tuple(new.get(token, UNKNOWN_TOKEN) for token in response.tokens),
        rows=replace(rows, token_ids=ids, targets=targets).part(usable, np.repeat(usable, np.diff(rows.offsets))),
        texts=dict(texts),
    )
    if usable.all():
        return renumbered
    left_out = int((~usable).sum())
    return warn(renumbered, f"{plural(left_out, 'row')} left out: two of the tokens print alike, or one has no text.")


def _in_place(prompt: int, responses: Sequence[Response]) -> list[Response]:
    """Return the responses to one prompt with positions that count from the same place."""
    moves = _common([_starts(responses[0], variant) for variant in responses[1:]])
    if any(moves):
        lengths = series([f"{end:,}" for end in dict.fromkeys((one.generated_from or 0) + 1 for one in responses)])
        is_other = all(one.start_known for one in responses)
        responses = [_later(one, move) if move else one for one, move in zip(responses, moves, strict=True)]
        if is_other:
            differ = f"Prompt {prompt} has {lengths} tokens on the two sides: its inputs differ"
            responses[-1] = warn(responses[-1], f"{differ}, and rows are aligned at the first generated token.")
    gaps = [_gap(responses[0], variant) for variant in responses[1:]]
    place = max((gap[2] for gap in gaps if gap is not None), default=0)
    counts = _common([(0, 0) if gap is None else (gap[1], 0) if gap[0] == 0 else (0, gap[1]) for gap in gaps])
    return [_insert(prompt, one, place, count) if count else one for one, count in zip(responses, counts, strict=True)]


def _common(moves: Sequence[tuple[int, int]]) -> list[int]:
    """Return the moves of all sides, from those of the reference and each variant."""
    most = max(reference for reference, _ in moves)
    return [most, *(variant + most - reference for reference, variant in moves)]


def _later(response: Response, count: int) -> Response:
    """Return the response with `count` unknown tokens in front."""
    first, rows = response.generated_from, response.rows
    return replace(
        response,
        tokens=(*[UNKNOWN_TOKEN] * count, *response.tokens),
        rows=replace(rows, positions=rows.positions + count),
        generated_from=None if first is None else first + count,
        start_known=True,
    )


def _insert(prompt: int, response: Response, place: int, count: int) -> Response:
    """Return the response with `count` unknown tokens before its token at `place`, and its rows from there on moved."""
    tokens, rows = sequence(response), response.rows
    shifted_response = replace(
        response,
        tokens=(*tokens[:place], *[UNKNOWN_TOKEN] * count, *tokens[place:]),
        rows=replace(rows, positions=rows.positions + count * (rows.positions >= place - 1)),
    )
    lacks = f"No rows of {plural(count, 'token')} before its first at prompt {prompt}"
    return warn(shifted_response, f"{lacks}; its rows are aligned by their tokens.")


def _starts(reference: Response, variant: Response) -> tuple[int, int]:
    """Return offsets to each side's positions so that both count from the same place.

    A response without a start begins at the other's first generated position. Responses to prompts of
    two lengths, of which only generated rows were sent, meet at the start of generation.
    """
    sides, ends = (reference, variant), (reference.generated_from, variant.generated_from)
    if reference.start_known != variant.start_known:
        start = ends[0] if reference.start_known else ends[1]
        if start is None:
            raise DumpError(
                "one side sends rows of a prompt only and the other of generated tokens only; expected positions that"
                " both have."
            )
        return (0, start) if reference.start_known else (start, 0)
    if not reference.start_known or ends[0] is None or ends[1] is None or None not in map(prompt_tokens, sides):
        return 0, 0
    if any(len(side.rows) and side.rows.positions[0] < (side.generated_from or 0) for side in sides):
        return 0, 0
    later = max(ends[0], ends[1])
    return later - ends[0], later - ends[1]


def _gap(reference: Response, variant: Response) -> tuple[int, int, int] | None:
    """Find which side (0 or 1) lacks how many of the first rows, and before which token; None if neither does: the
    sides have no token in common as they are, and many with one moved.
    """
    sides, tokens = (reference, variant), (sequence(reference), sequence(variant))
    place = parting_of(*tokens)
    if place is None:
        return None
    starts = {None if side.generated_from is None else side.generated_from + 1 for side in sides}
    has_agreed = any(UNKNOWN_TOKEN not in pair for pair in zip(tokens[0][:place], tokens[1][:place], strict=False))
    in_prompt = place not in starts
    is_checked = None not in [prompt_tokens(side) for side in sides]
    if len(starts) > 1 or (in_prompt and (has_agreed or is_checked)):
        return None
    for count in range(1, _MOST_MISSING + 1):
        for side in (0, 1):
            shorter, longer = tokens[side][place:], tokens[1 - side][place + count :]
            pairs = [pair for pair in zip(shorter, longer, strict=False) if UNKNOWN_TOKEN not in pair][:8]
            is_same = len(pairs) >= _LEAST_EQUAL and all(one == other for one, other in pairs)
            if is_same and (in_prompt or not _begins_with_its_rows(sides[side])):
                return side, count, place
    return None


def _begins_with_its_rows(response: Response) -> bool:
    """Return whether the text of a response begins with the token of its first generated row."""
    rows = response.rows
    first = next((at for at, place in enumerate(rows.positions) if place >= (response.generated_from or 0)), None)
    token = "" if first is None else response.texts.get(int(rows.targets[first]), "").lstrip(" Ġ▁")
    return bool(response.text and token) and response.text.lstrip().startswith(token)
