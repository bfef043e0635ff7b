"""HTML of untrusted texts, escaped as it is made."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence

from ..text import clip, legible

LONGEST = 4000  # characters of one text


class Markup(str):
    """Text that is HTML already."""


def escape(content: object) -> Markup:
    """Return HTML of a text, with invisible characters written as escapes."""
    return content if isinstance(content, Markup) else Markup(html.escape(legible(clip(str(content), LONGEST))))


def join(parts: Sequence[object], between: str = "") -> Markup:
    """Return HTML of several parts one after another."""
    return Markup(between.join(map(escape, parts)))


def element(tag: str, *content: object, **attributes: object) -> Markup:
    """Return an element. attributes: by name, `class_` for `class`, `stroke_width` for `stroke-width`; left out if
    None.
    """
    marks = (
        f' {name.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{tag}{''.join(marks)}>{join(content)}</{tag}>")


def prose(sentence: str) -> Markup:
    """Return a sentence of ours: code between backticks, bold between double asterisks."""
    parts, is_bold = [], False
    for place, part in enumerate(re.split(r"`([^`]*)`", sentence)):
        if place % 2:
            parts.append(element("b", element("code", part)) if is_bold else element("code", part))
            continue
        for number, text in enumerate(part.split("**")):
            is_bold ^= number > 0
            parts.append(element("b", text) if is_bold and text else escape(text))
    return join(parts)


def table(head: Sequence[str], rows: Sequence[Sequence[object]], label: str, **options: object) -> Markup:
    """Return a table in a box that scrolls sideways. A row may be HTML already."""
    lines = [row if isinstance(row, Markup) else element("tr", *(element("td", cell) for cell in row)) for row in rows]
    top = element("thead", element("tr", *(element("th", title, scope="col") for title in head))) if any(head) else ""
    return scrolling(element("table", top, element("tbody", *lines)), label, **options)


def facts(values: Mapping[str, object]) -> Markup:
    """Return names and values, without those that are ''."""
    pairs = [join([element("dt", name), element("dd", value)]) for name, value in values.items() if value != ""]
    return element("dl", *(element("div", pair) for pair in pairs))


def scrolling(content: Markup, label: str, **options: object) -> Markup:
    """Return a box that scrolls, also by keyboard."""
    return element("div", content, tabindex="0", role="group", aria_label=label, **{"class_": "box"} | options)


def fold(title: str, *content: object, **options: object) -> Markup:
    """Return content that is shown when its title is opened."""
    return element("details", element("summary", title), *content, **options)
