"""A run as Markdown for an issue thread: compared with expected text, for any names and tokens."""

import dataclasses
import json
import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from core.checks.pair import WIDE
from core.evidence import CHECK_GROUPS
from core.numerics.statistic import floor_test
from core.runs.file.records import Provenance, SideHeader
from core.runs.queries.by_position import floor_ratios
from core.runs.queries.verdicts import answer_of, shown_verdict
from core.runs.reader import RunReader
from core.runs.reports.issue_markdown import issue_text
from core.runs.reports.markdown import plain, report_address
from core.runs.writer import RunWriter
from core.verdict import Verdict
from tests.core.runs.damaging import damaged
from tests.core.runs.judged_runs import CASES, REQUEST, judged_run
from tests.core.runs.made_runs import calm_sides, header_of, opened, write_run

# What a reader of the thread sees before unfolding anything.
SHOWN = """\
### `decode` vs `prefill`: rounding

In float32 the pair is 0.96 times this model's own rounding floor, and no position stands out.

| metric |  |
| --- | --- |
| RMS / noise floor | 0.96x in float32 (limit 4x) |
| flips | 2 of 96 positions (2.1%) |
| logits that differ | 1,789 of 6,144 (29.1%) |
| RMS difference | 0.0762 row ULPs of bfloat16 |
| largest difference | 0.188 logits, 1.5 row ULPs |
| KL, nats | mean 9.16e-5, max 0.00439 |

| flip at position | `prefill` | `decode` | margins, ULPs | largest difference there |
| --- | --- | --- | --- | --- |
| 10 | 0 `' w0'` | 1 `' w1'` | 1 / 1 | 0.188 |
| 70 | 0 `' w0'` | 1 `' w1'` | 1 / 1 | 0.188 |

Run `Judged: rounding` · `model` · bfloat16 · https://ulps.example.org/overview?run=fixed

Picture, to drag in here: `ulpscope export fixed --png pair.png`
"""
MOST_SHOWN = 25


def report(store, run_id):
    with opened(store, run_id) as run:
        return issue_text(run, run.pairs, "an address")


def unfolded(text):
    return text.partition("<details>")[0].rstrip("\n") + "\n"


def test_what_is_seen_is_the_expected_text(store):
    with opened(store, judged_run(store, "rounding", run_id="fixed")) as run:
        address = "https://ulps.example.org/overview?run=fixed"
        text = issue_text(run, run.pairs, address)
        assert unfolded(text) == SHOWN
        # dead for every other reader
        local = issue_text(run, run.pairs, "http://127.0.0.1:8501/overview?run=fixed")
        assert local == text.replace(f" · {address}", "")


def test_many_variants_and_flips_stay_within_25_lines_and_a_bug_comes_first(store):
    header = header_of("float32", (9,), 8)
    names = [SideHeader(name, name, "float32") for name in ("prefill", "b", "c", "d")]
    header = dataclasses.replace(header, sides=tuple(names))
    with RunWriter(store, header) as writer:
        for side in range(4):
            # every row of a variant is shifted, so every argmax flips
            writer.write(side, 0, np.roll(calm_sides(header)[0], side, axis=1))
        writer.write_verdict(Verdict("bug suspected", "Planted.", (), pair=2))
        run_id = writer.finish()
    text = report(store, run_id)
    assert len(unfolded(text).splitlines()) <= MOST_SHOWN
    assert text.startswith("### `d` vs `prefill`: bug suspected\n")
    assert "<summary>2 other variants</summary>" in text
    assert "### `b` vs `prefill`" in text
    flips = text.split("| flip at position (5 of 9) |")[1].split("\n\n")[0]
    assert len(flips.splitlines()) == 2 + 5


def test_what_is_run_elsewhere_names_nothing_of_this_machine(store):
    request = dataclasses.replace(
        REQUEST,
        model="/home/me/models/tiny",
        prompts=(),
        prompt_files=("/home/me/p.txt",),
        name="mine",
        build="b7",
    )
    run_id = judged_run(store, "rounding", request=request, model="/home/me/models/tiny")
    text = report(store, run_id)
    assert "/home/me" not in text
    assert "\nulpscope capture --model MODEL --prompts prompts.jsonl" in text
    assert "--reference prefill --variant decode" in text
    ids = json.loads(text.split("<<'END'\n")[1].split("\nEND")[0])["token_ids"]
    assert ids == list(range(2, 98))
    assert "MODEL is a folder with the weights of `sha256:c146`" in text


def test_a_model_of_the_hub_or_of_a_package_is_named_with_how_to_get_it(store):
    hub = dataclasses.replace(REQUEST, model="org/tiny", revision="0a1b")
    run_id = judged_run(store, "rounding", request=hub, model="org/tiny", revision="0a1b")
    text = report(store, run_id)
    assert "ulpscope capture --model org/tiny --prompts prompts.jsonl" in text
    assert "--revision 0a1b" in text
    packaged = dataclasses.replace(REQUEST, model="smollm2")
    text = report(store, judged_run(store, "rounding", request=packaged, model="smollm2"))
    assert "\nulpscope model smollm2\n" in text


def test_the_prompt_of_a_flip_is_in_the_report(store):
    text = report(store, judged_run(store, "rounding"))
    assert "```text\n w0 w1 w2" in text
    text = report(store, judged_run(store, "rounding", with_token_ids=False))
    assert "Prompt:" not in text


