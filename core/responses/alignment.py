"""Sides in one form, so that their rows can be compared: token ids and positions that all of them
share.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..errors import DumpError
from ..text import plural, series
from .records import UNKNOWN_TOKEN, Response, ResponseSide


def align(sides: Sequence[ResponseSide]) -> tuple[ResponseSide, ...]:
    """Return the sides with token ids and positions that all share, those of the reference first.

    What was moved or left out becomes a warning; sides that are aligned already stay as they are.
    DumpError if they cannot be compared.
    """
    first = len(sides[0].responses)
    for side in sides[1:]:
        if len(side.responses) != first:
            raise DumpError(
                f"'{sides[0].name}' and '{side.name}' hold {first} and {len(side.responses)}"
                " responses; expected one per prompt on both sides.",
            )
    if any(side.keys == "text" for side in sides):
        # a number for each text is its token id
        numbers: dict[str, int] = {}
        for side in sides:
            for response in side.responses:
                if len(response.rows.token_ids) and not response.texts:
                    raise DumpError(
                        f"side '{side.name}' has no texts of tokens, and the other side has no ids;"
                        " expected token ids on both sides, or texts on both.",
                    )
                for text in response.texts.values():
                    numbers.setdefault(text, len(numbers))
        sides = [
            replace(side, responses=tuple(_renumber(each, numbers) for each in side.responses))
            for side in sides
        ]
    by_prompt = zip(*(side.responses for side in sides), strict=True)
    in_place = [_in_place(prompt, responses) for prompt, responses in enumerate(by_prompt)]
    by_side = zip(*in_place, strict=True)
    return tuple(replace(side, responses=own) for side, own in zip(sides, by_side, strict=True))


def prompt_tokens(response: Response) -> tuple[int, ...] | None:
    """Token ids of the prompt, None if not all are known."""
    end = len(response.tokens) if response.generated_from is None else response.generated_from + 1
    tokens = response.tokens[:end] if response.start_known else ()
    return None if not tokens or UNKNOWN_TOKEN in tokens else tokens


def extra_first_token(one: Sequence[int], other: Sequence[int]) -> tuple[int, bool] | None:
    """(side that has one token more in front, whether it stands there twice) of two prompts, None
    if they part otherwise.
    """
    for side, longer, shorter in ((1, other, one), (0, one, other)):
        is_known = UNKNOWN_TOKEN not in longer
        if is_known and len(longer) > 2 and longer[1:] == shorter:
            return side, longer[0] == longer[1]
    return None


def sequence(response: Response) -> tuple[int, ...]:
    """Return the tokens of a response; unknown ones are filled in from the rows before them."""
    filled = list(response.tokens)
    rows = response.rows
    for place, token in zip((rows.positions + 1).tolist(), rows.targets.tolist(), strict=True):
        filled.extend([UNKNOWN_TOKEN] * (place + 1 - len(filled)))
        if filled[place] == UNKNOWN_TOKEN:
            filled[place] = token
    return tuple(filled)


def warn(response: Response, warning: str) -> Response:
    """Return the response with one more warning."""
    return replace(response, warnings=tuple(dict.fromkeys((*response.warnings, warning))))


def _renumber(response: Response, numbers: Mapping[str, int]) -> Response:
    """Return a response by the numbers of its texts. Rows with two tokens that print alike are left
    out.
    """
    new = {token: numbers[text] for token, text in response.texts.items()}
    renumber = np.vectorize(lambda token: new.get(token, UNKNOWN_TOKEN), otypes=[np.int64])
    rows = response.rows
    ids = renumber(rows.token_ids)
    rows = replace(rows, token_ids=ids, targets=renumber(rows.targets))
    usable = ~rows.has_repeats
    usable[rows.row_of[ids < 0]] = False
    renumbered = replace(
        response,
        keys="text",
        tokens=tuple(renumber(response.tokens).tolist()),
        rows=replace(rows.without_values(~usable), missing=rows.missing),
        texts=dict(sorted((new[token], text) for token, text in response.texts.items())),
    )
    if usable.all():
        return renumbered
    return warn(
        renumbered,
        f"{plural(int((~usable).sum()), 'row')} left out: two of the tokens print alike, or one has"
        " no text.",
    )


def _in_place(prompt: int, responses: Sequence[Response]) -> Sequence[Response]:
    """Return the responses to one prompt with positions that count from the same place."""
    offsets = [0, *(_offset(responses[0], variant) for variant in responses[1:])]
    moves = [offset - min(offsets) for offset in offsets]
    if not any(moves):
        return responses
    moved = []
    for response, count in zip(responses, moves, strict=True):
        first = response.generated_from
        rows = response.rows
        later = replace(
            response,
            # unknown tokens stand in front
            tokens=(*[UNKNOWN_TOKEN] * count, *response.tokens),
            rows=replace(rows, positions=rows.positions + count),
            generated_from=None if first is None else first + count,
            start_known=True,
        )
        moved.append(later if count else response)
    if all(one.start_known for one in responses):
        lengths = dict.fromkeys(f"{(one.generated_from or 0) + 1:,}" for one in responses)
        moved[-1] = warn(
            moved[-1],
            f"Prompt {prompt} has {series([*lengths])} tokens on the two sides: its inputs differ,"
            " and rows are aligned at the first generated token.",
        )
    return moved


def _offset(reference: Response, variant: Response) -> int:
    """Return how much larger the variant's positions have to be, so that both count from the same
    place.

    A response without a start begins at the other's first generated position. Responses to prompts
    of two lengths, of which only generated rows were sent, meet at the start of generation.
    """
    first = reference.generated_from
    other_first = variant.generated_from
    if reference.start_known != variant.start_known:
        start = first if reference.start_known else other_first
        if start is None:
            raise DumpError(
                "one side sends rows of a prompt only and the other of generated tokens only;"
                " expected positions that both have.",
            )
        return start if reference.start_known else -start
    if first is None or other_first is None or not reference.start_known:
        return 0
    of_prompt = reference.rows.positions.min(initial=first) < first
    of_other_prompt = variant.rows.positions.min(initial=other_first) < other_first
    are_known = None not in map(prompt_tokens, (reference, variant))
    return 0 if of_prompt or of_other_prompt or are_known else first - other_first
