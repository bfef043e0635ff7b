"""The upload routes in a process of their own, and a sender that speaks raw HTTP to them."""

from __future__ import annotations

import base64
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from starlette.testclient import TestClient

from tests.app.api.serving import listens
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[3]
TUS = {"Tus-Resumable": "1.0.0"}
OFFSET = {"Content-Type": "application/offset+octet-stream"}
_SERVER = """
import sys, uvicorn
from starlette.applications import Starlette
from app.uploads.tus import ROUTES
uvicorn.run(Starlette(routes=ROUTES), host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
"""


def about(name: str, **more: str) -> dict[str, str]:
    values = {"filename": name, **more}
    return {
        "Upload-Metadata": ",".join(
            f"{key} {base64.b64encode(value.encode()).decode()}" for key, value in values.items()
        )
    }


def announce(client: TestClient, length: int, name: str = "dump.npz", **more: str) -> str:
    """The address of a new upload."""
    answer = client.post("/api/uploads", headers=TUS | about(name, **more) | {"Upload-Length": str(length)})
    assert answer.status_code == 201, answer.text
    return answer.headers["Location"]


def send(client: TestClient, address: str, offset: int, body: bytes, **headers: str):
    return client.patch(address, headers=TUS | OFFSET | {"Upload-Offset": str(offset)} | headers, content=body)


def offset(client: TestClient, address: str) -> int:
    answer = client.head(address, headers=TUS)
    assert answer.status_code == 200
    return int(answer.headers["Upload-Offset"])


@dataclass
class Server:
    port: int
    process: subprocess.Popen

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=300)

    def ask(
        self, method: str, path: str, headers: dict[str, str], body: bytes = b""
    ) -> tuple[int, dict[str, str], bytes]:
        """One whole request over a connection of its own."""
        with self.connect() as line:
            line.sendall(head(method, path, headers | {"Content-Length": str(len(body)), "Connection": "close"}) + body)
            return answer_of(line)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(20)

    def memory_bytes(self, what: str = "VmRSS") -> int:
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(f"{what}:")) * 1024


def head(method: str, path: str, headers: dict[str, str]) -> bytes:
    lines = [
        f"{method} {path} HTTP/1.1",
        "Host: localhost",
        *(f"{key}: {value}" for key, value in headers.items()),
        "",
        "",
    ]
    return "\r\n".join(lines).encode()


def answer_of(line: socket.socket) -> tuple[int, dict[str, str], bytes]:
    data = b""
    while piece := line.recv(65536):
        data += piece
    first, _, body = data.partition(b"\r\n\r\n")
    status, *headers = first.decode().split("\r\n")
    return int(status.split()[1]), {k.lower(): v for k, v in (each.split(": ", 1) for each in headers)}, body


def serve(store: Path, port: int = 0, **environment: str) -> Server:
    if not port:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVER, str(port)],
        cwd=ROOT,
        env={**os.environ, "ULPSCOPE_STORE": str(store), **environment},
    )
    until(lambda: listens(port, process))
    return Server(port, process)
