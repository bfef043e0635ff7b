"""How long work says where it is: a bar on a terminal, and in a pipe a line every ten seconds, whatever the work is
inside of.
"""

from __future__ import annotations

import ast
import io
import json
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from core.commands import comparing
from core.commands.terminal import console

ROOT = Path(__file__).resolve().parents[3]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every line of progress, printed as soon as somebody looks rather than after ten seconds."""
    printed: list[str] = []
    monkeypatch.setattr(console, "EVERY_SECONDS", 0.001)
    monkeypatch.setattr(console.err, "print", lambda line, **_: printed.append(line))
    return printed


def seen(lines: list[str], text: str) -> bool:
    """Waits, inside of the work that a test holds up, until a line says so."""
    is_seen = threading.Event()
    for _ in range(60_000):
        if any(text in line for line in list(lines)):
            return True
        is_seen.wait(0.001)
    return False


def test_a_line_says_the_stage_how_much_is_done_how_long_it_took_and_what_is_left():
    clock = Clock()
    told = console.Told(clock)
    clock.now += 10
    assert told.line() == "starting, 10 s"
    told.tell("loading the model")
    clock.now += 10
    assert told.line() == "loading the model, 20 s"
    told.tell("decode", 100, 884)
    clock.now += 20
    told.tell("decode", 184, 884)
    assert told.line() == "decode: 184 of 884 positions, 40 s, about 3 min left"  # 84 in 20 s, 700 to go: 167 s


def test_what_is_left_is_told_by_the_pace_of_this_count_and_not_of_the_one_before():
    clock = Clock()
    told = console.Told(clock)
    told.tell("a writes", 0, 4, "prompts")
    clock.now += 100
    told.tell("a writes", 4, 4, "prompts")
    told.tell("a", 0, 100)
    clock.now += 5
    told.tell("a", 50, 100)
    assert told.line() == "a: 50 of 100 positions, 2 min, about 5 s left"


def test_work_that_says_nothing_for_long_still_has_a_line_every_ten_seconds(lines):
    """One call into C may take minutes: lines come from a thread, and end with the work."""
    with console.steps() as say:
        say("one long forward")
        assert seen(lines, "one long forward")
        lines.clear()
        assert seen(lines, "one long forward")  # and another
    printers = [thread for thread in threading.enumerate() if thread.name == "ulpscope-progress"]
    assert printers == []


def test_lines_of_json_stay_as_they_are_and_alone(lines, capsys):
    with console.steps("json") as say:
        say("decode", 3, 10)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"stage": "decode", "rows_done": 3, "rows_total": 10}
    ]
    assert lines == []


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_there_is_a_bar(monkeypatch):
    drawn = _Terminal()
    monkeypatch.setattr(sys, "stderr", drawn)
    monkeypatch.setattr(console, "err", console._Printable(file=drawn, force_terminal=True, width=120))
    with console.steps() as say:
        say("[b]decode", 1234, 5000)
    assert "[b]decode" in drawn.getvalue()
    assert "1,234/5,000 positions" in drawn.getvalue()


def test_a_comparison_of_a_large_dump_tells_how_far_it_is(cli, lines, tmp_path, monkeypatch):
    """The work is held up until its line was read, so nobody has to be slow for it."""
    np.savez(tmp_path / "dump.npz", a=np.zeros((3, 8), np.float32), b=np.ones((3, 8), np.float32))
    real, found = comparing.judged_report_of_dump, []

    def held(dump, on_progress):
        def tell(done, total):
            on_progress(done, total)
            found.append(seen(lines, f"comparing: {done} of {total} positions"))

        return real(dump, tell)

    monkeypatch.setattr(comparing, "judged_report_of_dump", held)
    monkeypatch.setattr(console, "EVERY_SECONDS", 0.001)
    assert cli("compare", tmp_path / "dump.npz").returncode == 0
    assert found == [True]


def _draws_a_bar_of_its_own(source: str) -> bool:
    imported = [node.module for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    return "rich.progress" in imported


def test_no_command_draws_a_bar_that_would_be_silent_in_a_pipe():
    commands = sorted((ROOT / "core" / "commands").rglob("*.py"))
    assert [path.name for path in commands if _draws_a_bar_of_its_own(path.read_text())] == ["console.py"]
    assert _draws_a_bar_of_its_own("from rich.progress import Progress")  # the twin: one would be found


@pytest.mark.parametrize(
    "command", ["capturing", "generating", "verdicts", "ops", "throughput", "comparing", "keeping", "pushing"]
)
def test_every_command_of_long_work_tells_where_it_is(command):
    source = (ROOT / "core" / "commands" / f"{command}.py").read_text()
    called = {
        node.func.id
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert "steps" in called
