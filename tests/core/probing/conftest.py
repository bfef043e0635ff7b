"""Real servers that are probed, and one that misbehaves."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app.api.serving import free_port
from tests.core.probing.model_gguf import write_gguf

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def small_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    write_gguf(ROOT / "sample_runs" / "model", path)
    return path


@pytest.fixture(scope="session")
def llama(small_gguf: Path) -> Iterator[str]:
    """Address of a llama.cpp server with the small model in float32."""
    script = Path(__file__).with_name("llama_server.py")
    command = [sys.executable, str(script), str(small_gguf), str(free_port())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address.startswith("http"), f"no llama.cpp server came up: {address}"
        yield address
        process.kill()
