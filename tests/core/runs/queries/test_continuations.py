"""Continuations: where variants diverge from the reference, and whether the stored logits say the
same.
"""

import pytest

from core.runs.queries.flips import continuations, outcome
from core.runs.queries.layers import records
from core.runs.reader import RunReader
from tests.core.runs.cache_runs import PARTING, continued_run
from tests.core.runs.made_runs import copied, opened


@pytest.fixture(params=[True, False], ids=["confirmed", "unconfirmed"])
def run(request, store):
    with opened(store, continued_run(store, is_confirmed=request.param)) as found:
        yield found, request.param


def test_every_variant_of_every_continued_prompt_says_where_it_parts(run):
    found = records(continuations(run[0]))
    columns = "prompt variant pair parting_position agreed_tokens reference_token variant_token"
    assert [tuple(row[name] for name in columns.split()) for row in found] == [
        (0, "decode", 0, PARTING, 2, 12, 22),
        (0, "decode+batch:8", 1, None, 8, None, None),
        (1, "decode", 0, None, 8, None, None),
        (1, "decode+batch:8", 1, None, 8, None, None),
    ]
    assert {row["compared_tokens"] for row in found} == {8}
    assert found[0]["variant_continuation"] == " w10 w11 <b>two</b>\n w23 w24 w25 w26 w27"
    assert found[0]["reference_margin_ulps"] == 2
    assert found[0]["max_abs"] == (0.25 if run[1] else 0.0)


def test_stored_logits_confirm_a_parting_only_if_they_prefer_both_generated_tokens(run):
    """The twin: the same run whose stored logits prefer the reference's token on both sides."""
    opened, is_confirmed = run
    assert [row["is_confirmed"] for row in records(continuations(opened))] == [
        is_confirmed,
        None,
        None,
        None,
    ]


def test_the_sentence_names_the_first_prompt_that_parts(run):
    found = continuations(run[0])
    assert "1 of 2 prompts diverge" in outcome(found[found["pair"] == 0])
    assert "agree in all of 8 generated tokens" in outcome(found[found["pair"] == 1])


def test_a_run_that_only_scored_its_prompts_has_no_continuations(tmp_path):
    with RunReader(copied(tmp_path / "scored.duckdb")) as scored:
        assert continuations(scored).empty
