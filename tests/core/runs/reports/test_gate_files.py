"""JUnit XML that both common schemas take, Markdown that no name breaks, and files that appear
whole.
"""

import os
import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from core.errors import StoreError
from core.evidence import FAILED, PASSED
from core.runs.file.records import Prompt
from core.runs.reports.conditions import UNDECIDED, Outcome
from core.runs.reports.gate import GateReport, figure_text
from core.runs.reports.gate_files import append, junit_text, markdown_text, write_whole

HOSTILE = [
    "a\x00b\x1b[2J",
    "]]>&lt;<script>\"'",
    "one\ntwo | three `four`",
    "\ud83d alone",
    "\ufffe\u202e",
    "x" * 5000,
    "  ",
    "🙂.é",
]


def row(position, **figures):
    usual = {
        "prompt": 0,
        "position": position,
        "max_abs": 0.5,
        "max_ulps": 7,
        "nonfinite_mismatch": 0,
        "reference_token": 1,
        "variant_token": 2,
        "reference_margin": 0.25,
        "variant_margin": None,
        "reference_margin_ulps": 4,
        "variant_margin_ulps": None,
        "is_flip": True,
        "kl": None,
    }
    return {**usual, **figures}


def report(name="today", text="kl>0.01", token=" the"):
    outcomes = (
        Outcome(
            "golden",
            name,
            text,
            FAILED,
            0.02,
            "nats",
            f"'{name}' has a KL of up to 0.02 nats.",
            row(1),
        ),
        Outcome("golden", name, "flips", PASSED, 0, "positions", "all is well."),
        Outcome("golden", "other", "verdict", UNDECIDED, "undecided", "", "nothing decides it."),
        Outcome(
            "golden",
            "other",
            "max-abs>0.5",
            FAILED,
            0.75,
            "logits",
            "worse.",
            row(0, max_abs=0.75),
        ),
    )
    return GateReport(
        outcomes,
        (Prompt(2, (5, 1), ("x", token)),),
        {1: token},
        (f"a note about {name}",),
    )


def test_junit_has_a_suite_a_pair_and_a_test_a_condition():
    suites = ET.fromstring(junit_text(report()))
    assert [suite.attrib for suite in suites] == [
        {"name": "today vs golden", "tests": "2", "failures": "1", "skipped": "0"},
        {"name": "other vs golden", "tests": "2", "failures": "1", "skipped": "1"},
    ]
    assert [test.attrib["name"] for test in suites.iter("testcase")] == [
        "kl>0.01",
        "flips",
        "verdict",
        "max-abs>0.5",
    ]
    failure = suites.find("testsuite/testcase/failure")
    assert failure.attrib == {"message": "'today' has a KL of up to 0.02 nats."}
    assert "became 2, margins 0.25" in str(failure.text)


def test_markdown_has_the_worst_position_and_a_row_a_condition():
    lines = markdown_text(report()).splitlines()
    assert lines[0] == "### ULPscope gate: failed"
    assert lines[2] == "2 failed, 1 undecided, 1 passed."
    assert "condition | pair | figure" in lines[6]
    assert "position 0 (after 'x'): 1" in lines[4]
    assert "`kl>0.01` | `today` vs `golden`" in lines[8]
    assert "vs `golden` | 0.75 logits" in lines[11]
    assert lines[-1] == "Note: a note about today"


def test_a_figure_of_one_position_is_singular():
    texts = [
        figure_text(Outcome("a", "b", "flips", FAILED, count, "positions", ""))
        for count in (1, 1200)
    ]
    assert texts == ["1 position", "1,200 positions"]


@pytest.mark.parametrize(
    ("differences", "flips", "mismatches", "strip"),
    [
        ([0.75, 0.376, 0.374, 0.0, 1e-300, None], [0], [], "█▅▄ ▁ \n^     "),
        ([0.0, 0.75, 0.75], [], [0], "×██"),
        # two positions a column
        ([0.1] * 159 + [0.8], [159], [], "▁" * 79 + "█\n" + " " * 79 + "^"),
        ([0.0, 0.0], [], [], ""),
    ],
)
def test_markdown_draws_the_largest_differences_of_the_worst_pair(
    differences,
    flips,
    mismatches,
    strip,
):
    rows = [
        row(
            place,
            max_abs=value,
            is_flip=place in flips,
            nonfinite_mismatch=int(place in mismatches),
        )
        for place, value in enumerate(differences)
    ]
    text = markdown_text(
        replace(report(), rows={("golden", "other"): rows, ("golden", "today"): []}),
    )
    assert text.partition("```text\n")[2].partition("\n```")[0] == strip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_leave_junit_well_formed_and_stay_in_their_cell_of_the_markdown(name):
    hostile = report(name=name, text=f"kl>{name}", token=name)
    xml = junit_text(hostile)
    text = markdown_text(hostile)
    assert all(c.isprintable() or c == "\n" for c in xml)
    assert len(ET.fromstring(xml.encode())) == 2
    text.encode()
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert [re.sub(r"\\.", "", row).count("|") for row in rows] == [6] * 6
    assert "<script" not in re.sub(r"(`+).*?\1|\\.", "", text)


def test_a_file_is_written_whole_over_an_older_one_and_through_a_link(tmp_path):
    (tmp_path / "real.xml").write_text("old")
    (tmp_path / "link.xml").symlink_to("real.xml")
    write_whole(tmp_path / "link.xml", "né")
    assert (tmp_path / "link.xml").is_symlink()
    assert (tmp_path / "real.xml").read_text() == "né"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.xml", "real.xml"]


def test_what_is_no_file_is_never_replaced(tmp_path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("folder", "pipe", "none/x.xml"):
        with pytest.raises(StoreError, match=r"is not a file|cannot be written"):
            write_whole(tmp_path / name, "x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "pipe"]
    with pytest.raises(StoreError, match="cannot be written"):
        append(tmp_path / "folder", "x")


def test_a_summary_is_added_to_what_is_there(tmp_path):
    append(tmp_path / "summary.md", "first\n")
    append(tmp_path / "summary.md", "second\n")
    assert (tmp_path / "summary.md").read_text() == "first\nsecond\n"