def test_a_character_of_several_tokens_is_whole_in_the_prompt(store):
    judged_run(store, "rounding")
    (path,) = store.directory.glob("*.duckdb")
    damaged(
        path,
        "UPDATE token SET text = CASE position WHEN 0 THEN ' <0xE2>' WHEN 1 THEN '<0x82><0xAC>'"
        " ELSE '.' END",
    )
    with RunReader(path) as run:
        assert "```text\n \u20ac." in issue_text(run, run.pairs, "")


def test_names_between_backticks_stay_code():
    assert plain("at `model.layers.0`, `a`") == "at `model.layers.0`, `a`"
    assert plain("<b> `c") == "\\<b\\> 'c"
    assert "www." not in plain("www.example.org")  # a link on GitHub
    assert plain("a&commat;b & c") == "a\\&commat;b & c"  # an entity would become a mention


@pytest.mark.parametrize(
    ("public_url", "page", "address"),
    [
        ("", "", "http://localhost:8501/overview?run=r"),
        (
            "",
            "http://10.0.0.5:8600/base/overview?run=q",
            "http://10.0.0.5:8600/base/overview?run=r",
        ),
        (
            "https://ulps.example.org/",
            "http://10.0.0.5:8600/overview",
            "https://ulps.example.org/overview?run=r",
        ),
    ],
)
def test_the_link_is_absolute(public_url, page, address):
    assert report_address({"run": "r"}, public_url, page) == address


@pytest.mark.spread(3)
@pytest.mark.parametrize("verdict", CASES)
def test_every_verdict_is_reported_with_every_row_it_rests_on_and_at_most_25_lines_unfolded(
    store,
    verdict,
):
    text = report(store, judged_run(store, verdict))
    assert f"`decode` vs `prefill`: {verdict}\n" in text
    for row in CASES[verdict][2]:
        is_explained = (verdict, row.outcome) == ("lower precision", "failed")
        outcome = "explained" if is_explained else row.outcome
        assert f"| {outcome} | {CHECK_GROUPS[row.group]} |" in text
    assert len(unfolded(text).splitlines()) <= MOST_SHOWN
    assert text.count("<details>") == text.count("</details>") == 2


def test_an_answer_has_size_place_and_the_checks_that_can_still_be_run(store):
    with opened(store, judged_run(store, "bug suspected")) as run:
        (pair,) = run.pairs
        answer = answer_of(run, pair)
        summary = dataclasses.replace(pair.summary, bit_identical=True)
        equal = dataclasses.replace(pair, summary=summary)
        # of a recomputation in float32
        assert "RMS / noise floor" not in answer_of(run, equal).facts
    assert answer.facts == {
        "first divergence": "position 32",
        "RMS / noise floor": "24.3x in float32 (limit 4x)",
    }
    assert answer.next_command == ""
    assert answer.not_run == ()
    assert [row for _, row in answer.titled_checks] == CASES["bug suspected"][2]
    run_id = judged_run(store, None, kind="upload", request=None)
    with opened(store, run_id) as run:
        answer = answer_of(run, run.pairs[0])
    assert answer.next_command == f"ulpscope verdict {run_id} --float32 PAIR_IN_FLOAT32.npz"
    assert answer.not_run == (
        "sampler",
        "rerun",
        "neighbors",
        "compute dtype",
        "float32 comparison",
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
def test_what_was_not_judged_is_never_called_more_than_its_bits_say(
    kind,
    is_identical,
    verdict,
    shown,
):
    assert shown_verdict(kind, is_identical, verdict) == shown


def test_ratios_by_position_are_those_the_verdict_was_taken_from():
    random = np.random.default_rng(0)
    floor = np.exp(random.normal(0, 1, (4, 500))) * 1e-6
    # nothing can be divided by it: the verdict takes a hundredth of the median floor there
    floor[:, 7] = 0
    pair = np.exp(random.normal(0, 1, 500)) * 1e-6
    test = floor_test(pair**2, floor**2, WIDE)
    floor_rms = np.sqrt((floor**2).mean(axis=0))
    stored = pd.DataFrame({"pair_rms": pair, "floor_rms": floor_rms})
    run = SimpleNamespace(rows=lambda table, **keys: stored)
    figures = SimpleNamespace(compute_dtype="float32", nonfinite_mismatch=0)
    ours = floor_ratios(run, 0, figures)["ratio"].to_numpy()
    assert ours == pytest.approx(test.by_position, rel=1e-9)


def test_names_and_tokens_of_strangers_stay_text(store):
    """Cells keep their number, code spans their fence, and no user is mentioned."""
    header = dataclasses.replace(
        header_of("float32", (4,), 8),
        name="`a` | [x](http://evil) <img src=x>\n# b",
        provenance=Provenance(
            "capture",
            "a|b`c",
            "",
            "@someone",
            "",
            0,
            "",
            "see https://evil and @all | <b>",
        ),
        vocabulary=dict.fromkeys(range(8), "`|``\n|"),
        sides=(SideHeader("ref|`", "prefill", "float32"), SideHeader("v\n|", "decode", "float32")),
    )
    sides = calm_sides(header)
    sides[1] = np.roll(sides[1], 1, axis=1)  # flips everywhere
    text = report(store, write_run(store, header, sides).stem)
    tables = [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]
    assert len(tables) == 4
    for table in tables:
        columns = {len(re.findall(r"(?<!\\)\|", line)) for line in table}
        assert len(columns) == 1, table
    assert "@someone" not in text
    assert "@all" not in text
    assert "\\<b\\>" in text
    assert "https://evil" not in text
    assert "Run `` `a` \\| [x](http://evil) <img src=x> # b `` ·" in text
    assert "```" in tables[1][-1]  # a token of two backticks is fenced by three
