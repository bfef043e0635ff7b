"""Prompts from files: one per line, as text or as JSON with a text, token ids or the messages of a
chat.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from .capture_request import CaptureRequest
from .errors import UsageError


@dataclass(frozen=True)
class Message:
    """One turn of a chat, as chat templates take it."""

    role: str
    content: str


@dataclass(frozen=True)
class GivenPrompt:
    """One prompt, in exactly one of three forms. source: the option, or the file and line;
    text_pair: the second text of a pair for a reranker.
    """

    source: str
    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    messages: tuple[Message, ...] | None = None
    text_pair: str | None = None


@dataclass(frozen=True)
class _Line:
    """A line of a .jsonl file."""

    prompt: str | None = None
    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    messages: Annotated[tuple[Message, ...], msgspec.Meta(min_length=1)] | None = None
    text_pair: str | None = None


def read_whole(path: Path) -> GivenPrompt:
    """Read a text file that is one prompt."""
    try:
        return GivenPrompt(str(path), text=path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read as UTF-8 text ({error}).") from error


def read_prompts(path: Path) -> list[GivenPrompt]:
    """Read every prompt of a file: JSON lines if its name ends in .jsonl, else one per line, blank
    lines skipped.
    """
    read = _of_json if path.suffix.lower() == ".jsonl" else GivenPrompt
    prompts = [read(f"{path}:{number}", line) for number, line in _lines(path) if line.strip()]
    if not prompts:
        raise UsageError(f"{path}: no prompts; expected one per line.")
    return prompts


def collect_prompts(
    texts: Sequence[str],
    files: Sequence[str],
    lists: Sequence[str],
) -> list[GivenPrompt]:
    """Return the prompts of the options: texts, files of one prompt each, files of many."""
    prompts = [
        GivenPrompt(f"prompt {number}", text=text) for number, text in enumerate(texts, start=1)
    ]
    prompts += [read_whole(Path(path)) for path in files]
    return prompts + [prompt for path in lists for prompt in read_prompts(Path(path))]


def prompts_of(request: CaptureRequest) -> list[GivenPrompt]:
    """Return the prompts of a capture, in the order of its fields.

    UsageError before any slow work.
    """
    prompts = collect_prompts(request.prompts, request.prompt_files, request.prompt_lists)
    system = request.system
    is_chat = request.is_chat
    if not prompts:
        raise UsageError("no prompts; use --prompt TEXT, --prompt-file FILE or --prompts FILE.")
    chats = [
        prompt
        for prompt in prompts
        if prompt.messages is not None or (is_chat and prompt.text is not None)
    ]
    if system is not None and not chats:
        raise UsageError("--system is part of a chat; add --chat, or leave it out.")
    if is_chat and not chats:
        raise UsageError("--chat is for texts, and all prompts are token ids; leave it out.")
    for prompt in chats:
        if (
            system is not None
            and prompt.messages is not None
            and any(m.role == "system" for m in prompt.messages)
        ):
            raise UsageError(f"{prompt.source}: has its own system message; leave --system out.")
    return prompts


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (number from 1, line without its end).

    Only a line feed ends one: prompts contain other separators.
    """
    number = 0
    try:
        with path.open(encoding="utf-8-sig", newline="\n") as file:
            for number, line in enumerate(file, start=1):
                yield number, line.removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path}:{number + 1}: is not UTF-8 text from here on ({error.reason}).",
        ) from error
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror or error}).") from error


def _of_json(source: str, line: str) -> GivenPrompt:
    try:
        entry = msgspec.json.decode(line, type=_Line)
    except (msgspec.DecodeError, RecursionError) as error:
        reason = error if isinstance(error, msgspec.ValidationError) else f"is not JSON ({error})"
        raise UsageError(f"{source}: {reason}.") from error
    forms = [
        name
        for name in ("prompt", "text", "token_ids", "messages")
        if getattr(entry, name) is not None
    ]
    if len(forms) != 1:
        raise UsageError(
            f"{source}: expected an object with exactly one of prompt, text, token_ids, messages.",
        )
    text = entry.prompt if entry.text is None else entry.text
    return GivenPrompt(source, text, entry.token_ids, entry.messages, entry.text_pair)
