"""The dashboard as a server process of its own, for what no client in this process shows, and a
dump to send it.
"""

import io
import os
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx2
import numpy as np

from tests.places import ROOT, RUNS
from tests.waiting import until


@dataclass(frozen=True)
class Server:
    """A running dashboard: its address, its store, its process."""

    url: str
    store: Path
    process: subprocess.Popen
    ready_seconds: float

    @property
    def port(self):
        return int(self.url.rpartition(":")[2])


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def start(
    store,
    script=Path("app/main.py"),
    port=0,
    **settings,
):
    """Return a server that answers. settings: of its configuration, `store` for ULPSCOPE_STORE."""
    port = port or free_port()
    began = time.perf_counter()
    settings = {"store": str(store), "samples": str(RUNS), **settings}
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("ULPSCOPE_")
    }
    environment |= {f"ULPSCOPE_{name.upper()}": value for name, value in settings.items()}
    options = ["--server.headless", "true", "--server.port", str(port)]
    store.parent.mkdir(parents=True, exist_ok=True)
    log = store.parent / "server.log"
    with log.open("ab") as file:
        command = [sys.executable, "-m", "streamlit", "run", str(script), *options]
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file, stderr=file)

    def is_ready():
        assert process.poll() is None, log.read_text()
        return answers(f"http://127.0.0.1:{port}")

    until(is_ready, about=log.read_text)
    return Server(f"http://127.0.0.1:{port}", store, process, time.perf_counter() - began)


def answers(url):
    """Whether a dashboard is up at `url`."""
    with suppress(httpx2.HTTPError):
        # 401: up, behind a sign-in
        return httpx2.get(f"{url}/_stcore/health", timeout=1).status_code in (200, 401)
    return False


@contextmanager
def serving(store, *, port=0, **settings):
    """A server for as long as the block lasts."""
    server = start(store, port=port, **settings)
    try:
        yield server
    finally:
        server.process.terminate()
        server.process.wait(20)


def dump(positions=4, vocab=64, **more):
    reference = np.random.default_rng(0).standard_normal((positions, vocab)).astype(np.float32)
    file = io.BytesIO()
    np.savez(file, reference=reference, variant=np.nextafter(reference, np.float32(9)), **more)
    return file.getvalue()
