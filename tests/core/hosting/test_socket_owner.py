"""Whose socket a connection's other end is: the kernel's tables as printed, and connections of another user."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from core.hosting import socket_owner

NOBODY = 65_534
ANOTHER = 54_321  # a user id that nobody has
HEADER = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode"
# 127.0.0.1:51204 to 127.0.0.1:8501, on a little-endian processor: our end and the client's, both of uid 1000.
TCP = (
    "   0: 0100007F:2135 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 31337 1 0",
    "   1: 0100007F:2135 0100007F:C804 01 00000000:00000000 00:00000000 00000000  1000        0 31338 1 0",
    "   2: 0100007F:C804 0100007F:2135 01 00000000:00000000 02:000000A1 00000000    33        0 31339 2 0",
    "   3: 0100007F:C805 0100007F:2135 06 00000000:00000000 03:000008DA 00000000     0        0 0 3 0000000000000000",
    "   4: 0100007F:C806 0100007F:2135 04 00000000:00000001 01:00000015 00000000     0        0 0 3 0000000000000000",
)
# [::1]:51204 to [::1]:8501, and ::ffff:127.0.0.1:51300 to ::ffff:127.0.0.1:8501.
TCP6 = (
    "   0: 00000000000000000000000001000000:C804 00000000000000000000000001000000:2135 01 00000000:00000000 00:00000000"
    " 00000000    33        0 4711 1 0",
    "   1: 0000000000000000FFFF00000100007F:C864 0000000000000000FFFF00000100007F:2135 01 00000000:00000000 00:00000000"
    " 00000000    34        0 4712 1 0",
)


@pytest.mark.parametrize(
    ("client", "server", "order", "row"),
    [
        (("127.0.0.1", 51_204), ("127.0.0.1", 8501), "little", "0100007F:C804 0100007F:2135"),
        (("127.0.0.1", 51_204), ("127.0.0.1", 8501), "big", "7F000001:C804 7F000001:2135"),
        (("127.0.0.1", 80), ("10.1.2.3", 8501), "little", "0100007F:0050 0302010A:2135"),
        (
            ("::1", 51_204),
            ("::1", 8501),
            "little",
            "00000000000000000000000001000000:C804 00000000000000000000000001000000:2135",
        ),
        (
            ("2001:db8::a", 1),
            ("2001:db8:1:2:3:4:5:6", 2),
            "little",
            "B80D01200000000000000000" + "0A000000:0001 " + "B80D0120" + "02000100" + "04000300" + "06000500:0002",
        ),
        (
            ("2001:db8::a", 1),
            ("::1", 2),
            "big",
            "20010DB800000000000000000000000A:0001 00000000000000000000000000000001:0002",
        ),
    ],
)
def test_an_end_is_written_as_the_kernel_does(client, server, order, row):
    assert socket_owner.rows_of(client, server, order)[0] == row


@pytest.mark.parametrize("mapped", ["", "::ffff:"])
def test_an_address_of_ipv4_is_looked_for_in_both_tables_however_it_is_given(mapped):
    rows = socket_owner.rows_of((f"{mapped}127.0.0.1", 51_300), (f"{mapped}127.0.0.1", 8501), "little")
    assert rows == (
        "0100007F:C864 0100007F:2135",
        "0000000000000000FFFF00000100007F:C864 0000000000000000FFFF00000100007F:2135",
    )


@pytest.mark.parametrize(
    ("lines", "client", "uid"),
    [
        (TCP, ("127.0.0.1", 0xC804), 33),  # the client's end, not ours, which is the server's user's
        (TCP, ("127.0.0.1", 0xC807), None),
        (TCP, ("127.0.0.1", 0xC805), None),  # TIME_WAIT: printed as root's
        (TCP, ("127.0.0.1", 0xC806), None),  # closed by its program and not gone yet: printed as root's
        (TCP, ("::1", 0xC804), None),
        (TCP6, ("::1", 0xC804), 33),
        (TCP6, ("127.0.0.1", 0xC864), 34),
        (TCP6, ("127.0.0.1", 0xC804), None),
        ((), ("127.0.0.1", 0xC804), None),
    ],
)
def test_the_owner_is_that_of_the_other_end_alone(lines, client, uid):
    server = ("::1" if client[0] == "::1" else "127.0.0.1", 8501)
    assert socket_owner.owner_in((HEADER, *lines), socket_owner.rows_of(client, server, "little")) == uid


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table in place of the kernel's, in which 127.0.0.1:51204 talks to 127.0.0.1:8501."""
    place = tmp_path / "tcp"
    monkeypatch.setattr(socket_owner, "TABLES", (place, tmp_path / "tcp6"))  # IPv6 is switched off
    return place


def _written(place: Path, uid: int) -> None:
    row = socket_owner.rows_of(("127.0.0.1", 51_204), ("127.0.0.1", 8501))[0]
    place.write_text(f"{HEADER}\n   0: {row} 01 00000000:00000000 00:00000000 00000000 {uid:5d}        0 7 1 0\n")


