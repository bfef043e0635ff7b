"""Payload files as sparse sides: one file with repeated answers, or a file a side."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from ...errors import UsageError
from ...text import joined, shown
from ..file.bounds import MAX_SIDES
from .export import is_line, sides_of_lines
from .pairing import prompt_tokens, sides_of
from .payloads.bounded_json import documents
from .payloads.recognise import is_payload, read_responses
from .records import SparseResponse, SparseSide


def are_payloads(paths: Sequence[Path]) -> bool:
    """Return whether these files hold responses of engines. UsageError where some do and others do not; False where one
    is not there, for which others have their own sentence.
    """
    if not all(path.is_file() for path in paths):
        return False
    found = [is_payload(path) for path in paths]
    if any(found) and not all(found):
        names = joined([f"'{shown(path.name)}'" for path in paths])
        raise UsageError(f"{names}: one holds responses of an engine and another does not; expected files of one kind.")
    return all(found) and bool(found)


def read_sides(paths: Sequence[Path]) -> tuple[SparseSide, ...]:
    """The sides in the files, the reference first: those of one exported run, the repeated answers of one file, or each
    file as a side of its name. Responses of a second file are put beside those of the first by their prompts' token
    ids, where known.

    DumpError for what is no response or cannot be put beside another.
    """
    if len(paths) == 1 and any(is_line(first) for _, first in islice(documents(paths[0]), 1)):
        return sides_of_lines(documents(paths[0]))
    if len(paths) == 1:
        return sides_of(read_responses(paths[0]), shown(paths[0].name))
    if len(paths) > MAX_SIDES:
        raise UsageError(f"{len(paths):,} files; a run has at most {MAX_SIDES} sides.")
    read = [read_responses(path) for path in paths]
    sides = [
        SparseSide(name, tuple(_in_order_of(read[0], responses)))
        for name, responses in zip(_names(paths), read, strict=True)
    ]
    return tuple(sides)


def _names(paths: Sequence[Path]) -> list[str]:
    """The files' names without their suffix; with it, or the folder, where two are alike."""
    for names in ([path.stem for path in paths], [path.name for path in paths]):
        if len(set(names)) == len(names):
            return [shown(name) for name in names]
    return [shown(f"{number + 1} {path.name}") for number, path in enumerate(paths)]


def _in_order_of(first: Sequence[SparseResponse], responses: Sequence[SparseResponse]) -> Sequence[SparseResponse]:
    """The responses in the order of the first side's prompts, as they are where prompts are not known."""
    prompts = [[prompt_tokens(response) for response in side] for side in (first, responses)]
    if any(None in side or len(set(side)) < len(side) for side in prompts) or set(prompts[0]) != set(prompts[1]):
        return responses
    by_prompt = dict(zip(prompts[1], responses, strict=True))
    return [by_prompt[prompt] for prompt in prompts[0]]
