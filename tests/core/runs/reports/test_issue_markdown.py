"""A run as Markdown for an issue thread: against expected text, and whatever names and tokens hold."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

from core.errors import UsageError
from core.judging.ladder.noise_ratio import floor_test
from core.runs.file.evidence import (
    FLOAT32,
    OWN_DTYPE,
    PRECISION,
    RERUN,
    RUNGS,
    Check,
    Evidence,
    NarrowingFigures,
    Unmeasured,
)
from core.runs.file.records import VERDICTS, Provenance, SideHeader
from core.runs.reader import RunReader
from core.runs.reports.issue_markdown import issue_text
from core.runs.store.store import Store
from core.runs.views.verdicts import finding, position_ratios, shown_verdict
from core.runs.writer import RunWriter
from tests.core.runs.judged_runs import BLOCKS, CASES, EXACT_PASSED, OWN, RERUN_PASSED, judged_run, ratio_row
from tests.core.runs.made_runs import calm_sides, header_of
from tests.said import SAID

EXPECTED = """\
### `Judged: rounding`

|  |  |
| --- | --- |
| model | `sample_runs/model` at revision `sha256:c146` |
| dtype | bfloat16 |
| device | cpu (a chip) |
| versions | torch 2.13.0+cpu |
| prompts | 1 prompt, 96 positions, vocabulary 64 |
| captured | CREATED UTC |
| command | `python -m core capture --model sample_runs/model --prompt 'a b' --reference prefill --variant decode --dtype bfloat16` |

#### `decode` against `prefill`: rounding

In float32 the pair is 0.96 times this model's own rounding floor, and no position stands out. In bfloat16 it is 1.25 times the floor. Both flips are near ties, with margins of at most 1 ULP of bfloat16.

| figure |  |
| --- | --- |
| differing logits | 1,789 of 6,144 (29.1%) |
| largest difference | 0.1875 logits |
| rms of the difference | 0.009524 logits |
| largest distance | 2 ULPs of bfloat16 (mean 0.2915) |
| in row ULPs | largest 1.5, rms 0.0762 |
| flips | 2 of 96 positions |
| near ties | 2, of them ties 0 |
| KL, nats | mean 9.16e-05, largest 0.00439 |

| rung | outcome | what it says | control |
| --- | --- | --- | --- |
| rerun | passed | Each side gives the same bits when it is called again. | 'prefill' and 'decode', each called twice |
| own dtype | passed | In bfloat16 the pair is 1.25 times this model's own rounding floor. | 'decode' against 'prefill' in bfloat16, beside 4 reorderings of every linear map |
| float32 | passed | In float32 the pair is 0.96 times this model's own rounding floor, and no position stands out. | 'decode' against 'prefill' in float32, beside 4 reorderings of every linear map |

Flips:

| position | `prefill` | `decode` | margins, ULPs | largest difference there |
| --- | --- | --- | --- | --- |
| 10 | 0 `' w0'` | 1 `' w1'` | 1 / 1 | 0.1875 |
| 70 | 0 `' w0'` | 1 `' w1'` | 1 / 1 | 0.1875 |

