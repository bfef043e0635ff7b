"""Sessions of those who are signed in, and counts of attempts that failed and of those that did not:
`.hosting/sessions.sqlite`, shared by every process on the store.

A session is a row, so that signing out ends it everywhere; the row has the SHA-256 of what the browser holds, so that
nobody who reads the file can use it. What the session was begun with (`credential`) is looked at again whenever it is
used.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import secrets
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ..errors import ConfigurationError
from . import private

FILE = "sessions.sqlite"
EITHER = " or "  # between two addresses of which an attempt is one's
_SCHEMA = """
CREATE TABLE IF NOT EXISTS session (id TEXT PRIMARY KEY, name TEXT, way TEXT, credential TEXT, created REAL,
  expires REAL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS session_credential ON session (name, way, credential, created);
CREATE TABLE IF NOT EXISTS attempt (number INTEGER PRIMARY KEY, address TEXT, moment REAL);
CREATE INDEX IF NOT EXISTS attempt_address ON attempt (address, moment);
CREATE TABLE IF NOT EXISTS success (number INTEGER PRIMARY KEY, address TEXT, moment REAL);
CREATE INDEX IF NOT EXISTS success_address ON success (address, moment);
"""
_MOST_ATTEMPTS = 20_000  # rows, of all addresses; of successes as many, apart, for they must not push failures out
_MOST_SESSIONS = 50_000
_MOST_OF_ONE = 2_000  # sessions of one name with one credential, which a team may share
_WITH_ONE = 5  # times as many sign-ins with one credential as from one address
_DELETE_OF_MOST = """
DELETE FROM session WHERE id = (SELECT id FROM session WHERE (name, way, credential) = (
  SELECT name, way, credential FROM session GROUP BY name, way, credential ORDER BY count(*) DESC, min(created) LIMIT 1
) AND id <> ? ORDER BY created LIMIT 1)
"""
SKEW_SECONDS = 60  # a moment further ahead was written before the clock was put back
_LOOK_SECONDS, _WRITE_SECONDS = 2.0, 5.0  # for which one waits until nobody writes; a writer takes milliseconds


@dataclass(frozen=True)
class Session:
    """A sign-in that was not ended. credential: what it was begun with, in a form that gives nothing away; times:
    seconds since 1970.
    """

    name: str
    way: str
    credential: str
    created: float
    expires: float

    def is_over(self, hours: float) -> bool:
        """Return whether the session has expired: as it was begun, as long as sessions last now, or begun by a clock
        that was ahead.
        """
        age = time.time() - self.created
        return time.time() >= self.expires or age >= 3600 * hours or age < -SKEW_SECONDS


class Sessions:
    """Sessions and attempts of a store. Every method opens the file anew, so it may be called from any thread and after
    any restart.
    """

    def __init__(self, store: Path) -> None:
        self._path = private.folder_of(store) / FILE
        with suppress(sqlite3.Error), self._open() as file:
            file.execute("SELECT 1 FROM session, attempt LIMIT 1")

    def begin(self, name: str, way: str, credential: str, hours: float) -> str:
        """A new session; what its cookie says, which is kept nowhere. Where there are too many, the oldest of the same
        name and credential goes, then the oldest of whoever has most: nobody's are pushed out by who has more.
        """
        said, now = secrets.token_urlsafe(32), time.time()
        session_id = _sha256(said)
        row = (session_id, name, way, credential, now, now + 3600 * hours)
        with self._open() as file:
            file.execute("DELETE FROM session WHERE expires <= ? OR created > ?", (now, now + SKEW_SECONDS))
            file.execute(
                "INSERT INTO session (id, name, way, credential, created, expires) VALUES (?, ?, ?, ?, ?, ?)", row
            )
            file.execute(
                "DELETE FROM session WHERE id IN (SELECT id FROM session WHERE name = ? AND way = ? AND credential = ?"
                " AND id <> ? ORDER BY created DESC LIMIT -1 OFFSET ?)",
                (name, way, credential, session_id, _MOST_OF_ONE - 1),
            )
            (number,) = file.execute("SELECT count(*) FROM session").fetchone()
            for _ in range(number - _MOST_SESSIONS):
                file.execute(_DELETE_OF_MOST, (session_id,))
        return said

    def find(self, said: str, hours: float) -> Session | None:
        """The session of a cookie, unless it was ended or is over. sqlite3.Error where nobody can look."""
        with self._open(_LOOK_SECONDS) as file:
            row = file.execute(
                "SELECT name, way, credential, created, expires FROM session WHERE id = ?", (_sha256(said),)
            ).fetchone()
        found = None if row is None else Session(*row)
        return None if found is None or found.is_over(hours) else found

    def end(self, said: str) -> None:
        """Sign out, in every process."""
        with self._open() as file:
            file.execute("DELETE FROM session WHERE id = ?", (_sha256(said),))

    def attempt(self, address: str, most: int, seconds: float, kind: str = "") -> tuple[int, float]:
        """Count an attempt before a secret is looked at: (number of this attempt, 0), or (0, seconds to wait) after
        `most` failures within `seconds`.

        Counted before it is known to fail, so that many at once are no way around it; `succeeded` takes it back. Each
        `kind` has a count of its own. An address of two is counted as both, and only the first is taken back.
        """
        addresses, now = [f"{kind} {_bucket(each)}".strip() for each in address.split(EITHER)], time.time()
        with self._open() as file:
            file.execute("BEGIN IMMEDIATE")
            wait = max(_wait(file, "attempt", each, most, seconds, now) for each in addresses)
            numbers = [] if wait else [_count(file, "attempt", each, now) for each in addresses]
        return (0, wait) if wait else (numbers[0], 0.0)

    def succeeded(self, number: int) -> None:
        """Remove an attempt that did not fail. The others of its address stay: who knows one password may be guessing
        another.
        """
        with self._open() as file:
            file.execute("DELETE FROM attempt WHERE number = ?", (number,))

    def admit(self, name: str, way: str, credential: str, address: str, most: int, seconds: float) -> float:
        """Count a sign-in with a right secret, before its session is begun: 0, or the seconds to wait after `most`
        within `seconds` from its address, or five times as many with its credential.
        """
        now, holder = time.time(), _sha256("\0".join((name, way, credential)))
        addresses = [(_bucket(each), most) for each in address.split(EITHER)]
        counted = [*addresses, (f"credential {holder}", _WITH_ONE * most)]
        with self._open() as file:
            file.execute("BEGIN IMMEDIATE")
            wait = max(_wait(file, "success", whose, bound, seconds, now) for whose, bound in counted)
            for whose, _ in [] if wait else counted:
                _count(file, "success", whose, now)
        return wait

    @contextmanager
    def _open(self, patience_seconds: float | None = None) -> Iterator[sqlite3.Connection]:
        """Open one transaction. A file that is none is put aside: everybody signs in again."""
        with closing(self._connected(patience_seconds or _WRITE_SECONDS)) as file, file:
            yield file

    def _connected(self, patience_seconds: float) -> sqlite3.Connection:
        for _ in range(3):
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
            file = sqlite3.connect(self._path, timeout=patience_seconds)
            try:
                if not file.execute("SELECT 1 FROM sqlite_master WHERE name = 'success_address'").fetchone():
                    file.executescript(_SCHEMA)
                return file
            except sqlite3.OperationalError:  # locked, or the disk is full
                file.close()
                raise
            except sqlite3.DatabaseError:
                file.close()
                with suppress(OSError):
                    self._path.rename(self._path.with_name(f"{FILE}.damaged-{secrets.token_hex(4)}"))
        raise ConfigurationError(f"{self._path}: cannot be opened; remove it, and everybody signs in again.")


def _wait(file: sqlite3.Connection, table: str, whose: str, most: int, seconds: float, now: float) -> float:
    """Seconds until another of an address or credential may be counted; 0 for at once. Removes what is out of date."""
    file.execute(f"DELETE FROM {table} WHERE moment < ? OR moment > ?", (now - seconds, now + SKEW_SECONDS))
    count, first = file.execute(f"SELECT count(*), min(moment) FROM {table} WHERE address = ?", (whose,)).fetchone()
    return max(1.0, first + seconds - now) if count >= most else 0.0


def _count(file: sqlite3.Connection, table: str, whose: str, now: float) -> int:
    number = file.execute(f"INSERT INTO {table} (address, moment) VALUES (?, ?)", (whose, now)).lastrowid or 0
    file.execute(f"DELETE FROM {table} WHERE number <= ?", (number - _MOST_ATTEMPTS,))
    return number


def _bucket(address: str) -> str:
    """Group of addresses whose attempts are counted together: an IPv4 address, or the 64 bits of an IPv6 network, of
    which anybody has all addresses.
    """
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address[:100]
    if isinstance(found, ipaddress.IPv6Address):
        return str(found.ipv4_mapped or ipaddress.ip_network((found, 64), strict=False))
    return str(found)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()
