"""The audit log: nothing is lost or torn by several writers, rotation, a full disk or a killed one, and nothing in it
comes alive.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
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
