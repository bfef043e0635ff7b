"""The end of a command that made a run: figures, verdict and what to type next for people, the id alone for scripts."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from core.capture_request import CaptureRequest
from core.commands.capturing import next_commands, tell_end
from core.runs.reader import RunReader

SAMPLES = Path(__file__).resolve().parents[2] / "runs"
RUN = "fresh-against-cached"


def test_people_see_figures_verdict_and_two_commands_and_a_script_takes_the_id_from_stdout(capfd):
    tell_end(RUN, [], "bar", False, SAMPLES)
    printed = capfd.readouterr()
    assert printed.out == f"{RUN}\n"
    figures = next(line for line in printed.err.splitlines() if "decode" in line and "999,370" in line)
    assert [part.strip() for part in figures.strip("│ \n").split("│")][:4] == [
        "decode",
        "999,370 of 2,985,984 (33.5%)",
        "0.366",
        "0.3438",
    ]
    assert "rounding  decode vs prefill\n" in printed.err
    assert re.findall(r"^next: (.*)$", printed.err, re.M) == [
        f"ulpscope show {RUN} --store {SAMPLES}",
        f"ulpscope verdict {RUN} --store {SAMPLES}    # the checks",
    ]


REQUEST = CaptureRequest(model="m", prompts=("a b",), variants=("decode",))


@pytest.mark.parametrize(
    ("prompt", "second"),
    [
        (
            "a b",
            "ulpscope judge --model m --prompt 'a b' --reference prefill --variant decode --dtype bfloat16"
            " --store 'my runs'    # rounding, or a bug?",
        ),
        ("x " * 200, "the same command with --judge: rounding, or a bug?"),
        ("a\nb", "the same command with --judge: rounding, or a bug?"),
    ],
)
def test_a_run_that_was_not_judged_is_followed_by_the_command_that_judges_it(monkeypatch, prompt, second):
    """As it can be pasted: quoted, with its store; a prompt of many lines is not repeated."""
    with RunReader(SAMPLES / f"{RUN}.duckdb") as run:
        request = dataclasses.replace(REQUEST, prompts=(prompt,)).to_json()
        provenance = dataclasses.replace(run.header.provenance, request=request)
        monkeypatch.setattr(run, "header", dataclasses.replace(run.header, provenance=provenance))
        monkeypatch.setattr(run, "pairs", tuple(dataclasses.replace(pair, verdict=None) for pair in run.pairs))
        assert next_commands(run, Path("my runs"), is_verdict_printed=False) == (
            f"ulpscope show {RUN} --store 'my runs'",
            second,
        )
