"""A lease on a name among the objects of a URL: one machine at a time holds it, and one that died loses it.

Its object is put where nobody has the name, which a backend decides (core.runs.store.objects), and says when it was
renewed last, by its holder's clock. Clocks of machines may differ by minutes: S3 refuses who is 15 off. Of two that
take over a dead one's lease in the same moment both may hold it; what they write is never put over another's.
"""

from __future__ import annotations

import json
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ...errors import StoreError
from .objects import Objects

LEASE_SECONDS = 1200.0  # after which one that was not renewed is nobody's
RENEW_SECONDS = 120.0


@contextmanager
def held(objects: Objects, name: str, machine: str) -> Iterator[bool]:
    """Hold a name as long as the context lasts; False where another machine holds it. machine: an id of this one, of
    which the caller knows that no other process of it holds the name: what it left when it was killed is taken over.
    """
    said = {"host": socket.gethostname(), "machine": machine, "since": time.time(), "token": secrets.token_hex(8)}
    if not _take(objects, name, said):
        yield False
        return
    is_over = threading.Event()
    renewing = threading.Thread(target=_renew, args=(objects, name, said, is_over), daemon=True)
    renewing.start()
    try:
        yield True
    finally:
        is_over.set()
        renewing.join()
        with suppress(StoreError):
            if _said(objects, name).get("token") == said["token"]:
                objects.remove(name)


def is_alive(said: Any) -> bool:
    """True of what a lease says that was renewed of late."""
    renewed = said.get("renewed") if isinstance(said, dict) else None
    return isinstance(renewed, int | float) and abs(time.time() - renewed) < LEASE_SECONDS


def _take(objects: Objects, name: str, said: dict[str, Any]) -> bool:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "lease"
        path.write_bytes(_body(said))
        for _ in range(2):
            with suppress(FileExistsError):
                objects.put_new(path, name)
                return bool(_said(objects, name).get("token") == said["token"])
            there = _said(objects, name)
            if is_alive(there) and there.get("machine") != said["machine"]:
                return False
            objects.remove(name)  # of a machine that died, or of a process of this one
    return False


def _renew(objects: Objects, name: str, said: dict[str, Any], is_over: threading.Event) -> None:
    while not is_over.wait(RENEW_SECONDS):
        with suppress(StoreError):  # it lasts longer than most outages
            objects.write(name, _body(said))


def _body(said: dict[str, Any]) -> bytes:
    return json.dumps({**said, "renewed": time.time()}).encode()


def _said(objects: Objects, name: str) -> dict[str, Any]:
    """Content of the lease there; empty where there is none, or it cannot be read."""
    try:
        found = json.loads(objects.read(name) or b"{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
