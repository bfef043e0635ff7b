"""The audit log: nothing is lost or torn by several writers, rotation, a full disk or a killed one, and nothing in it
comes alive.
"""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from core.runs.store import audit

ROOT = Path(__file__).resolve().parents[4]


def test_events_are_read_in_order_and_the_file_is_private(tmp_path):
    for number in range(5):
        assert audit.record(tmp_path, "ada", "delete", f"run-{number}", entry=number, share=0.5)
    found = audit.read(tmp_path, 3)
    assert [event["run_id"] for event in found] == ["run-2", "run-3", "run-4"]
    assert found[-1] | {"time": ""} == {
        "time": "",
        "who": "ada",
        "what": "delete",
        "run_id": "run-4",
        "entry": 4,
        "share": 0.5,
    }
    assert stat.S_IMODE((tmp_path / ".audit" / "audit.jsonl").stat().st_mode) == 0o600
    assert audit.read(tmp_path, 0) == []
    assert audit.read(tmp_path / "nowhere", 5) == []


def test_what_others_wrote_stays_one_line_of_ascii(tmp_path):
    audit.record(
        tmp_path,
        "ada\n{}\x1b[2J",
        "label",
        "r",
        title="\u202e<script>",
        long="x" * 10_000,
        odd=float("nan"),
        obj=object,
    )
    lines = (tmp_path / ".audit" / "audit.jsonl").read_bytes().splitlines()
    assert len(lines) == 1
    assert lines[0].isascii()
    assert b"\x1b" not in lines[0]
    assert len(json.loads(lines[0])["long"]) == 400
    assert "NaN" not in lines[0].decode()


def test_a_full_file_is_put_aside_and_nothing_of_it_is_lost(tmp_path, monkeypatch):
    monkeypatch.setenv("ULPSCOPE_HOSTING_AUDIT_BYTES", "1000")
    for number in range(60):
        assert audit.record(tmp_path, "ada", "capture", job=number)
    assert len(list((tmp_path / ".audit").glob("audit-*.jsonl"))) > 2
    assert [event["job"] for event in audit.read(tmp_path, 1000)] == list(range(60))
    assert [event["job"] for event in audit.read(tmp_path, 25)] == list(range(35, 60))


def _days_ago(folder: Path, days: float) -> None:
    """The log as if all of it had been written so long ago."""

    def earlier(text: str, form: str) -> str:
        return (datetime.strptime(text, form) - timedelta(days=days)).strftime(form)

    for path in folder.iterdir():
        body = re.sub(
            r'"time": "([^"]+?)\d{3}Z"',
            lambda found: f'"time": "{earlier(found[1] + "000", "%Y-%m-%dT%H:%M:%S.%f")[:-3]}Z"',
            path.read_text(),
        )
        path.write_text(body)
        if path.name != audit.FILE:
            _, moment, rest = path.name.split("-")
            path.rename(path.with_name(f"audit-{earlier(moment, audit._MOMENT)}-{rest}"))


def _jobs(store: Path) -> list[int]:
    return [event["job"] for event in audit.read(store, 1000)]


def test_a_month_is_put_aside_however_little_was_written(tmp_path):
    folder = tmp_path / ".audit"
    audit.record(tmp_path, "ada", "capture", job=0)
    _days_ago(folder, 29)
    audit.record(tmp_path, "ada", "capture", job=1)
    assert len(list(folder.iterdir())) == 1  # the twin: not before its time
    _days_ago(folder, 2)
    audit.record(tmp_path, "ada", "capture", job=2)
    assert len(list(folder.iterdir())) == 2
    assert _jobs(tmp_path) == [0, 1, 2]


@pytest.mark.parametrize(
    ("days", "kept_bytes", "left"),
    [
        ("365", "0", [2, 3, 4]),  # what is older than that goes
        ("365", "10 MB", [0, 1, 2, 3, 4]),  # unless there is room
        ("365", "260", [1, 2, 3, 4]),  # the oldest first, until there is
        ("374", "0", [1, 2, 3, 4]),
        ("0", "0", [0, 1, 2, 3, 4]),  # for ever
    ],
)
def test_only_what_is_older_than_its_days_and_beyond_its_bytes_is_removed(
    days, kept_bytes, left, tmp_path, monkeypatch
):
    """Of lines of 80 bytes, a file each: 0 was put aside 375 days before the file was begun that is put aside now, and
    1 373 days before.
    """
    monkeypatch.setenv("ULPSCOPE_HOSTING_AUDIT_BYTES", "1")
    folder = tmp_path / ".audit"
    for number, passed in enumerate((1.0, 2.0, 373.0, 10.0)):
        audit.record(tmp_path, "ada", "capture", job=number)
        _days_ago(folder, passed)
    monkeypatch.setenv("ULPSCOPE_HOSTING_AUDIT_DAYS", days)
    monkeypatch.setenv("ULPSCOPE_HOSTING_AUDIT_KEPT_BYTES", kept_bytes)
    audit.record(tmp_path, "ada", "capture", job=4)
    assert _jobs(tmp_path) == left


