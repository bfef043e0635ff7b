"""Progress of long work: a bar on a terminal, lines elsewhere, JSON for programs."""

import io
import json
import sys

import pytest

from core.commands.terminal import console


class _Terminal(io.StringIO):
    def isatty(self):
        return True


def test_on_a_terminal_there_is_a_bar(monkeypatch):
    drawn = _Terminal()
    monkeypatch.setattr(sys, "stderr", drawn)
    monkeypatch.setattr(
        console,
        "err",
        console._Printable(file=drawn, force_terminal=True, width=120),
    )
    with console.steps() as say:
        say("[b]decode", 1234, 5000)
    assert "[b]decode" in drawn.getvalue()
    assert "1,234/5,000 positions" in drawn.getvalue()


@pytest.mark.parametrize(
    ("seconds", "lines"),
    [(0.0, ["decode: 184 of 884 positions, 0 s"]), (10.0, [])],
)
def test_elsewhere_a_line_follows_the_last_one_after_ten_seconds(
    seconds,
    lines,
    capfd,
    monkeypatch,
):
    monkeypatch.setattr(console, "EVERY_SECONDS", seconds)
    with console.steps() as say:
        say("decode", 184, 884)
    assert capfd.readouterr().err.splitlines() == lines


def test_programs_get_a_line_of_json_for_every_stage(capfd):
    with console.steps("json") as say:
        say("loading")
        say("decode", 1, 2)
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert lines == [{"stage": "loading"}, {"stage": "decode", "rows_done": 1, "rows_total": 2}]
