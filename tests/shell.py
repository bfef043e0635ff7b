"""A command as a shell reads it."""

from __future__ import annotations

import subprocess


def words_of(command: str) -> list[str]:
    """Words that bash makes of a command, without running it, in the locale that knows ASCII alone."""
    done = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {command}"], capture_output=True, check=True, env={"LC_ALL": "C"}
    )
    return done.stdout.decode().split("\0")[:-1]
