"""User whose socket the other end of a connection within this machine is, as Linux's tables of TCP sockets say."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterable
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Literal

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))  # of this process's network namespace
_KNOWN_USERS = Path("/proc/self/uid_map")  # of this process's user namespace
_EVERYBODY = ["0", "0", "4294967295"]
_STAND_IN = 65_534  # for users that a user namespace does not know

End = tuple[str, int]


def can_be_asked() -> bool:
    """Return whether the kernel says whose socket a connection's other end is.

    Under WSL it does not: what Windows' own browser sends comes from a relay of root's, or from no socket of Linux.
    """
    is_linux = sys.platform == "linux" and "microsoft" not in platform.release().lower()
    return is_linux and os.access(TABLES[0], os.R_OK)


def is_own(client: End, server: End) -> bool:
    """Return whether the socket at the `client` end of a connection to `server` is one of this process's user.

    False too where no socket of this machine is that end: it was closed since, or is elsewhere.
    """
    uid = owner_of(client, server)
    return uid == os.geteuid() and not _may_be_anybody(uid)


def owner_of(client: End, server: End) -> int | None:
    """User id of the socket at the `client` end of a connection to `server`; None where there is none.

    Takes 3 ms where there is one, and up to 75 ms where there is none: all buckets of a table are walked, 262,144 here.
    """
    wanted = rows_of(client, server)
    for _ in range(2):  # a line may be left out of a table that changes while it is read
        for table in TABLES[-len(wanted) :]:  # an IPv6 address is in the second alone
            with suppress(OSError), table.open("r", encoding="ascii") as lines:
                uid = owner_in(lines, wanted)
                if uid is not None:
                    return uid
    return None


def owner_in(lines: Iterable[str], wanted: Iterable[str]) -> int | None:
    """User id in the line of a socket whose own and other end are as wanted.

    A socket without an inode is nobody's any more: it was closed, waits for its last packets, and is shown as root's.
    """
    rows = tuple(wanted)
    for line in lines:
        if any(row in line for row in rows):
            fields = line.split()
            if " ".join(fields[1:3]) in rows and fields[9] != "0":
                return int(fields[7])
    return None


def rows_of(client: End, server: End, order: Literal["little", "big"] = sys.byteorder) -> tuple[str, ...]:
    """Ends of the client's socket as the tables write them; for IPv4 also as an IPv6 socket has them."""
    ends = [(_plain(host), port) for host, port in (client, server)]
    if any(isinstance(address, IPv6Address) for address, _ in ends):
        return (" ".join(_written(address, port, order) for address, port in ends),)
    mapped = [(IPv6Address(f"::ffff:{address}"), port) for address, port in ends]
    return tuple(" ".join(_written(address, port, order) for address, port in each) for each in (ends, mapped))


def _plain(host: str) -> IPv4Address | IPv6Address:
    address = ip_address(host)
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


def _written(address: IPv4Address | IPv6Address, port: int, order: Literal["little", "big"]) -> str:
    """An end as the kernel prints it: each 32 bits of the address as a number of the processor's, then the port."""
    words = (address.packed[start : start + 4] for start in range(0, len(address.packed), 4))
    return f"{''.join(f'{int.from_bytes(word, order):08X}' for word in words)}:{port:04X}"


def _may_be_anybody(uid: int) -> bool:
    """Return whether a user id is the one by which a user namespace shows all users that it does not know."""
    if uid != _STAND_IN:
        return False
    try:
        return _KNOWN_USERS.read_text(encoding="ascii").split() != _EVERYBODY
    except OSError:  # a kernel without user namespaces
        return False
