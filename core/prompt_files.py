"""Prompts from files: one a line as text, or one a line as JSON with a text, token ids, or the messages of a chat."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .capture_request import CaptureRequest
from .errors import UsageError

_KEYS = ("prompt", "text", "token_ids", "messages")
_EXPECTED = (
    'expected an object with "prompt" or "text" (a string), "token_ids" (a list of numbers) or "messages" (a chat)'
)


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

    def __post_init__(self) -> None:
        if sum(form is not None for form in (self.text, self.token_ids, self.messages)) != 1:
            raise UsageError(f"{self.where}: a prompt is one of a text, token ids and the messages of a chat.")


def read_whole(path: Path) -> GivenPrompt:
    """A text file that is one prompt."""
    try:
        return GivenPrompt(str(path), text=path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read as UTF-8 text ({error}).") from error


def read_prompts(path: Path) -> list[GivenPrompt]:
    """Every prompt of a file: JSON lines where it is called .jsonl, else a prompt a line; blank lines are skipped."""
    read = _of_json if path.suffix.lower() == ".jsonl" else _of_text
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


def _of_text(where: str, line: str) -> GivenPrompt:
    return GivenPrompt(where, text=line)


def _of_json(where: str, line: str) -> GivenPrompt:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        reason = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise UsageError(f"{where}: is not JSON ({reason}); {_EXPECTED}.") from error
    if not isinstance(entry, dict):
        raise UsageError(f"{where}: is {_kind(entry)}; {_EXPECTED}.")
    given = [key for key in _KEYS if key in entry]
    if not given:
        raise UsageError(f"{where}: has none of them; {_EXPECTED}.")
    if len(given) > 1:
        raise UsageError(f"{where}: has both '{given[0]}' and '{given[1]}', which may differ; keep one of them.")
    key, value = given[0], entry[given[0]]
    if key == "token_ids":
        return GivenPrompt(where, token_ids=_token_ids(where, value))
    if key == "messages":
        return GivenPrompt(where, messages=_messages(where, value))
    if not isinstance(value, str):
        raise UsageError(f"{where}: '{key}' is {_kind(value)}; expected a string.")
    return GivenPrompt(where, text=value)


def _token_ids(where: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise UsageError(f"{where}: 'token_ids' is {_kind(value)}; expected a list of whole numbers.")
    for position, token in enumerate(value):
        if not isinstance(token, int) or isinstance(token, bool):
            raise UsageError(
                f"{where}: 'token_ids' has {_kind(token)} at position {position}; expected a whole number."
            )
    return tuple(value)


def _messages(where: str, value: Any) -> tuple[Message, ...]:
    if not isinstance(value, list) or not value:
        found = "an empty list" if value == [] else _kind(value)
        raise UsageError(f"{where}: 'messages' is {found}; expected a list of objects with 'role' and 'content'.")
    found_messages = []
    for number, message in enumerate(value, start=1):
        if not isinstance(message, dict):
            raise UsageError(
                f"{where}: message {number} is {_kind(message)}; expected an object with 'role' and 'content'."
            )
        for key in ("role", "content"):
            if not isinstance(message.get(key), str):
                found = _kind(message[key]) if key in message else "missing"
                raise UsageError(f"{where}: '{key}' of message {number} is {found}; expected a string.")
        found_messages.append(Message(message["role"], message["content"]))
    return tuple(found_messages)


def _kind(value: Any) -> str:
    """A JSON value in words."""
    names = {
        dict: "an object",
        list: "a list",
        str: "a string",
        bool: "true or false",
        int: "a number",
        float: "a number",
    }
    return names.get(type(value), "null")
