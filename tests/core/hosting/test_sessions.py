"""Sessions and failed attempts: shared by processes, bounded, and gone when they are over."""

from __future__ import annotations

import sqlite3
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from core.hosting import sessions
from core.hosting.sessions import Sessions
from tests.clock import Clock

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def clock(monkeypatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(sessions.time, "time", found)
    return found


def test_a_session_is_found_until_it_is_over_or_ended(tmp_path, clock):
    kept = Sessions(tmp_path)
    said = kept.begin("ada", "token", "credential", 2)
    assert kept.find(said, 2) == sessions.Session("ada", "token", "credential", clock.now, clock.now + 7200)
    assert kept.find(said + "x", 2) is None
    clock.now += 7199
    assert kept.find(said, 2) is not None
    assert kept.find(said, 24) is not None
    clock.now += 1
    assert kept.find(said, 24) is None  # as long as it was begun for, however long others are by now
    again = kept.begin("ada", "token", "credential", 2)
    Sessions(tmp_path).end(again)  # another process
    assert kept.find(again, 2) is None


def test_shorter_sessions_end_those_that_were_longer(tmp_path, clock):
    kept = Sessions(tmp_path)
    said = kept.begin("ada", "token", "credential", 12)
    clock.now += 3600
    assert kept.find(said, 1.1) is not None
    assert kept.find(said, 1) is None


@pytest.mark.parametrize(("ahead", "stands"), [(30, True), (59, True), (3600, False), (365 * 86_400, False)])
def test_a_session_that_a_clock_ahead_began_is_over_when_the_clock_is_right(tmp_path, clock, ahead, stands):
    kept, right = Sessions(tmp_path), clock.now
    clock.now += ahead
    said = kept.begin("ada", "token", "credential", 12)
    assert kept.find(said, 12) is not None
    clock.now = right
    assert (kept.find(said, 12) is not None) is stands
    kept.begin("grace", "token", "credential", 12)
    with sqlite3.connect(tmp_path / ".hosting" / sessions.FILE) as file:
        assert file.execute("SELECT count(*) FROM session").fetchone()[0] == (2 if stands else 1)


def test_the_file_is_private_and_does_not_hold_what_browsers_hold(tmp_path):
    said = Sessions(tmp_path).begin("ada", "password", "credential", 1)
    path = tmp_path / ".hosting" / sessions.FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert said.encode() not in path.read_bytes()


def test_an_address_is_refused_after_so_many_failures_and_only_that_one(tmp_path, clock):
    kept = Sessions(tmp_path)
    for _ in range(3):
        number, wait = kept.attempt("198.51.100.7", 3, 600)
        assert number
        assert not wait
        clock.now += 10
    assert kept.attempt("198.51.100.7", 3, 600) == (0, 570.0)
    assert kept.attempt("198.51.100.8", 3, 600)[1] == 0
    clock.now += 571
    assert kept.attempt("198.51.100.7", 3, 600)[1] == 0


def test_an_attempt_of_one_of_two_addresses_is_counted_as_both(tmp_path, clock):
    kept = Sessions(tmp_path)
    number, wait = kept.attempt("198.51.100.7 or 127.0.0.1", 2, 600)
    assert (number > 0, wait) == (True, 0)
    for address in ("198.51.100.7", "127.0.0.1"):
        assert kept.attempt(address, 2, 600)[1] == 0
        assert kept.attempt(address, 2, 600)[1] > 0
    assert kept.attempt("198.51.100.8 or 127.0.0.1", 2, 600)[1] > 0
    assert kept.attempt("198.51.100.8", 2, 600)[1] == 0  # what was refused is counted for nobody
    kept.succeeded(number)
    assert kept.attempt("198.51.100.7", 2, 600)[1] == 0
    assert kept.attempt("127.0.0.1", 2, 600)[1] > 0  # whose it was is in doubt


def test_a_success_takes_back_its_own_attempt_and_no_other(tmp_path, clock):
    kept = Sessions(tmp_path)
    for _ in range(2):
        kept.attempt("198.51.100.7", 3, 600)
    number, _ = kept.attempt("198.51.100.7", 3, 600)
    kept.succeeded(number)
    assert kept.attempt("198.51.100.7", 3, 600)[1] == 0
    assert kept.attempt("198.51.100.7", 3, 600)[1] > 0


@pytest.mark.parametrize(
    ("first", "second", "is_one"),
    [
        ("2001:db8::1", "2001:db8::ffff:2", True),  # one household has all 64 bits
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:198.51.100.7", "198.51.100.7", True),
        ("198.51.100.7", "198.51.100.8", False),
        ("x" * 5000, "x" * 6000, True),
    ],
)
def test_addresses_that_one_person_can_change_between_are_counted_together(tmp_path, first, second, is_one):
    kept = Sessions(tmp_path)
    kept.attempt(first, 1, 600)
    assert bool(kept.attempt(second, 1, 600)[1]) is is_one


def test_rows_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(sessions, "_MOST_ATTEMPTS", 50)
    monkeypatch.setattr(sessions, "_MOST_SESSIONS", 20)
    kept = Sessions(tmp_path)
    for number in range(120):
        kept.attempt(f"198.51.100.{number}", 5, 600)
    said = [kept.begin("ada", "token", "", 1) for _ in range(30)]
    with sqlite3.connect(tmp_path / ".hosting" / sessions.FILE) as file:
        assert file.execute("SELECT count(*) FROM attempt").fetchone()[0] == 50
        assert file.execute("SELECT count(*) FROM session").fetchone()[0] == 20
    assert kept.find(said[-1], 1) is not None


def _of(kept: Sessions, said: list[str]) -> int:
    return sum(kept.find(each, 1) is not None for each in said)


def test_who_signs_in_again_and_again_pushes_out_nobody_but_themselves(tmp_path, monkeypatch, clock):
    monkeypatch.setattr(sessions, "_MOST_SESSIONS", 30)
    monkeypatch.setattr(sessions, "_MOST_OF_ONE", 20)
    kept = Sessions(tmp_path)
    ada = [kept.begin("ada", "token", "a", 1)]
    shared = []
    for _ in range(50):
        clock.now += 1
        shared.append(kept.begin("viewer", "password", "b", 1))
    assert (_of(kept, ada), _of(kept, shared), _of(kept, shared[-20:])) == (1, 20, 20)
    others = []
    for number in range(25):  # many credentials with one session each: whoever has most makes room
        clock.now += 1
        others.append(kept.begin(f"guest {number}", "oidc", "c", 1))
    assert (_of(kept, ada), _of(kept, others), _of(kept, shared)) == (1, 25, 4)
    assert _of(kept, shared[-4:]) == 4  # the latest of them


def test_the_same_name_with_another_credential_is_somebody_else(tmp_path, monkeypatch):
    monkeypatch.setattr(sessions, "_MOST_OF_ONE", 2)
    kept = Sessions(tmp_path)
    said = [
        kept.begin("ada", way, credential, 1) for way, credential in (("token", "a"), ("token", "b"), ("oidc", "a"))
    ]
    for _ in range(3):
        kept.begin("ada", "token", "a", 1)
    assert [kept.find(each, 1) is not None for each in said] == [False, True, True]


def test_right_sign_ins_are_counted_by_address_and_by_credential(tmp_path, clock):
    kept = Sessions(tmp_path)

    def waits(number: int, name: str = "ada", address: str = "198.51.100.7") -> list[float]:
        return [kept.admit(name, "token", name, address, 3, 600) for _ in range(number)]

    assert waits(5) == [0, 0, 0, 600, 600]
    clock.now += 10
    assert waits(1, "grace") == [590]  # the address
    assert [wait for number in range(6) for wait in waits(3, address=f"203.0.113.{number}")] == [0] * 12 + [590] * 6
    assert waits(1, "grace", "203.0.113.4") == [0]  # what was refused has counted for no address
    clock.now += 591
    assert waits(1) == [0]


def test_right_sign_ins_and_failures_push_each_other_out_of_no_count(tmp_path, monkeypatch):
    monkeypatch.setattr(sessions, "_MOST_ATTEMPTS", 10)
    kept = Sessions(tmp_path)
    for _ in range(3):
        kept.attempt("198.51.100.7", 3, 600)
    for number in range(20):
        assert not kept.admit("ada", "token", str(number), f"203.0.113.{number}", 3, 600)
    assert kept.attempt("198.51.100.7", 3, 600)[1] > 0
    with sqlite3.connect(tmp_path / ".hosting" / sessions.FILE) as file:
        assert file.execute("SELECT count(*) FROM success").fetchone()[0] == 10


def test_a_file_of_before_gets_what_it_lacks(tmp_path):
    kept = Sessions(tmp_path)
    said = kept.begin("ada", "token", "a", 1)
    with sqlite3.connect(tmp_path / ".hosting" / sessions.FILE) as file:
        file.executescript("DROP INDEX success_address; DROP TABLE success; DROP INDEX session_credential;")
    assert Sessions(tmp_path).find(said, 1) is not None
    assert not kept.admit("ada", "token", "a", "198.51.100.7", 3, 600)


def test_a_clock_that_was_put_back_locks_nobody_out(tmp_path, clock):
    kept = Sessions(tmp_path)
    for _ in range(3):
        kept.attempt("198.51.100.7", 3, 600)
    clock.now -= 86_400
    assert kept.attempt("198.51.100.7", 3, 600)[1] == 0


def test_a_clock_that_was_ahead_gives_nobody_more_guesses(tmp_path, clock):
    kept = Sessions(tmp_path)
    clock.now += 86_400
    for _ in range(3):
        kept.attempt("198.51.100.7", 3, 600)
    clock.now -= 86_400
    assert [kept.attempt("198.51.100.7", 3, 600)[1] for _ in range(5)] == [0, 0, 0, 600, 600]


def test_what_is_guessed_is_counted_apart(tmp_path, clock):
    kept = Sessions(tmp_path)
    for kind in ("", "token"):
        assert [kept.attempt("198.51.100.7", 2, 600, kind)[1] for _ in range(3)] == [0, 0, 600]


def test_a_file_that_is_no_database_is_put_aside(tmp_path):
    kept = Sessions(tmp_path)
    said = kept.begin("ada", "token", "", 1)
    path = tmp_path / ".hosting" / sessions.FILE
    path.write_bytes(b"no database at all" * 100)
    assert kept.find(said, 1) is None
    assert kept.find(kept.begin("ada", "token", "", 1), 1) is not None
    assert len(list(path.parent.glob("*.damaged-*"))) == 1


_GUESS = """
import sys
from pathlib import Path
from core.hosting.sessions import Sessions
kept = Sessions(Path(sys.argv[1]))
print(sum(kept.attempt("198.51.100.7", 10, 600)[1] == 0 for _ in range(20)))
"""


def test_processes_that_count_at_once_let_no_more_through_than_one_does(tmp_path):
    Sessions(tmp_path)
    guessers = [
        subprocess.Popen([sys.executable, "-c", _GUESS, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    began = time.monotonic()
    passed = sum(int(guesser.communicate(timeout=300)[0]) for guesser in guessers)
    assert passed == 10, time.monotonic() - began
