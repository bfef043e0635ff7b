"""The command line, run in this process with a store of its own."""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from core.__main__ import main
from core.commands.terminal import console

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


def environment(tmp_path: Path) -> dict[str, str]:
    return {"ULPSCOPE_STORE": str(tmp_path / "runs"), "ULPSCOPE_SAMPLES": "", "HF_HUB_OFFLINE": "1"}


@pytest.fixture
def cli(tmp_path, monkeypatch, capfd):
    """Run `python -m core ...` in this process, with a store of its own."""
    monkeypatch.chdir(ROOT)
    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(
        console, "EVERY_SECONDS", threading.TIMEOUT_MAX
    )  # however slow the machine is, stderr holds what it says

    def run(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["python -m core", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capfd.readouterr()
        return Done(int(ended.value.code or 0), printed.out, printed.err)

    return run
