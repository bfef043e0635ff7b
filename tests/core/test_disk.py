"""Files that several processes use at once."""

import errno
import os
import stat
import subprocess
import sys

import pytest

from core import disk


@pytest.mark.parametrize("kind", ["a file", "a directory"])
def test_a_lock_holds_against_others_until_it_is_let_go_of(tmp_path, kind):
    path = tmp_path if kind == "a directory" else tmp_path / "lock"
    with disk.hold(path), pytest.raises(BlockingIOError):
        disk.lock(path, wait=False)
    # the twin: it is free
    os.close(disk.lock(path, wait=False))


def test_a_lock_is_of_the_file_that_has_the_name_then(tmp_path, monkeypatch):
    """Who renames a file under its lock puts it aside: who waited for it gets the next."""
    path = tmp_path / "log"
    flock = disk.fcntl.flock

    def late(descriptor, how):
        if not (tmp_path / "aside").exists():
            path.rename(tmp_path / "aside")
        flock(descriptor, how)

    monkeypatch.setattr(disk.fcntl, "flock", late)
    descriptor = disk.lock(path)
    assert os.fstat(descriptor).st_ino == path.stat().st_ino
    os.close(descriptor)


@pytest.mark.parametrize("place", ["a link", "a pipe"])
def test_what_is_no_file_is_neither_locked_nor_waited_for(tmp_path, place):
    path = tmp_path / "x"
    if place == "a link":
        path.symlink_to(tmp_path / "elsewhere")
    else:
        os.mkfifo(path)
    with pytest.raises(OSError, match=r"symbolic links|not a regular file"):
        disk.lock(path)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("descriptors", ["/proc/self/fd", "/none"])
def test_a_file_is_replaced_whole_and_has_its_mode_from_the_start(
    descriptors,
    tmp_path,
    monkeypatch,
):
    monkeypatch.setattr(disk, "_DESCRIPTORS", descriptors)
    path = tmp_path / "x"
    for body in (b"old", b"new"):
        disk.write_atomic(path, body, mode=0o600)
        assert path.read_bytes() == body
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        disk.write_atomic(path, b"mine", is_new=True)
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("x", b"new")]


def test_a_writer_that_is_killed_leaves_nothing(tmp_path):
    code = (
        "import pathlib, sys, time; from core import disk\n"
        "with disk.writing(pathlib.Path(sys.argv[1])) as file:\n"
        "    file.write(bytes(1 << 20)); print('half', flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, tmp_path / "x"],
        stdout=subprocess.PIPE,
    ) as writer:
        assert writer.stdout.readline() == b"half\n"
        writer.kill()
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_fails_leaves_the_older_file_and_nothing_else(tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "x").write_text("old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device"):
        disk.write_atomic(tmp_path / "x", b"new")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("x", "old")]


@pytest.mark.parametrize("kind", ["a file", "a folder"])
def test_what_is_made_by_name_has_its_name_only_when_it_is_whole(tmp_path, kind):
    inner = "deep/x" if kind == "a folder" else ""

    def write(place):
        if inner:
            (place / "deep").mkdir(parents=True)
        (place / inner).write_text("whole")

    def fail(place):
        write(place)
        raise RuntimeError("a fault on the way")

    with pytest.raises(RuntimeError, match="on the way"), disk.making(tmp_path / "made") as place:
        fail(place)
    assert list(tmp_path.iterdir()) == []
    with disk.making(tmp_path / "made") as place:
        write(place)
        assert [each.name.startswith(disk.WRITING) for each in tmp_path.iterdir()] == [True]
    assert [each.name for each in tmp_path.iterdir()] == ["made"]
    assert (tmp_path / "made" / inner).read_text() == "whole"


def test_what_is_discarded_takes_nothing_along_that_it_links_to(tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    for name in ("link", "none"):
        disk.discard(tmp_path / name)
    assert [each.name for each in tmp_path.iterdir()] == ["kept"]


def _refusing(*_, **__):
    raise OSError(errno.EPERM, "Operation not permitted")


@pytest.mark.parametrize("links", [True, False], ids=["with hard links", "without"])
def test_a_move_never_replaces_even_if_the_target_appears_in_between(tmp_path, links, monkeypatch):
    source = tmp_path / "a"
    target = tmp_path / "b"
    source.write_text("source")
    target.write_text("target")
    if not links:
        monkeypatch.setattr(os, "link", _refusing)
    with pytest.raises(FileExistsError):
        disk.place_new(source, target)
    assert source.read_text() == "source"
    assert target.read_text() == "target"
    target.unlink()
    disk.place_new(source, target)
    assert not source.exists()
    assert target.read_text() == "source"
