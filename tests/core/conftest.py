"""The command line, run in this process with a store of its own; one S3 server for all tests of a
process.
"""

import json
import sys
import threading
from dataclasses import dataclass

import pytest

from core.__main__ import main
from core.commands.terminal import console
from core.runs.store.store import Store
from tests.core.runs.store import s3_server
from tests.places import ROOT


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str

    def succeeded(self):
        assert self.returncode == 0, self.stderr
        return self

    @property
    def json(self):
        """What it printed with --json."""
        assert self.stdout, self.stderr
        return json.loads(self.stdout)

    @property
    def refusal(self):
        """The one sentence in which it refused its input, after notes on that."""
        assert (self.returncode, self.stdout) == (2, ""), self.stderr
        *notes, sentence = self.stderr.splitlines()
        assert all(note.startswith("note: ") for note in notes), self.stderr
        return sentence


def environment(tmp_path):
    return {
        "ULPSCOPE_STORE": str(tmp_path / "runs"),
        "ULPSCOPE_SAMPLES": "",
        "HF_HUB_OFFLINE": "1",
    }


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "runs")


@pytest.fixture
def cli(tmp_path, monkeypatch, capfd):
    """Run `ulpscope ...` in this process, with a store of its own."""
    monkeypatch.chdir(ROOT)
    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(
        console,
        "EVERY_SECONDS",
        threading.TIMEOUT_MAX,
    )  # however slow the machine is, stderr holds what it says

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["ulpscope", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as exit_info:
            main()
        printed = capfd.readouterr()
        return Done(int(exit_info.value.code or 0), printed.out, printed.err)

    return run


@pytest.fixture(scope="session")
def server():
    """(address, faults)"""
    with s3_server.served() as running:
        yield running