Run `fixed`: http://localhost/overview?run=fixed
"""  # noqa: E501


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path / "runs")


def said(store: Store, run_id: str) -> str:
    with RunReader(store.path_of(run_id)) as run:
        return finding(run, run.pairs[0], run.positions(0)).sentence


def report(store: Store, run_id: str) -> str:
    with RunReader(store.path_of(run_id)) as run:
        return issue_text(run, run.pairs, "an address")


def test_the_report_is_the_expected_text(store):
    with RunReader(store.path_of(judged_run(store, "rounding", run_id="fixed"))) as run:
        text = issue_text(run, run.pairs, "http://localhost/overview?run=fixed")
        expected = EXPECTED.replace("CREATED", f"{run.created:%Y-%m-%d %H:%M}")
    assert "".join(line for line in text.splitlines(keepends=True) if "| not run |" not in line) == expected


def test_the_report_names_every_rung_in_order_and_what_those_take_that_were_not_run(store):
    text = report(store, judged_run(store, "rounding"))
    listed = re.findall(r"^\| ([\w ]+) \| (passed|not run) \| (.+) \| .*\|$", text, re.MULTILINE)
    assert [rung for rung, _, _ in listed] == [
        rung for rung in RUNGS if rung != PRECISION
    ]  # of a pair beyond its floor
    assert {rung for rung, outcome, _ in listed if outcome == "passed"} == {RERUN, OWN_DTYPE, FLOAT32}
    assert all(says.endswith(".") for _, _, says in listed)


@pytest.mark.spread(3)
@pytest.mark.parametrize("verdict", CASES)
def test_every_verdict_is_reported_with_every_row_it_rests_on(store, verdict):
    text = report(store, judged_run(store, verdict))
    assert f"`decode` against `prefill`: {verdict}\n" in text
    for row in CASES[verdict][2]:
        assert f"| {row.rung} | {row.outcome} |" in text


def test_a_report_of_a_pair_that_was_not_judged_says_so_and_guesses_nothing(store):
    text = report(store, judged_run(store, None))
    assert "against `prefill`: not judged" in text
    assert text.count("| not run |") == len(RUNGS) - 1  # a lower precision is asked only of a pair beyond its floor
    text = report(store, judged_run(store, None, kind="upload", request=None))
    assert "against `prefill`: undecided" in text


@pytest.mark.parametrize(
    ("ratio", "sentence"),
    [
        (1.2504, "In bfloat16 it is 1.25 times the floor."),
        (3, "In bfloat16 it is 3.00 times the floor."),
        (0.0312, "In bfloat16 it is 0.03 times the floor."),
    ],
)
def test_the_sentence_changes_when_the_row_does(store, ratio, sentence):
    rows = [RERUN_PASSED, EXACT_PASSED, ratio_row(Check.OWN_PAIR, "bfloat16", ratio, "passed", OWN.says)]
    assert said(store, judged_run(store, "rounding", evidence=rows)).startswith(f"{EXACT_PASSED.says} {sentence}")


@pytest.mark.parametrize(
    "row",
    [
        dataclasses.replace(OWN, figures=Unmeasured()),
        ratio_row(Check.OWN_PAIR, "bfloat16", None, "passed", OWN.says),
        Evidence(
            Check.NARROWING,
            "each side",
            NarrowingFigures(reference_to_float32_logits=1.0, variant_to_float32_logits=1.0),
            "passed",
            "Both move alike.",
        ),
    ],
)
def test_where_a_row_has_no_ratio_none_is_said(store, row):
    rows = [EXACT_PASSED, row]
    assert "In bfloat16 it is" not in said(store, judged_run(store, "rounding", evidence=rows))


def test_a_bugs_sentence_names_the_place_that_the_structure_row_names(store):
    rows = CASES["bug suspected"][2]
    assert "multiple of 16" in said(store, judged_run(store, "bug suspected"))
    assert "multiple of 16" not in said(
        store, judged_run(store, "bug suspected", evidence=[r for r in rows if r is not BLOCKS])
    )


@pytest.mark.parametrize(
    ("kind", "is_identical", "verdict", "shown"),
    [
        ("capture", False, None, "not judged"),
        ("capture", True, None, "identical"),
        ("upload", False, None, "undecided"),
        ("upload", True, None, "identical"),
        ("upload", True, "invalid dump", "invalid dump"),
        ("capture", True, "nondeterministic", "nondeterministic"),
    ],
)
def test_what_was_not_judged_is_never_called_more_than_its_bits_say(kind, is_identical, verdict, shown):
    assert shown_verdict(kind, is_identical, verdict) == shown


def test_every_verdict_there_is_has_a_case_here():
    assert set(CASES) == set(VERDICTS)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "float16"])
def test_ratios_by_position_are_those_the_verdict_was_taken_from(dtype):
    random = np.random.default_rng(0)
    floor = np.exp(random.normal(0, 1, (4, 500))) * 1e-6
    floor[:, 7] = 0
    pair = np.exp(random.normal(0, 1, 500)) * 1e-6
    test = floor_test(pair**2, floor**2, is_16_bits="16" in dtype)
    ours = position_ratios(pair, np.sqrt((floor**2).mean(axis=0)), dtype)
    assert ours == pytest.approx(test.by_position, rel=1e-9)


def test_names_and_tokens_of_strangers_stay_text(store):
    """Cells keep their number, code spans their fence, and nobody is mentioned."""
    header = dataclasses.replace(
        header_of("float32", (4,), 8),
        name="`a` | [x](http://evil) <img src=x>\n# b",
        provenance=Provenance("capture", "a|b`c", "", "@someone", "", 0, "", "see https://evil and @all | <b>"),
        vocabulary=dict.fromkeys(range(8), "`|``\n|"),
    )
    header = dataclasses.replace(
        header, sides=(SideHeader("ref|`", "prefill", "float32"), SideHeader("v\n|", "decode", "float32"))
    )
    sides = calm_sides(header)
    sides[1] = np.roll(sides[1], 1, axis=1)  # flips everywhere
    with RunWriter(store, header) as writer:
        for side, bits in enumerate(sides):
            writer.write(side, 0, bits)
        run_id = writer.finish()
    text = report(store, run_id)
    tables = [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]
    assert len(tables) == 4
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table}) == 1, table
    assert "@someone" not in text
    assert "@all" not in text
    assert "\\<b\\>" in text
    assert "https://evil" not in text
    assert text.splitlines()[0] == "### `` `a` \\| [x](http://evil) <img src=x> # b ``"
    assert "```" in tables[-1][-1]  # a token of two backticks is fenced by three


def test_more_than_five_flips_are_counted_and_five_are_shown(store):
    header = header_of("float32", (9,), 8)
    sides = calm_sides(header)
    sides[1] = np.roll(sides[1], 1, axis=1)
    with RunWriter(store, header) as writer:
        for side, bits in enumerate(sides):
            writer.write(side, 0, bits)
        run_id = writer.finish()
    text = report(store, run_id)
    assert "The first 5 of 9 flips:" in text
    assert len(text.split("flips:\n\n")[1].split("\n\n")[0].splitlines()) == 2 + 5


def test_show_prints_the_report_and_refuses_two_forms_at_once(store, monkeypatch, capsys):
    from core.commands.stored import show

    run_id = judged_run(store, "rounding", run_id="fixed")
    show(run_id, markdown=True, store=store.directory)
    printed = capsys.readouterr().out
    assert printed.splitlines()[:-1] == report(store, run_id).splitlines()[:-1]
    assert printed.splitlines()[-1] == "Run `fixed`: /overview?run=fixed"
    with pytest.raises(UsageError, match="two forms"):
        show(run_id, markdown=True, as_json_=True, store=store.directory)
    with pytest.raises(UsageError, check=SAID["no-variant-x-there-are-decode"].raised):
        show(run_id, markdown=True, variant="x", store=store.directory)
