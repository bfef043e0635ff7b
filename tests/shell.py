"""A command as a shell reads it, and ours on a shell's path."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def words_of(command: str) -> list[str]:
    """Words that bash makes of a command, without running it, in the locale that knows ASCII alone."""
    done = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {command}"], capture_output=True, check=True, env={"LC_ALL": "C"}
    )
    return done.stdout.decode().split("\0")[:-1]


def command_in(folder: Path) -> None:
    """Put `ulpscope` into a folder: this clone's, by the Python of these tests."""
    folder.mkdir(exist_ok=True)
    path = folder / "ulpscope"
    path.write_text(
        f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(ROOT))} exec {shlex.quote(sys.executable)} -P -m core "$@"\n'
    )
    path.chmod(0o755)
