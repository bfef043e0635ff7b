"""Continuations: where variants part from the reference, and whether the stored logits say the same."""

from __future__ import annotations

import pytest

from core.errors import UsageError
from core.runs.reader import RunReader
from core.runs.store.store import Store
from core.runs.views.continuations import continuations, logits_of_chosen
from tests.core.runs.cache_runs import PARTING, continued_run
from tests.core.runs.made_runs import copied


@pytest.fixture(params=[True, False], ids=["confirmed", "unconfirmed"])
def run(request, tmp_path):
    store = Store(tmp_path / "runs")
    with RunReader(store.path_of(continued_run(store, is_confirmed=request.param))) as opened:
        yield opened, request.param


def test_every_variant_of_every_continued_prompt_says_where_it_parts(run):
    found = continuations(run[0])
    assert [(one.prompt, one.variant, one.position, one.agreed) for one in found] == [
        (0, "decode", PARTING, 2),
        (0, "decode+batch:8", None, 8),
        (1, "decode", None, 8),
        (1, "decode+batch:8", None, 8),
    ]
    assert (found[0].step, found[0].chosen) == (2, (12, 22))
    assert (found[1].step, found[1].chosen) == (None, None)
    assert continuations(run[0], 1) == found[2:]


@pytest.mark.spread(1)
def test_stored_logits_confirm_a_parting_only_where_they_prefer_both_generated_tokens(run):
    """The twin: the same run whose stored logits prefer the reference's token on both sides."""
    opened, is_confirmed = run
    parted = continuations(opened)[0]
    here = opened.positions(0).iloc[PARTING]
    assert parted.is_confirmed(here) is is_confirmed
    reference, variant = logits_of_chosen(opened, parted)
    assert reference.tolist() == [10, 9.875]
    assert variant.tolist() == ([10, 10.125] if is_confirmed else [10, 9.875])


def test_where_sides_never_part_there_are_no_two_logits(run):
    with pytest.raises(UsageError, match="never part"):
        logits_of_chosen(run[0], continuations(run[0])[1])


def test_a_run_that_only_scored_its_prompts_has_no_continuations(tmp_path):
    with RunReader(copied(tmp_path / "scored.duckdb")) as scored:
        assert continuations(scored) == []
