"""Prompts from files: one per line, as text or as JSON with a text, token ids or the messages of a
chat.
"""

from collections.abc import Sequence
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
    prompts = []
    number = 0
    try:
        # only a line feed ends a line: prompts contain other separators
        with path.open(encoding="utf-8-sig", newline="\n") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    text = line.removesuffix("\n").removesuffix("\r")
                    prompts.append(read(f"{path}:{number}", text))
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path}:{number + 1}: is not UTF-8 text from here on ({error.reason}).",
        ) from error
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror or error}).") from error
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
    if not prompts:
        raise UsageError("no prompts; use --prompt TEXT, --prompt-file FILE or --prompts FILE.")
    has_system = request.system is not None
    has_chats = False
    for prompt in prompts:
        messages = prompt.messages or ()
        has_chats |= bool(messages) or (request.is_chat and prompt.text is not None)
        if has_system and any(message.role == "system" for message in messages):
            raise UsageError(f"{prompt.source}: has its own system message; leave --system out.")
    if has_system and not has_chats:
        raise UsageError("--system is part of a chat; add --chat, or leave it out.")
    if request.is_chat and not has_chats:
        raise UsageError("--chat is for texts, and all prompts are token ids; leave it out.")
    return prompts


def _of_json(source: str, line: str) -> GivenPrompt:
    try:
        entry = msgspec.json.decode(line, type=_Line)
    except msgspec.ValidationError as error:
        raise UsageError(f"{source}: {error}.") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"{source}: is not JSON ({error}).") from error
    forms = entry.prompt, entry.text, entry.token_ids, entry.messages
    if forms.count(None) != 3:
        raise UsageError(
            f"{source}: expected an object with exactly one of prompt, text, token_ids, messages.",
        )
    text = entry.prompt if entry.text is None else entry.text
    return GivenPrompt(source, text, entry.token_ids, entry.messages, entry.text_pair)
