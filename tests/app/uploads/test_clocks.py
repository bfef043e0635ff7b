"""Uploads whose clock was put: none stays for ever, and none that lives is removed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from app.uploads.partial_file import Upload, Writing
from app.uploads.spool import Spool
from core.configuration import Limits
from core.runs.store.store import Store
from tests.clock import Clock

HOURS = 24.0
DAY = 86_400.0
LIMITS = Limits(free_bytes=0, upload_hours=0)  # nothing expires before it is asked for


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(time, "time", found)
    return found


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(Store(tmp_path / "runs"))


def _begun(spool: Spool, clock: Clock) -> Upload:
    upload = spool.create("ada", "x.npz", 10, LIMITS)
    _sent(upload, clock)
    return upload


def _sent(upload: Upload, clock: Clock) -> None:
    writing = Writing(upload)
    writing.write(0, b"abc")
    writing.close()
    os.utime(upload.path, (clock.now, clock.now))


def _is_there(spool: Spool, upload: Upload) -> bool:
    spool.expire(HOURS)
    return upload.directory.is_dir()


@pytest.mark.parametrize("ahead", [3600.0, DAY, 365 * DAY])
def test_an_upload_that_a_clock_ahead_began_is_kept_as_long_as_others_or_until_its_own_time_has_come(
    spool, clock, ahead
):
    clock.now += ahead
    upload = _begun(spool, clock)
    clock.now -= ahead
    assert _is_there(spool, upload)
    assert upload.expires(HOURS) == clock.now + DAY
    clock.now += DAY - 1
    assert _is_there(spool, upload)
    clock.now += 2 if ahead > 2 * DAY else ahead + 2
    assert not _is_there(spool, upload)


@pytest.mark.parametrize("back", [3600.0, DAY, 30 * DAY])
def test_a_clock_that_is_put_back_for_a_while_removes_none_that_lives(spool, clock, back):
    old, young = _begun(spool, clock), _begun(spool, clock)
    clock.now += DAY - 600
    _sent(young, clock)
    for _ in range(2):  # there and back, twice: what was noted the first time does not count the second
        clock.now -= back
        assert _is_there(spool, old)
        assert _is_there(spool, young)
        clock.now += back
        assert _is_there(spool, young)
    clock.now += 1200
    assert not _is_there(spool, old)
    assert _is_there(spool, young)


def test_an_upload_that_goes_on_after_the_clock_was_put_back_lives(spool, clock):
    upload = _begun(spool, clock)
    clock.now -= 30 * DAY
    for _ in range(5):
        assert _is_there(spool, upload)
        clock.now += DAY / 2
        _sent(upload, clock)
    clock.now += DAY + 61
    assert not _is_there(spool, upload)


def test_a_damaged_entry_that_a_clock_ahead_made_goes_too(spool, clock):
    upload = _begun(spool, clock)
    (upload.directory / "upload.json").write_text("{")
    for path in (*upload.directory.rglob("*"), upload.directory):
        os.utime(path, (clock.now + 365 * DAY,) * 2)
    for _ in range(3):
        assert _is_there(spool, upload)
        os.utime(upload.directory, (clock.now,) * 2)  # which has the real time now: the mark was made in it
        clock.now += DAY / 2 - 60
    clock.now += 200
    assert not _is_there(spool, upload)


def test_what_a_killed_process_left_under_a_clock_ahead_is_removed(spool, clock):
    upload = _begun(spool, clock)
    left = spool.directory / ".new-left"
    left.mkdir()
    for moment, stays in ((clock.now, True), (clock.now - 3601, False), (clock.now + 3601, False)):
        left.mkdir(exist_ok=True)
        os.utime(left, (moment, moment))
        assert _is_there(spool, upload)
        assert left.exists() is stays
