"""The routes in a server process of their own, on a store of its own, for what a client in this process cannot show."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.waiting import until

ROOT = Path(__file__).resolve().parents[3]
_SERVER = """
import sys, uvicorn
from starlette.applications import Starlette
from app.routes import ROUTES
uvicorn.run(Starlette(routes=ROUTES), host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
"""


@dataclass
class Server:
    port: int
    process: subprocess.Popen
    store: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def resident_bytes(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) << 10


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def environment(store: Path, **more: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ULPSCOPE_")}
    return inherited | {"ULPSCOPE_STORE": str(store), "ULPSCOPE_SAMPLES": ""} | more


@contextmanager
def serving(store: Path, port: int | None = None, **more: str) -> Iterator[Server]:
    port = port or free_port()
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVER, str(port)], cwd=ROOT, env=environment(store, **more), stderr=subprocess.DEVNULL
    )
    try:
        until(lambda: listens(port, process))
        yield Server(port, process, store)
    finally:
        process.terminate()
        process.wait(20)


def listens(port: int, process: subprocess.Popen) -> bool:
    """Whether the server takes connections yet; AssertionError if it has ended."""
    assert process.poll() is None, "the server has ended"
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def dump(positions: int = 4, vocab: int = 64, **more: np.ndarray) -> bytes:
    reference = np.random.default_rng(0).standard_normal((positions, vocab)).astype(np.float32)
    file = io.BytesIO()
    np.savez(file, reference=reference, variant=np.nextafter(reference, np.float32(9)), **more)
    return file.getvalue()
