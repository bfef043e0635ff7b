"""Markdown of texts that come from somebody's file: in a code span or escaped, so that they stay text wherever they are
pasted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...text import printable


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def code(text: str) -> str:
    """A code span, fenced with more backticks than the text has in a row; a pipe would end the cell of a table even
    there.
    """
    inner = printable(text).strip().replace("|", "\\|") or " "
    fence = "`" * (max((len(run) for run in re.findall("`+", inner)), default=0) + 1)
    pad = " " if inner.startswith("`") or inner.endswith("`") else ""
    return f"{fence}{pad}{inner}{pad}{fence}"


def plain(text: str) -> str:
    """Sentences stay readable where they are not rendered: only what would become markup, a link or a mention is
    escaped.
    """
    shown = re.sub(r"([\\`*\[\]|<>#~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))", r"\\\1", printable(text).strip())
    return shown.replace("@", "@\u200b").replace("://", ":\u200b//")
