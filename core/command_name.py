"""The command's name, and its words as a shell reads them."""

import shlex
from collections.abc import Iterable

from .errors import UsageError
from .text import clean, is_seen

COMMAND = "ulpscope"
# id of a run that is only compared, as its commands print it
UNSTORED = "RUN"
_IN_DOLLAR_QUOTES = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\t": "\\t", "\r": "\\r", "!": "\\041"}


def shell_command(words: Iterable[str]) -> str:
    """Return `ulpscope` and words for a POSIX shell on one line, unseen characters as $'...'.

    UsageError for a NUL.
    """
    return " ".join([COMMAND, *map(_shell_word, words)])


def _shell_word(word: str) -> str:
    if is_seen(word):
        return shlex.quote(word)
    if "\0" in word:
        raise UsageError(f"'{clean(word, 60)}' holds a NUL, which no command can be given.")
    quoted = ""
    for character in word:
        escaped = character
        if not is_seen(character):
            # Bytes, three octal digits each: one reading in every shell and locale, before any
            # text.
            raw = character.encode("utf-8", "surrogateescape")
            escaped = "".join(f"\\{byte:03o}" for byte in raw)
        quoted += _IN_DOLLAR_QUOTES.get(character, escaped)
    return f"$'{quoted}'"
