"""What a row of `app/navigation.py` says of a page or tab, and of a control that is part of its
link.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from core.text import printable

if TYPE_CHECKING:
    from core.runs.file.records import StoredPair
    from core.runs.reader import RunReader

LONGEST_TEXT = 120  # of a search
_LONGEST_SETTING = 1000
_WHOLE = re.compile(r"-?[0-9]{1,15}", re.ASCII)


def whole(text: str) -> int | None:
    """Return the whole number in a link; None for anything else, also `1e3`, `1_000`, ` 7` and
    non-ASCII digits.
    """
    return int(text) if _WHOLE.fullmatch(text) else None


@dataclass(frozen=True)
class PageSetting:
    """One control. At its default it is not in the address; its widget is drawn with `key` and
    without a default.

    options: its values, or a mapping from their words in the address; span: lowest and highest
    whole number; with neither it is free text.
    """

    name: str
    key: str
    default: str | int | bool
    options: Iterable[str] | Mapping[str, str | bool] = ()
    span: tuple[int, int] | None = None

    @cached_property
    def words(self) -> Mapping[str, str | bool]:
        """Options by their words in the address."""
        if isinstance(self.options, Mapping):
            return self.options
        return {value.replace(" ", "-").lower(): value for value in self.options}

    def parse(self, text: str) -> str | int | bool | None:
        """Return the value in a link; None if it is none of this control."""
        if self.words:
            return self.words.get(text)
        if self.span is not None:
            value = whole(text)
            return value if value is not None and self.span[0] <= value <= self.span[1] else None
        return printable(text, "")[:_LONGEST_SETTING]

    def word(self, value: object) -> str | None:
        """Word for a value in the address; None for the default, and for what is no value of this
        control.
        """
        if value == self.default:
            return None
        if self.words:
            return next((word for word, option in self.words.items() if option == value), None)
        return str(value)


@dataclass(frozen=True)
class Page:
    """A page, or a tab of one. name: in its address, of a page also its script's.

    absent: the word next to its name if a pair has nothing of it, else ''; a tab is not shown then.
    """

    name: str
    title: str
    shows: Literal["store", "run"]
    settings: tuple[PageSetting, ...] = ()
    absent: Callable[[RunReader, StoredPair], str] | None = None
    tabs: tuple[Page, ...] = ()

    @property
    def tab(self) -> PageSetting:
        """The setting that says which tab is open, by its title; '' is the first that is shown."""
        return PageSetting(
            "tab",
            f"{self.name}_tab",
            "",
            {tab.name: tab.title for tab in self.tabs},
        )

    def settings_with(self, tab: object) -> tuple[PageSetting, ...]:
        """Return the settings of the page and of its open tab. tab: its title."""
        of_tab = next((each.settings for each in self.tabs if each.title == tab), ())
        return (self.tab, *of_tab) if self.tabs else self.settings
