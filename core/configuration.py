"""Configuration of a server, `ulpscope.toml`: ULPSCOPE_LIMITS_FILE_BYTES overrides `[limits]
file_bytes`, and so on.
"""

import os
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import structs

from .errors import ConfigurationError

VARIABLE = "ULPSCOPE_CONFIG"
FILE_NAME = "ulpscope.toml"
_Bytes = Annotated[int, msgspec.Meta(ge=0)]


class Secret(str):
    """A setting that is never shown."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'...'"


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits on what is stored. 0 is no limit."""

    file_bytes: _Bytes = 32 << 30  # of one dump or run file that comes over HTTP
    free_bytes: _Bytes = 1 << 30  # that must stay free on the store's disk
    cache_bytes: _Bytes = 20 << 30  # of runs fetched from a store of objects


class Hosting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Address of the server, its proxy, and whether it may change anything."""

    # https://ulpscope.example.org: for links, and the cookie is then sent over https only
    public_url: str = ""
    proxy_secret: Secret = Secret()  # with which the proxy proves who it is
    read_only: bool = False  # members can only view and download


class SignIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sign-in to the server. Without any the server stays on loopback. Members may do everything.

    An entry of `members` is an address ("ada@example.org"), a domain ("@example.org") or "*", for
    names from a proxy's header or from OIDC.
    """

    password: Secret = Secret()  # as `serve --hash-password` prints it, or in clear
    tokens: bool = False  # those of `serve --token`
    header: str = ""  # the header in which the proxy names the user, X-Forwarded-User
    # https://accounts.example.org: its .well-known/openid-configuration is read
    oidc_issuer: str = ""
    oidc_client_id: str = ""
    oidc_client_secret: Secret = Secret()
    members: tuple[str, ...] = ()
    session_hours: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 12.0

    @property
    def is_configured(self) -> bool:
        """Return whether there is any way to sign in."""
        return bool(self.password or self.tokens or self.header or self.oidc_issuer)


class Engines(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Locations of other engines: "NAME=PYTHON", "NAME=PYTHON,ADAPTER.py", or "NAME=FOLDER" of
    tensor dumps.
    """

    places: tuple[str, ...] = ()


class Configuration(msgspec.Struct, frozen=True):
    """All sections with their current values. source: their file, if there is one."""

    limits: Limits = Limits()
    hosting: Hosting = Hosting()
    sign_in: SignIn = SignIn()
    engines: Engines = Engines()
    source: Path | None = None


SECTIONS: dict[str, type[msgspec.Struct]] = {
    "limits": Limits,
    "hosting": Hosting,
    "sign_in": SignIn,
    "engines": Engines,
}


def configuration(environment: Mapping[str, str] | None = None) -> Configuration:
    """Read the configuration from the file and the environment; not cached."""
    environment = os.environ if environment is None else environment
    path = Path(environment.get(VARIABLE) or FILE_NAME)
    values: dict[str, Any] = {}
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if environment.get(VARIABLE):
            raise ConfigurationError(f"{path}: no such file, named by {VARIABLE}.") from None
    # no text, no TOML, a number of 5000 digits, 1000 brackets
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path}: cannot be read as a configuration ({error}).") from None
    if unknown := values.keys() - SECTIONS:
        raise ConfigurationError(
            f"{path}: '{min(unknown)}' is not a section; expected {', '.join(SECTIONS)}.",
        )
    sections: dict[str, Any] = {}
    for section, kind in SECTIONS.items():
        prefix = variable_of(section, "")
        settings = values.get(section, {})
        defaults = kind()
        overrides: dict[str, Any] = {}
        for variable, text in environment.items():
            if variable.startswith(prefix):
                name = variable.removeprefix(prefix).lower()
                overrides[name] = text
                if isinstance(getattr(defaults, name, None), tuple):
                    overrides[name] = list(filter(None, map(str.strip, text.split(","))))
        try:
            merged = settings | overrides if isinstance(settings, dict) else settings
            sections[section] = msgspec.convert(merged, kind, strict=False, dec_hook=_secret)
        except msgspec.ValidationError as error:
            hint = f"; {prefix}* override it" if overrides else ""
            raise ConfigurationError(
                f"{path}: [{section}] {error}{hint}. docs/guides/hosting.md lists the settings.",
            ) from None
    return Configuration(**sections, source=path if values or path.exists() else None)


def variable_of(section: str, name: str) -> str:
    """Return the environment variable that overrides a setting."""
    return f"ULPSCOPE_{section}_{name}".upper()


def _secret(_: type, value: Any) -> Secret:
    if isinstance(value, str):
        return Secret(value)
    raise ValueError("Expected a text")


def readable_secrets(config: Configuration) -> list[str]:
    """Return the secrets in the file that every user of the machine can read."""
    if config.source is None or not config.source.stat().st_mode & stat.S_IROTH:
        return []
    readable = []
    for section in SECTIONS:
        for name, value in structs.asdict(getattr(config, section)).items():
            # a variable of the environment replaces the file's value
            is_of_file = variable_of(section, name) not in os.environ
            if isinstance(value, Secret) and value and is_of_file:
                readable.append(f"[{section}] {name}")
    return readable


def as_json(config: Configuration) -> dict[str, Any]:
    """Return the configuration for `serve --check`; of a secret only whether it is set."""
    settings: dict[str, Any] = {"source": str(config.source) if config.source else None}
    for section in SECTIONS:
        settings[section] = {}
        for name, value in structs.asdict(getattr(config, section)).items():
            settings[section][name] = bool(value) if isinstance(value, Secret) else value
    return settings
