"""The name of this package and of its command line: `core` and `python -m core` in a clone, `ulpscope` and `ulpscope`
where it is installed. Sentences that name a command to type take it from here, and its words as a shell reads them.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable

from .errors import UsageError
from .text import is_seen, shown

OF_A_CLONE, INSTALLED = "python -m core", "ulpscope"  # a command that a run stores begins with either
COMMAND = INSTALLED if __name__.partition(".")[0] == "ulpscope" else OF_A_CLONE
CALLED = "ULPSCOPE_CALLED"  # a variable: how the launcher at the top of a clone was typed
_IN_DOLLAR_QUOTES = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\t": "\\t", "\r": "\\r", "!": "\\041"}


def called() -> str:
    """Return the name by which a person calls this command line: the launcher as it was typed, else COMMAND."""
    return os.environ.get(CALLED) or COMMAND


def shell_command(words: Iterable[str]) -> str:
    """Command for a POSIX shell, on one line, in which every character can be seen: a word with others stands in
    $'...', as bash, zsh and ksh read it. UsageError where a word holds a NUL, which none can be given.
    """
    return " ".join(map(_shell_word, words))


def _shell_word(word: str) -> str:
    if is_seen(word):
        return shlex.quote(word)
    if "\0" in word:
        raise UsageError(f"'{shown(word, 60)}' holds a NUL, which no command can be given.")
    # Bytes, three octal digits each: one reading in every shell and locale, whatever stands behind.
    return "$'" + "".join(_IN_DOLLAR_QUOTES.get(c) or (c if is_seen(c) else _octal(c)) for c in word) + "'"


def _octal(character: str) -> str:
    return "".join(f"\\{byte:03o}" for byte in character.encode("utf-8", "surrogateescape"))
