"""How a stored capture is judged, or made again with more beside it: the command a person types, and the arguments by
which a program does it from the file alone.

A run file may come from anybody. A person reads a command before running it; a program takes from it only options that
name paths and dtypes, and the token ids that the run itself holds, so it reads no file that a stranger's command names
and runs no code of a model.
"""

from __future__ import annotations

import json
import shlex

from ..command_name import COMMAND, INSTALLED, OF_A_CLONE
from .file.records import Generation, Provenance
from .reader import RunReader

_VALUED = ("--reference", "--variant", "--sweep", "--repeat", "--dtype", "--device", "--seed")
_FLAGS = ("--kv", "--no-kv")


def typed(command: str) -> str | None:
    """The stored command made one that judges; None where it cannot be."""
    parts = _parts(command)
    if parts is None:
        return None
    rest = [part for part in parts[1:] if part not in ("--judge", "--dry-run")]
    if parts[0] in ("capture", "judge"):
        return f"{COMMAND} {shlex.join(['judge', *rest])}"
    return f"{COMMAND} {shlex.join(['generate', *rest, '--judge'])}" if parts[0] == "generate" else None


def captured_with(command: str, option: str) -> str | None:
    """The stored command made one that captures the same with one more option; None where it captures nothing by
    itself, or has it.
    """
    parts = _parts(command)
    if parts is None or parts[0] not in ("capture", "judge") or option in parts:
        return None
    judged = ["--judge"] if parts[0] == "judge" else []
    kept = [part for part in parts[1:] if part not in ("--dry-run", option.replace("--", "--no-", 1))]
    return f"{COMMAND} {shlex.join(['capture', *kept, *judged, option])}"


def asks_for(command: str, option: str) -> bool:
    """Does the stored command have this option? A prompt that mentions it does not count."""
    return option in (_parts(command) or [])


def how_to_have(option: str, about: Provenance) -> str:
    """`capture it with --layers: COMMAND`, the command that of the run itself where it has one."""
    command = captured_with(about.command, option) if about.kind == "capture" else None
    return f"capture it with {option}" + (f": {command}" if command is not None else " from its model")


def _parts(command: str) -> list[str] | None:
    """The words that follow `python -m core` or `ulpscope`."""
    try:
        parts = shlex.split(command)
    except ValueError:
        return None
    starts = (start.split() for start in (OF_A_CLONE, INSTALLED))
    return next((parts[len(start) :] for start in starts if parts[: len(start)] == start and parts[len(start) :]), None)


def arguments(run: RunReader, name: str) -> list[str] | None:
    """Of the command line, but for `--prompts` and the file of `prompts`; None where the run does not hold what it
    takes.
    """
    about = run.header.provenance
    if about.kind != "capture" or not about.model or about.model.startswith("-") or prompts(run) is None:
        return None
    parts = _parts(about.command) or []
    is_repeatable = parts[:1] in (["capture"], ["judge"], ["generate"])
    options = _chosen(parts) if is_repeatable else []
    if not is_repeatable:
        reference, *variants = (side.path for side in run.sides)
        options = [
            f"--reference={reference}",
            *(f"--variant={path}" for path in variants),
            f"--dtype={run.header.compute_dtype}",
        ]
    asked = _continued(run)
    start = ["generate", f"--tokens={asked}"] if asked else ["capture"]
    revision = [f"--revision={about.revision}"] if about.revision and not about.revision.startswith("sha256:") else []
    return [*start, "--judge", f"--model={about.model}", *revision, *options, f"--name={name}"]


def _chosen(parts: list[str]) -> list[str]:
    """Options of a command that say what is computed, each with its value in one argument; nothing else of it."""
    found: list[str] = []
    for place, part in enumerate(parts):
        option, is_joined, value = part.partition("=")
        if part in _FLAGS:
            found.append(part)
        elif option in _VALUED and is_joined:
            found.append(f"{option}={value}")
        elif part in _VALUED and place + 1 < len(parts):
            found.append(f"{part}={parts[place + 1]}")
    return found


def prompts(run: RunReader) -> bytes | None:
    """The run's token ids as a file of prompts (.jsonl); of prompts that the sides continued, what was given."""
    asked = _continued(run)
    rows = []
    for index, prompt in enumerate(run.header.prompts):
        if not prompt.token_ids:
            return None
        given = run.generations[index].given_positions if asked else prompt.positions
        rows.append(json.dumps({"token_ids": list(prompt.token_ids[:given])}) + "\n")
    return "".join(rows).encode()


def _continued(run: RunReader) -> int:
    """By how many tokens every prompt was continued; 0 where they were scored."""
    made: dict[int, Generation] = run.generations
    asked = {one.asked for one in made.values()}
    return asked.pop() if len(made) == len(run.header.prompts) and len(asked) == 1 else 0
