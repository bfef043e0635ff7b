"""Roles of people whom a proxy or a provider names: by the lists `viewers` and `editors` of the configuration."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from ..configuration import SignIn


def role_of(name: str, sign_in: SignIn) -> Literal["viewer", "editor"] | None:
    """editor before viewer; None for who is in neither list, and so does not get in."""
    if _is_in(name, sign_in.editors):
        return "editor"
    return "viewer" if _is_in(name, sign_in.viewers) else None


def _is_in(name: str, entries: Iterable[str]) -> bool:
    """An entry is an address or a name, a domain with its @, or *. A domain is what follows the last @, so
    `x@evil@good.org` is of good.org only where the whole address is: addresses with two @ are in no list.
    """
    name = _lower(name)
    if not name or not name.isprintable() or name.count("@") > 1:
        return False
    for entry in map(_lower, entries):
        if entry == "*" or (entry == name and not entry.startswith("@")):
            return True
        if entry.startswith("@") and len(entry) > 1 and not name.startswith("@") and name.endswith(entry):
            return True
    return False


def _lower(text: str) -> str:
    """Lower-case a name, without blanks around it; A to Z alone made small, for Unicode's small letters make one domain
    of two: ß becomes ss, K (Kelvin) a k.
    """
    return "".join(letter.lower() if letter.isascii() else letter for letter in text.strip())
