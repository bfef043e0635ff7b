"""Answers of which little or nothing can be compared: a verdict, a report and every view, and no
division by 0.
"""

import json
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax
from scipy.stats import entropy

from core.commands.tables import print_pairs
from core.document.drawing import png_file
from core.errors import DumpError
from core.judging.ingest import ingest
from core.judging.lists import judge_responses
from core.judging.stored import explain_pair
from core.numerics.top_tokens import summary_of
from core.responses.alignment import align
from core.responses.formats import read_payload
from core.responses.pairing import pairs_of
from core.responses.records import ResponseSide
from core.runs.queries.elements import top_of_sides
from core.runs.queries.flips import flip_table, telling_place
from core.runs.reader import RunReader
from core.runs.reports.conditions import parse_conditions
from core.runs.reports.issue_markdown import issue_text
from core.runs.reports.report_json import report_of_run
from core.runs.reports.run_json import run_json
from core.verdict import IDENTICAL

CONDITIONS = (
    "bits",
    "flips",
    "flips:margin>0.5",
    "flips:margin>2ulps",
    "kl>0.1",
    "max-abs>0.1",
    "same-top1<0.9",
)


def answer(*tokens):
    """A chat answer: each token with its value and its list of the best."""
    content = []
    for text, value, top in tokens:
        listed = [{"token": other, "logprob": sent} for other, sent in top.items()]
        content.append(
            {
                "token": text,
                "logprob": value,
                "top_logprobs": listed,
            }
        )
    text = "".join(token for token, _, _ in tokens)
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "logprobs": {"content": content},
    }
    return {
        "object": "chat.completion",
        "choices": [choice],
        "usage": {"prompt_tokens": 4},
    }


def chosen(*tokens):
    return answer(*((text, value, {}) for text, value in tokens))


TWO = {"The": -0.7, "A": -0.9}
SHAPES = {
    "other chosen tokens": (
        chosen(("The", -0.7), (" sky", -0.3)),
        chosen(("A", -0.69), (" clear", -0.9)),
    ),
    "one chosen token each": (chosen(("The", -0.7)), chosen(("A", -0.69))),
    "lists without a common token": (
        answer(("The", -0.7, TWO)),
        answer(("So", -0.5, {"So": -0.5, "It": -1.0})),
    ),
    "a list and a chosen token": (answer(("The", -0.7, TWO)), chosen(("So", -0.5))),
    "the same token without a value": (chosen(("The", None)), chosen(("The", None))),
    "a value on one side": (chosen(("The", -0.7)), chosen(("The", None))),
    "lists of one": (answer(("The", -0.7, {"The": -0.7})), answer(("A", -0.7, {"A": -0.7}))),
    "one token, equal": (chosen(("The", -0.7)), chosen(("The", -0.7))),
    "a longer answer": (chosen(("The", -0.7)), chosen(("The", -0.7), (" end", -0.1))),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_pair_of_which_little_can_be_compared_is_a_run_with_a_verdict(
    shape,
    store,
    tmp_path,
):
    paths = [tmp_path / "A.json", tmp_path / "B.json"]
    for path, payload in zip(paths, SHAPES[shape], strict=True):
        path.write_text(json.dumps(payload))
    path = store.path_of(ingest(store, paths))
    with RunReader(path) as run:
        # nothing that is made of a run may divide by 0 or lack a row
        json.dumps(run_json(run, with_positions=True), allow_nan=False)
        issue_text(run, run.pairs, "/overview")
        print_pairs(run)
        (pair,) = run.pairs
        ((report,), _) = report_of_run(run)
        for condition in parse_conditions(CONDITIONS):
            condition.judge(report)
        explain_pair(run, 0)
        png_file(run, pair)
        table = run.positions(0)
        top_of_sides(run, {"reference": 0, "variant": 1}, *telling_place(table))
        flip_table(run, 0)
        assert table["max_abs"].dropna().ge(0).all()
        # of two rows one is compared
        is_half = shape == "a longer answer"
        is_equal = pair.summary.finite > 0 and not pair.summary.neq
        assert (pair.verdict == IDENTICAL) == (is_equal and not is_half)


def sides_of(*payloads):
    sides = []
    for name, payload in zip("AB", payloads, strict=True):
        sides.append(ResponseSide(name, tuple(read_payload(payload, name))))
    return align(sides)


VALUES = st.sampled_from([0.0, -0.0, -0.25, -1.5, -9999.0, -3.4e38, None, -1e-9, 5e-4, 0.7, 12.5])
TEXTS = st.sampled_from(["a", "b", "c"])
ANSWERS = st.lists(
    st.tuples(TEXTS, VALUES, st.dictionaries(TEXTS, VALUES, max_size=3)),
    min_size=1,
    max_size=4,
)


@pytest.mark.parametrize("kept", [1, 5, 20])
def test_the_kl_of_lists_is_at_most_that_of_whole_rows(kept):
    random = np.random.default_rng(kept)
    rows = log_softmax(random.normal(0, 3, (2, 8, 64)), axis=2)
    payloads = []
    for side in rows:
        tokens = []
        for row in side.tolist():
            best = np.argsort(row)[::-1][:kept].tolist()
            top = {f"t{token}": row[token] for token in best}
            tokens.append(("t0", row[0], top))
        payloads.append(answer(*tokens))
    sides = sides_of(*payloads)
    (pair,) = pairs_of(sides)
    whole = entropy(*np.exp(rows), axis=1)
    assert (pair.figures.least_kl <= whole + 1e-12).all()
    assert (pair.figures.least_kl >= 0).all()


def test_some_rows_of_other_places_are_no_rounding_in_lists_either():
    """Top tokens of 0.9 at most rows, and of another token at a sixth of them."""
    likely = math.log(0.9)
    unlikely = math.log(0.05)
    tokens = [("a", likely, {"a": likely, "b": unlikely})] * 12
    moved = [("a", unlikely, {"b": likely, "a": unlikely})] * 2
    sides = sides_of(answer(*tokens), answer(*tokens[2:], *moved))
    (verdict,) = judge_responses(sides, pairs_of(sides))
    assert verdict.name == "bug suspected"
    # (0.9 - 0.05) ln(0.9 / 0.05) at 2 of 12 rows; 0.05 is of other tokens
    assert "at least 0.409 nats" in verdict.because


def consistent(tokens):
    """The answer, with a token's value where its list has it."""
    return answer(*((text, top.get(text, value), top) for text, value, top in tokens))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ANSWERS, ANSWERS)
def test_any_two_answers_are_judged_or_refused_in_a_sentence(one, other):
    try:
        sides = sides_of(consistent(one), consistent(other))
        pairs = pairs_of(sides)
    except DumpError:
        return
    (verdict,) = judge_responses(sides, pairs)
    assert verdict.name != IDENTICAL or (pairs[0].common_values and not pairs[0].differing)
    summary_of(pairs[0].figures)
