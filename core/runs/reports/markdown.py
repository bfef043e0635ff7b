"""Markdown of untrusted texts: in a code span or escaped, so that they stay text wherever they are
pasted.
"""

import re
from collections.abc import Mapping, Sequence
from urllib.parse import urlencode, urlsplit

from ...text import legible, printable


def report_address(query: dict[str, str], public_url: str, page: str = "") -> str:
    """Absolute address of a run: at the configured public URL, else at the origin of the page that
    is open, else at a dashboard on this machine.
    """
    url = urlsplit(page or "http://localhost:8501/overview")
    base = public_url.rstrip("/") or f"{url.scheme}://{url.netloc}"
    return f"{base}{url.path or '/'}?{urlencode(query)}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def facts(figures: Mapping[str, str], title: str = "") -> str:
    """Return a table of two columns, without the figures that are ''."""
    return table((title, ""), [(name, value) for name, value in figures.items() if value])


def fold(title: str, parts: Sequence[str]) -> str:
    """`<details>` that show `title` until they are opened. title: ours, never of a file."""
    return "\n\n".join([f"<details><summary>{title}</summary>", *filter(None, parts), "</details>"])


def code(text: str) -> str:
    """Return a code span, fenced with more backticks than the text has in a row; pipes, which end a
    cell, escaped.
    """
    inner = printable(text).strip().replace("|", "\\|") or " "
    fence = _fence(inner, 1)
    # else the text's own backtick would be part of the fence
    pad = " " if inner.startswith("`") or inner.endswith("`") else ""
    return f"{fence}{pad}{inner}{pad}{fence}"


def block(text: str, language: str = "text") -> str:
    """Return a code block, fenced with more backticks than the text has in a row."""
    inner = legible(text)
    fence = _fence(inner, 3)
    return f"{fence}{language}\n{inner}\n{fence}"


def plain(text: str) -> str:
    """Sentences stay readable if they are not rendered: only what would become markup, a link or a
    mention is escaped. Text between backticks becomes a code span.
    """
    parts = re.split(r"`([^`]+)`", printable(text).strip())
    return "".join(code(part) if place % 2 else _escape(part) for place, part in enumerate(parts))


def _escape(text: str) -> str:
    # underscores within words stay: they mark nothing, and names are full of them
    safe = re.sub(r"([\\*\[\]|<>#~]|&(?=#?\w+;)|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))", r"\\\1", text)
    return (
        # a backslash does not stop mentions and bare links, a space of no width does
        safe.replace("`", "'")
        .replace("@", "@\u200b")
        .replace("://", ":\u200b//")
        .replace("www.", "www\u200b.")
    )


def _fence(text: str, least: int) -> str:
    """More backticks than the text has in a row."""
    return "`" * max(least, max((len(run) for run in re.findall("`+", text)), default=0) + 1)
