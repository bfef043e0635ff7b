"""The dashboard as a server of its own, with settings that are not this process's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2

from tests.app.api.serving import ROOT, free_port
from tests.waiting import until

SERVE = ("core", "serve")


def start_server(store: Path, log: Path, *arguments: str, **settings: str) -> subprocess.Popen:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ULPSCOPE_")}
    environment |= {
        "ULPSCOPE_STORE": str(store),
        **{f"ULPSCOPE_{name.upper()}": value for name, value in settings.items()},
    }
    with log.open("wb") as file:
        return subprocess.Popen([sys.executable, "-m", *arguments], cwd=ROOT, env=environment, stdout=file, stderr=file)


def _answers(url: str, process: subprocess.Popen, log: Path) -> bool:
    """Whether the server is there yet; AssertionError, with its log, if it has ended."""
    assert process.poll() is None, log.read_text()
    with suppress(httpx2.HTTPError):
        return httpx2.get(f"{url}/_stcore/health", timeout=1).status_code in (200, 401)
    return False


@contextmanager
def serving(store: Path, log: Path, **settings: str) -> Iterator[str]:
    """`python -m core serve`, from its first answer on: its address."""
    url = f"http://127.0.0.1:{free_port()}"
    process = start_server(store, log, *SERVE, "--port", url.rpartition(":")[2], **settings)
    try:
        until(lambda: _answers(url, process, log))
        yield url
    finally:
        process.terminate()
        process.wait(20)
