"""The end of a command that made a run: figures, verdict and what to type next for people, the id
alone for scripts.
"""

import re

from core.commands.capturing import tell_end
from tests.places import RUNS

RUN = "fresh-against-cached"


def test_people_see_figures_verdict_and_two_commands_and_a_script_takes_the_id_from_stdout(capfd):
    tell_end(RUN, [], "bar", False, RUNS)
    printed = capfd.readouterr()
    assert printed.out == f"{RUN}\n"
    figures = next(line for line in printed.err.splitlines() if "999,370" in line)
    cells = figures.strip("│ \n").split("│")
    assert [cell.strip() for cell in cells[:4]] == [
        "decode",
        "999,370 of 2,985,984 (33.5%)",
        "0.366",
        "0.344",
    ]
    assert "729 positions x 4,096 tokens, ULPs of bfloat16" in printed.err
    assert "rounding  decode vs prefill\n" in printed.err
    assert re.findall(r"^next: (.*)$", printed.err, re.M) == [
        f"ulpscope show {RUN} --store {RUNS}",
        f"ulpscope verdict {RUN} --store {RUNS}    # the checks",
    ]
