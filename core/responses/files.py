"""Payload files as sides: one file with repeated answers, or one file per side."""

from collections.abc import Sequence
from pathlib import Path

from ..errors import DumpError
from ..text import clean, plural
from .alignment import prompt_tokens, warn
from .bounded_json import is_payload
from .formats import read_responses
from .records import Response, ResponseSide
from .values import are_values


def are_payloads(paths: Sequence[Path]) -> bool:
    """Return whether these files, or one of them, hold responses of engines; False if one is not
    there, or if they hold values, which are read as dumps.
    """
    if not all(path.is_file() for path in paths):
        return False
    payloads = [path for path in paths if is_payload(path)]
    return bool(payloads) and not all(map(are_values, payloads))


def read_sides(paths: Sequence[Path]) -> tuple[ResponseSide, ...]:
    """Return the sides in the files, reference first: an exported run, repeated answers of one
    file, or one side per file. Responses of several files are joined by custom_id, request or token
    ids, if known.

    DumpError for what is no response or cannot be compared.
    """
    sides = [read_responses(path) for path in paths]
    if len(paths) == 1:
        return sides_of(sides[0], clean(paths[0].name))
    named = zip(side_names(paths), _in_one_order(sides), strict=True)
    return tuple(ResponseSide(name, tuple(side)) for name, side in named)


def sides_of(responses: Sequence[Response], source: str) -> tuple[ResponseSide, ...]:
    """Return the sides in one file of repeated answers to the same prompts, first answers first.

    DumpError unless every prompt has been answered equally often, twice or more.
    """
    groups: dict[object, list[Response]] = {}
    for response in responses:
        length = response.generated_from if response.start_known else None
        key = prompt_tokens(response) or response.prompt_key or length
        groups.setdefault(key, []).append(response)
    counts = {len(group) for group in groups.values()}
    if len(counts) != 1 or counts == {1}:
        raise DumpError(
            f"{source}: holds {plural(len(responses), 'answer')} to"
            f" {plural(len(groups), 'prompt')}; expected each prompt answered equally often, at"
            " least twice. Give a second file for the other side.",
        )
    sides = zip(*groups.values(), strict=True)
    return tuple(ResponseSide(f"answer {number}", side) for number, side in enumerate(sides, 1))


def side_names(paths: Sequence[Path]) -> list[str]:
    """Names of sides: the files' names without their suffix; numbered and with it if two are
    alike.
    """
    names = [clean(path.stem) for path in paths]
    if len(set(names)) == len(names):
        return names
    return [clean(f"{number} {path.name}") for number, path in enumerate(paths, 1)]


def _in_one_order(sides: Sequence[list[Response]]) -> Sequence[Sequence[Response]]:
    """Return the responses of each side in one order: by the names of their prompts, else by token
    ids, else unchanged. Prompts that not all sides answer are left out, with a warning.
    """
    for key_of in (lambda response: response.prompt_key or None, prompt_tokens):
        # a key that is there twice leaves fewer keys than responses
        by_key = [{key_of(response): response for response in side} for side in sides]
        is_unique = [*map(len, by_key)] == [*map(len, sides)]
        common = dict.fromkeys(key for key in by_key[0] if all(key in side for side in by_key))
        if not common or not is_unique or any(None in side for side in by_key):
            continue
        ordered = [[side[key] for key in common] for side in by_key]
        for side, responses in zip(by_key, ordered, strict=True):
            if more := [key for key in side if key not in common]:
                example = f" ({clean(more[0], 60)})" if isinstance(more[0], str) else ""
                responses[0] = warn(
                    responses[0],
                    f"{len(more)} of its {len(side)} prompts have no answer on another"
                    f" side{example}; left out.",
                )
        return ordered
    if all(response.prompt_key for side in sides for response in side):
        warning = (
            "Its custom_ids or prompts are not those of the other side; answers are joined in their"
            " order."
        )
        return [[warn(side[0], warning), *side[1:]] for side in sides]
    return sides
