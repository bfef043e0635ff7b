"""Markdown of texts that come from somebody's file: in a code span or escaped, so that they stay text wherever they are
pasted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _one_line(text: str) -> str:
    """Line ends would end a table's row, other control characters are invisible to whoever pastes them, halves of pairs
    are no UTF-8.
    """
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]+", " ", text).strip()


def code(text: str) -> str:
    """A code span, fenced with more backticks than the text has in a row; a pipe would end the cell of a table even
    there.
    """
    inner = _one_line(text).replace("|", "\\|") or " "
    fence = "`" * (max((len(run) for run in re.findall("`+", inner)), default=0) + 1)
    pad = " " if inner.startswith("`") or inner.endswith("`") else ""
    return f"{fence}{pad}{inner}{pad}{fence}"


def plain(text: str) -> str:
    """Sentences stay readable where they are not rendered: only what would become markup, a link or a mention is
    escaped.
    """
    shown = re.sub(r"([\\`*\[\]|<>#~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))", r"\\\1", _one_line(text))
    return shown.replace("@", "@\u200b").replace("://", ":\u200b//")