def test_a_clock_that_is_ahead_for_a_moment_removes_nothing(tmp_path, monkeypatch):
    """The file that it puts aside says when it was begun, and nothing is older than that by a year."""
    monkeypatch.setenv("ULPSCOPE_HOSTING_AUDIT_BYTES", "1")
    monkeypatch.setenv("ULPSCOPE_HOSTING_AUDIT_KEPT_BYTES", "0")
    for number in range(3):
        audit.record(tmp_path, "ada", "capture", job=number)

    class Ahead(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + timedelta(days=3650)

    monkeypatch.setattr(audit, "datetime", Ahead)
    audit.record(tmp_path, "ada", "capture", job=3)
    assert _jobs(tmp_path) == [0, 1, 2, 3]


def test_what_is_not_of_the_log_is_not_removed_with_it(tmp_path, monkeypatch):
    monkeypatch.setenv("ULPSCOPE_HOSTING_AUDIT_BYTES", "1")
    monkeypatch.setenv("ULPSCOPE_HOSTING_AUDIT_KEPT_BYTES", "0")
    audit.record(tmp_path, "ada", "capture", job=0)
    others = [tmp_path / ".audit" / name for name in ("audit-mine.jsonl", "audit-2001.jsonl", "audit.jsonl.gz")]
    for path in others:
        path.write_text("mine")
    audit.record(tmp_path, "ada", "capture", job=1)
    assert all(path.exists() for path in others)


_WRITE = """
import sys
from pathlib import Path
from core.runs.store import audit
for number in range(100):
    audit.record(Path(sys.argv[1]), sys.argv[2], "capture", job=number)
"""


def test_processes_that_write_at_once_lose_nothing_even_while_files_are_put_aside(tmp_path):
    environment = {**os.environ, "ULPSCOPE_HOSTING_AUDIT_BYTES": "2000"}
    writers = [
        subprocess.Popen([sys.executable, "-c", _WRITE, str(tmp_path), name], cwd=ROOT, env=environment)
        for name in "abc"
    ]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    found = audit.read(tmp_path, 1000)
    assert sorted((event["who"], event["job"]) for event in found) == [
        (name, number) for name in "abc" for number in range(100)
    ]


def test_a_line_that_a_killed_writer_tore_costs_no_other(tmp_path):
    audit.record(tmp_path, "ada", "first")
    with (tmp_path / ".audit" / "audit.jsonl").open("ab") as file:
        file.write(b'{"time": "2026", "who": "to')
    audit.record(tmp_path, "ada", "last")
    assert [event["what"] for event in audit.read(tmp_path, 9)] == ["first", "last"]


def test_a_disk_that_takes_a_part_keeps_nothing_of_the_line(tmp_path, monkeypatch, caplog):
    audit.record(tmp_path, "ada", "first")
    before = (tmp_path / ".audit" / "audit.jsonl").read_bytes()
    real = os.write
    monkeypatch.setattr(audit.os, "write", lambda fd, body: real(fd, body[:7]))
    assert audit.record(tmp_path, "ada", "second") is False
    monkeypatch.undo()
    assert (tmp_path / ".audit" / "audit.jsonl").read_bytes() == before
    assert "second" in caplog.text
    assert audit.record(tmp_path, "ada", "third")
    assert [event["what"] for event in audit.read(tmp_path, 9)] == ["first", "third"]


@pytest.mark.parametrize("place", ["a file", "a link", "a pipe"])
def test_what_is_no_log_is_left_alone_and_never_raises(tmp_path, place):
    folder = tmp_path / ".audit"
    if place == "a file":
        folder.write_text("mine")
    else:
        folder.mkdir()
        path = folder / "audit.jsonl"
        path.symlink_to(tmp_path / "elsewhere") if place == "a link" else os.mkfifo(path)
    assert audit.record(tmp_path, "ada", "delete") is False
    assert audit.read(tmp_path, 5) == []
    assert not (tmp_path / "elsewhere").exists()


def test_lines_that_are_no_events_are_left_out(tmp_path):
    (tmp_path / ".audit").mkdir()
    lines = [b"[]", b"7", b'{"what": 3}', b"\xff", b"[" * 20_000, b'{"what": "ok"}']
    (tmp_path / ".audit" / "audit.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    assert audit.read(tmp_path, 9) == [{"what": "ok"}]