@pytest.mark.parametrize(("uid", "is_own"), [(None, True), (0, False), (33, False), (ANOTHER, False)])
def test_the_same_user_is_own_and_nobody_else_not_even_root(uid, is_own, table, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    _written(table, 1000 if uid is None else uid)
    assert socket_owner.is_own(("127.0.0.1", 51_204), ("127.0.0.1", 8501)) is is_own
    assert not socket_owner.is_own(("127.0.0.1", 51_205), ("127.0.0.1", 8501))


@pytest.mark.parametrize(
    ("known", "is_own"), [("0 0 4294967295", True), ("0 1000 1\n1 100000 65536", False), (None, True)]
)
def test_the_stand_in_for_unknown_users_is_nobodys_own(known, is_own, table, tmp_path, monkeypatch):
    """A server that runs as that user in a user namespace would take everybody for itself."""
    monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
    monkeypatch.setattr(socket_owner, "_KNOWN_USERS", tmp_path / "uid_map")
    if known is not None:
        (tmp_path / "uid_map").write_text(f"         {known}\n")
    _written(table, NOBODY)
    assert socket_owner.is_own(("127.0.0.1", 51_204), ("127.0.0.1", 8501)) is is_own


def test_a_table_that_leaves_a_line_out_is_read_again_and_one_that_cannot_be_read_lets_nobody_in(table, monkeypatch):
    found = iter((None, os.geteuid()))
    monkeypatch.setattr(socket_owner, "owner_in", lambda *_: next(found))
    table.write_text(HEADER)
    assert socket_owner.is_own(("127.0.0.1", 51_204), ("127.0.0.1", 8501))
    table.unlink()
    assert not socket_owner.is_own(("127.0.0.1", 51_204), ("127.0.0.1", 8501))


@pytest.mark.parametrize(
    ("system", "release", "can"),
    [
        ("linux", "6.1.0-18-amd64", True),
        ("linux", "5.15.153.1-microsoft-standard-WSL2", False),
        ("linux", "4.4.0-19041-Microsoft", False),
        ("darwin", "23.5.0", False),
        ("win32", "10", False),
    ],
)
def test_the_kernel_can_be_asked_where_it_is_linux_and_knows_every_program(system, release, can, table, monkeypatch):
    table.touch()
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "release", lambda: release)
    assert socket_owner.can_be_asked() is can
    table.unlink()
    assert not socket_owner.can_be_asked()


needs_kernel = pytest.mark.skipif(not socket_owner.can_be_asked(), reason="the kernel does not say whose a socket is")
CONNECT = """
import os, socket, sys
if len(sys.argv) > 4:
    os.setgid(int(sys.argv[4])); os.setuid(int(sys.argv[4]))
line = socket.socket(socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET)
line.bind((sys.argv[1], 0)); line.connect((sys.argv[2], int(sys.argv[3])))
sys.stdin.read()
"""


@contextmanager
def connection(own: str, server: str, *uid: str) -> Iterator[tuple[tuple[str, int], tuple[str, int]]]:
    """A connection of another process: its two ends, as a server is told of them."""
    family = socket.AF_INET6 if ":" in server else socket.AF_INET
    with closing(socket.socket(family)) as listening:
        listening.bind((server, 0))
        listening.listen()
        there = f"::ffff:{server}" if ":" in own and ":" not in server else server
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", CONNECT, own, there, str(listening.getsockname()[1]), *uid],
            stdin=subprocess.PIPE,
        )
        listening.settimeout(60)
        line, client = listening.accept()
        try:
            yield client[:2], line.getsockname()[:2]
        finally:
            line.close()
            process.communicate(b"")


def _has_ipv6() -> bool:
    with closing(socket.socket(socket.AF_INET6)) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            return False
    return True


@needs_kernel
@pytest.mark.parametrize(
    ("own", "server"),
    [("127.0.0.1", "127.0.0.1"), ("127.3.2.1", "127.0.0.1"), ("::ffff:127.0.0.1", "127.0.0.1"), ("::1", "::1")],
)
def test_a_program_of_this_user_is_own_and_one_of_another_user_is_not(own, server):
    if ":" in own and not _has_ipv6():
        pytest.skip("there is no IPv6 here")
    with connection(own, server) as ends:
        assert socket_owner.owner_of(*ends) == os.geteuid()
        assert socket_owner.is_own(*ends)
        assert socket_owner.owner_of(*ends[::-1]) == os.geteuid()  # our own end, which says nothing of the client
    assert not socket_owner.is_own(*ends)  # gone
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    with connection(own, server, str(NOBODY)) as ends:
        assert socket_owner.owner_of(*ends) == NOBODY
        assert not socket_owner.is_own(*ends)
        assert socket_owner.is_own(*ends[::-1])  # the fault that would let anybody in: our own end is looked at
