"""The one configuration file of a server: limits, who may sign in and how. `ulpscope.toml`, or where
ULPSCOPE_CONFIG says.

Every setting has an environment variable that overrides it: `[limits] file_bytes` is ULPSCOPE_LIMITS_FILE_BYTES. A word
that is no setting is refused: a limit that was misspelt would be none. `docs/hosting.md` describes each; `ulpscope
serve --check` prints what is in force.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, get_type_hints

from .errors import ConfigurationError

VARIABLE = "ULPSCOPE_CONFIG"
FILE_NAME = "ulpscope.toml"
_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_UNITS |= {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_WORDS = {word: word in ("1", "true", "yes", "on") for word in ("1", "true", "yes", "on", "0", "false", "no", "off")}
_AMOUNT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*")
_BYTES = {"is": "bytes"}
_HIGHEST = 1 << 50  # a petabyte; hours beyond are no dates
_SECRET = {"secret": True}


@dataclass(frozen=True)
class Limits:
    """Limits on what is stored. Bytes; 0 is no limit."""

    file_bytes: int = field(default=32 << 30, metadata=_BYTES)  # of one dump or run file that comes over HTTP
    free_bytes: int = field(default=1 << 30, metadata=_BYTES)  # that must stay free on the store's disk
    cache_bytes: int = field(default=20 << 30, metadata=_BYTES)  # of runs fetched from a store of objects


@dataclass(frozen=True)
class Hosting:
    """Address of the server, its proxy, and whether it may change anything."""

    public_url: str = ""  # https://ulpscope.example.org: for links, and the cookie is then sent over https only
    proxy_secret: str = field(default="", repr=False, metadata=_SECRET)  # with which the proxy proves who it is
    read_only: bool = False  # members see and download, nothing is changed


@dataclass(frozen=True)
class SignIn:
    """Sign-in to the server. Without any the server stays on loopback. Members may do everything.

    An entry of `members` is an address ("ada@example.org"), a domain ("@example.org") or "*", for names from a proxy's
    header or from OIDC.
    """

    password: str = field(default="", repr=False, metadata=_SECRET)  # as `serve --hash-password` prints it, or in clear
    tokens: bool = False  # those of `serve --token`
    header: str = ""  # the header in which the proxy names the user, X-Forwarded-User
    oidc_issuer: str = ""  # https://accounts.example.org: its .well-known/openid-configuration is read
    oidc_client_id: str = ""
    oidc_client_secret: str = field(default="", repr=False, metadata=_SECRET)
    members: tuple[str, ...] = ()
    session_hours: float = 12.0

    @property
    def is_configured(self) -> bool:
        """Return whether there is any way to sign in."""
        return bool(self.password or self.tokens or self.header or self.oidc_issuer)


@dataclass(frozen=True)
class Engines:
    """Locations of engines beside transformers: "NAME=PYTHON", "NAME=PYTHON,ADAPTER.py" for one of one's own, or
    "NAME=FOLDER" of tensor dumps.
    """

    places: tuple[str, ...] = ()


@dataclass(frozen=True)
class Configuration:
    """All sections, as they are in force; `source` is the file they came from, if one was there."""

    limits: Limits = Limits()
    hosting: Hosting = Hosting()
    sign_in: SignIn = SignIn()
    engines: Engines = Engines()
    source: Path | None = None


def configuration(environment: Mapping[str, str] | None = None) -> Configuration:
    """Read the configuration from the file and the environment. ConfigurationError, one sentence, for what cannot be
    understood.

    Read anew at every call, which takes well under a millisecond: a server that lives long takes a changed limit
    without a restart.
    """
    environment = os.environ if environment is None else environment
    source, said = _file(environment)
    sections: dict[str, Any] = {}
    for section in _SECTIONS:
        place = f"{source.name if source else FILE_NAME}: [{section}]"
        given = said.pop(section, {})
        if not isinstance(given, dict):
            raise ConfigurationError(f"{place} is {given!r}; expected a section.")
        sections[section] = _section(section, given, environment, place)
    if said:
        raise ConfigurationError(f"{source}: '{min(said)}' is no section; there are {', '.join(_SECTIONS)}.")
    _refuse_unknown_variables(environment)
    return Configuration(**sections, source=source)


_SECTIONS: dict[str, type] = {"limits": Limits, "hosting": Hosting, "sign_in": SignIn, "engines": Engines}


def _file(environment: Mapping[str, str]) -> tuple[Path | None, dict[str, Any]]:
    named = environment.get(VARIABLE, "")
    path = Path(named or FILE_NAME)
    try:
        return path, tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if named:
            raise ConfigurationError(f"{path}: there is no such file, which {VARIABLE} names.") from None
        return None, {}
    except (OSError, ValueError, RecursionError) as error:  # no text, no TOML, a number of 5000 digits, 1000 brackets
        raise ConfigurationError(f"{path}: cannot be read as a configuration ({error}).") from None


def _section(section: str, given: dict[str, Any], environment: Mapping[str, str], place: str) -> Any:
    kind = _SECTIONS[section]
    hints = get_type_hints(kind)
    values = {}
    if unknown := given.keys() - hints.keys():
        raise ConfigurationError(f"{place} '{min(unknown)}' is no setting; there are {', '.join(hints)}.")
    for setting in fields(kind):
        name, variable = setting.name, variable_of(section, setting.name)
        if variable in environment:
            values[name] = _value(environment[variable], hints[name], setting.metadata, variable)
        elif name in given:
            values[name] = _value(given[name], hints[name], setting.metadata, f"{place} {name}")
    return kind(**values)


def variable_of(section: str, name: str) -> str:
    """The environment variable that overrides a setting."""
    return f"ULPSCOPE_{section}_{name}".upper()


def _refuse_unknown_variables(environment: Mapping[str, str]) -> None:
    for section, kind in _SECTIONS.items():
        known = {variable_of(section, each.name) for each in fields(kind)}
        strange = {name for name in environment if name.startswith(f"ULPSCOPE_{section.upper()}_")} - known
        if strange:
            raise ConfigurationError(f"{min(strange)} is no setting; there are {', '.join(sorted(known))}.")


def _value(value: Any, hint: Any, about: Mapping[str, Any], place: str) -> Any:
    """Convert a value of the file or a variable's text to the setting's type; ConfigurationError, which never quotes a
    secret, for anything else.
    """
    text = value.strip().lower() if isinstance(value, str) else ""
    if hint is str:
        expected = "a text"
        if isinstance(value, str):
            return value
    elif hint is bool:
        expected = "true or false"
        if isinstance(value, bool) or text in _WORDS or value == "":
            return value is True or _WORDS.get(text, False)
    elif hint in (int, float):
        expected = 'bytes, as a whole number or as "20 GB"' if about == _BYTES else "a number"
        if amount := _AMOUNT.fullmatch(text):
            value = float(amount[1]) * _UNITS[amount[2]] if amount[2] in _UNITS else value
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _HIGHEST:
            return hint(value)
    else:
        expected = "a list of texts"
        if isinstance(value, str):
            value = [part.strip() for part in value.split(",") if part.strip()]
        if isinstance(value, list) and all(isinstance(each, str) for each in value):
            return tuple(value)
    shown = "what is there" if about.get("secret") else repr(value)[:80]
    raise ConfigurationError(f"{place}: {shown} cannot be taken; expected {expected}.")


def readable_secrets(found: Configuration, environment: Mapping[str, str]) -> list[str]:
    """Secrets that every user of the machine can read in the file, named as in it; empty where it is closed to them."""
    try:
        if found.source is None or not found.source.stat().st_mode & stat.S_IROTH:
            return []
    except OSError:
        return []
    return [
        f"[{section}] {each.name}"
        for section, kind in _SECTIONS.items()
        for each in fields(kind)
        if each.metadata.get("secret")
        and getattr(getattr(found, section), each.name)
        and variable_of(section, each.name) not in environment
    ]


def as_json(found: Configuration) -> dict[str, Any]:
    """Configuration in force, for `serve --check`; of a secret only whether it is set."""
    said: dict[str, Any] = {"source": str(found.source) if found.source else None}
    for section in _SECTIONS:
        values = getattr(found, section)
        said[section] = asdict(values)
        for each in fields(values):
            if each.metadata.get("secret"):
                said[section][each.name] = bool(said[section][each.name])
    return said
