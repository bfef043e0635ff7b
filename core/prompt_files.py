"""Prompts from files: one a line as text, or one a line as JSON with a text, token ids, or the messages of a chat."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .capture_request import CaptureRequest
from .errors import UsageError
from .text import shown

_FORMS = {
    "prompt": "a string",
    "text": "a string",
    "token_ids": "a list of whole numbers",
    "messages": "a list of objects with 'role' and 'content', both strings",
}


@dataclass(frozen=True)
class Message:
    """One turn of a chat, as chat templates take it."""

    role: str
    content: str


@dataclass(frozen=True)
class GivenPrompt:
    """One prompt as it was given, in exactly one of three forms. where: the option or the file and line it came
    from.
    """

    where: str
    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    messages: tuple[Message, ...] | None = None


def read_whole(path: Path) -> GivenPrompt:
    """A text file that is one prompt."""
    try:
        return GivenPrompt(str(path), text=path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read as UTF-8 text ({error}).") from error


def read_prompts(path: Path) -> list[GivenPrompt]:
    """Every prompt of a file: JSON lines where it is called .jsonl, else a prompt a line; blank lines are skipped."""
    read = _of_json if path.suffix.lower() == ".jsonl" else GivenPrompt
    found = [read(f"{path}:{number}", line) for number, line in _lines(path) if line.strip()]
    if not found:
        raise UsageError(f"{path}: holds no prompt; expected one a line.")
    return found


def given_prompts(texts: Sequence[str], files: Sequence[str], lists: Sequence[str]) -> list[GivenPrompt]:
    """Prompts as options give them: texts, files that are one prompt each, files of many."""
    found = [GivenPrompt(f"prompt {number}", text=text) for number, text in enumerate(texts, start=1)]
    found += [read_whole(Path(path)) for path in files]
    return found + [prompt for path in lists for prompt in read_prompts(Path(path))]


def prompts_of(request: CaptureRequest) -> list[GivenPrompt]:
    """Prompts of a capture, in the order of its fields; UsageError before anything slow is begun."""
    found = given_prompts(request.prompts, request.prompt_files, request.prompt_lists)
    system, is_chat = request.system, request.is_chat
    if not found:
        raise UsageError("no prompt was given; use --prompt TEXT, --prompt-file FILE or --prompts FILE.")
    chats = [prompt for prompt in found if prompt.messages is not None or (is_chat and prompt.text is not None)]
    if system is not None and not chats:
        raise UsageError("--system is part of a chat; add --chat, or leave it out.")
    if is_chat and not chats:
        raise UsageError("--chat is for texts, and every prompt is given as token ids; leave it out.")
    for prompt in chats:
        if system is not None and prompt.messages is not None and any(m.role == "system" for m in prompt.messages):
            raise UsageError(f"{prompt.where}: has a system message of its own; leave --system out.")
    return found


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """(line number from 1, the line without its end). Only a line feed ends one: a prompt may hold any other
    separator.
    """
    number = 0
    try:
        with path.open(encoding="utf-8-sig", newline="\n") as file:
            for number, line in enumerate(file, start=1):
                yield number, line.removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path}:{number + 1}: is not UTF-8 text from here on ({error.reason}); save it as UTF-8."
        ) from error
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror or error}).") from error


def _of_json(where: str, line: str) -> GivenPrompt:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: is not JSON ({error}).") from error
    keys = [key for key in _FORMS if key in entry] if isinstance(entry, dict) else []
    if len(keys) != 1:
        raise UsageError(f"{where}: expected an object with exactly one of {', '.join(_FORMS)}.")
    key, value = keys[0], entry[keys[0]]
    if key in ("prompt", "text") and isinstance(value, str):
        return GivenPrompt(where, text=value)
    if key == "token_ids" and isinstance(value, list) and all(type(token) is int for token in value):
        return GivenPrompt(where, token_ids=tuple(value))
    if key == "messages" and isinstance(value, list) and value and all(map(_is_message, value)):
        return GivenPrompt(where, messages=tuple(Message(one["role"], one["content"]) for one in value))
    raise UsageError(f"{where}: '{key}' is {shown(json.dumps(value))}; expected {_FORMS[key]}.")


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str) and isinstance(value.get("content"), str)
