"""The shared password and the list of members."""

from collections.abc import Iterable
from functools import lru_cache

from ..errors import ExtraError

SHORTEST = 8  # characters of a password
_HASH = "$argon2"


@lru_cache(maxsize=4)
def hash_password(password: str) -> str:
    """Return the Argon2id hash of a password (RFC 9106, second choice: 64 MB, three passes; 0.2 s
    on one core).
    """
    try:
        import argon2
    except ModuleNotFoundError as missing:
        raise ExtraError(
            "Hashing a password takes argon2-cffi: pip install 'ulpscope[hosting]'.",
        ) from missing
    # one lane, so that a sign-in takes one core
    return argon2.PasswordHasher(parallelism=1).hash(password)


def password_problem(configured: str) -> str | None:
    """Return why a configured password cannot be used, without quoting it."""
    if configured.startswith(_HASH):
        import argon2

        try:
            argon2.extract_parameters(configured)
        except argon2.exceptions.InvalidHash:
            return f"begins with {_HASH} but is not a hash of `serve --hash-password`"
    elif len(configured) < SHORTEST:
        return f"has {len(configured)} characters; expected at least {SHORTEST}"
    return None


def is_password(configured: str, typed: str) -> bool:
    """Return whether a typed password is the configured one.

    Costs an Argon2 hash either way, which limits guessing.
    """
    import argon2

    try:
        password_hash = configured if configured.startswith(_HASH) else hash_password(configured)
        # the hash has its own parameters, so those of this hasher do not count
        return argon2.PasswordHasher().verify(password_hash, typed)
    except argon2.exceptions.VerificationError:
        return False


def is_member(name: str, members: Iterable[str]) -> bool:
    """Return whether a name is in the list: as it is, by its domain ("@example.org"), or by "*".

    An address with two @ is refused: a provider and we could read different domains in it.
    """
    if not name.isascii() or not name.isprintable() or name.count("@") > 1:
        return False
    name = name.strip().lower()
    if not name or name.startswith("@"):
        return False
    domain = name[name.index("@") :] if "@" in name else ""
    return any(entry == "*" or entry.strip().lower() in {name, domain} - {""} for entry in members)
