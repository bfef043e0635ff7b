"""How long work says where it is: a bar on a terminal, and in a pipe a line every ten seconds, whatever the work is
inside of.
"""

from __future__ import annotations

import io
import sys
import threading

import pytest

from core.commands.terminal import console


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


def test_work_that_says_nothing_for_long_still_has_a_line_every_ten_seconds(lines):
    """One call into C may take minutes: lines come from a thread, and end with the work."""
    with console.steps() as say:
        say("one long forward")
        assert seen(lines, "one long forward")
        lines.clear()
        assert seen(lines, "one long forward")  # and another
    printers = [thread for thread in threading.enumerate() if thread.name == "ulpscope-progress"]
    assert printers == []


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
