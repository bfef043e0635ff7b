"""HTML of untrusted texts, escaped as it is made."""

import html
import re
from collections.abc import Mapping, Sequence
from typing import Any

from .text import clip, legible

LONGEST = 4000  # characters of one text
# by class
HEAT = {f"h{level}": f"background:rgba(213,94,0,{level * 0.0075:.4f})" for level in range(1, 101)}
# colors that read on black and on white
_STYLES = {
    "box": "overflow-x:auto",
    "strip": "white-space:pre-wrap;font-family:monospace;line-height:1.9",
    "scale": (
        "font-size:0;padding:.5rem 3rem;background:linear-gradient(to"
        f" right,transparent,{HEAT['h100'][11:]})"
    ),
    "flip": "text-decoration:underline",
    "mismatch": "background:#C8000D;color:#FFFFFF",
    **HEAT,
}


def _style_of(classes: re.Match[str]) -> str:
    styles = [_STYLES.get(name, "") for name in classes[1].split()]
    return f'style="{";".join(styles).strip(";")}"'


# no charts, links and headings, which would be the notebook's
_PLAIN: list[tuple[str, Any]] = [
    (r"(?s)<figure>.*?</figure>", ""),
    (r'class="([^"]*)"', _style_of),
    (r' (?:(?:id|href)="[^"]*"|style="")', ""),
    (r"<(/?)h2>", r"<\1b>"),
    (r"<h[134]>(.*?)</h[134]>", r"<p><b>\1</b></p>"),
    ("<small>", "<br><small>"),
    ("<ol>", '<ol style="margin:0">'),
    (r"<(/?)dl>", r"<\1table>"),
    (r"<div><dt>(.*?)</dt><dd>(.*?)</dd></div>", r"<tr><th>\1</th><td>\2</td></tr>"),
    (r"<(t[dh])\b", r'<\1 style="text-align:left;vertical-align:top"'),
]


class Markup(str):
    """Text that is HTML already."""


def escape(content: object) -> Markup:
    """Return HTML of a text, with invisible characters written as escapes."""
    if isinstance(content, Markup):
        return content
    return Markup(html.escape(legible(clip(str(content), LONGEST))))


def join(*parts: object, between: str = "") -> Markup:
    """Return HTML of several parts one after another."""
    return Markup(between.join(map(escape, parts)))


def element(tag: str, *content: object, **attributes: object) -> Markup:
    """Return an element. attributes: by name, `class_` for `class`, `stroke_width` for
    `stroke-width`; left out if None.
    """
    marks = (
        f' {name.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{tag}{''.join(marks)}>{join(*content)}</{tag}>")


def prose(sentence: str) -> Markup:
    """Return a sentence of ours: code between backticks, bold between double asterisks."""
    parts = []
    is_bold = False
    for place, part in enumerate(re.split(r"`([^`]*)`", sentence)):
        texts = [element("code", part)] if place % 2 else part.split("**")
        for number, text in enumerate(texts):
            is_bold ^= number > 0
            parts.append(element("b", text) if is_bold and text else escape(text))
    return join(*parts)


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[object]],
    label: str,
    **options: object,
) -> Markup:
    """Return a table in a box that scrolls sideways. A row may be HTML already."""
    parts = []
    if any(head):
        titles = (element("th", title, scope="col") for title in head)
        parts.append(element("thead", element("tr", *titles)))
    lines = [
        row if isinstance(row, Markup) else element("tr", *(element("td", cell) for cell in row))
        for row in rows
    ]
    return scrolling(element("table", *parts, element("tbody", *lines)), label, **options)


def facts(values: Mapping[str, object]) -> Markup:
    """Return names and values, without those that are ''."""
    pairs = [
        element("div", element("dt", name), element("dd", value))
        for name, value in values.items()
        if value != ""
    ]
    return element("dl", *pairs)


def scrolling(content: Markup, label: str, **options: object) -> Markup:
    """Return a box that scrolls, also by keyboard."""
    return element(
        "div",
        content,
        tabindex="0",
        role="group",
        aria_label=label,
        **{"class_": "box"} | options,
    )


def fold(title: object, *content: object, **options: object) -> Markup:
    """Return content that is shown when its title is opened."""
    return element("details", element("summary", title), *content, **options)


def inline(content: Markup) -> Markup:
    """Return HTML for a page that is not ours, as a notebook's: tables and text that need no style
    sheet.
    """
    for pattern, replacement in _PLAIN:
        content = Markup(re.sub(pattern, replacement, content))
    # else Jupyter typesets texts between $
    return element("div", content, class_="tex2jax_ignore mathjax_ignore")
