"""Trainer vs. rollout on the Overview."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.judging.ingest import ingest
from core.runs.store.store import Store
from tests.app.opening import open_page

CASES = Path(__file__).resolve().parents[2] / "cases" / "rollouts"


@pytest.fixture
def page(store):
    run = ingest(Store(store), [CASES / "slime/train_data/2.pt"], name="rollout 2")
    return open_page("overview", run=run)


def test_the_headline_figures_are_those_of_the_tokens(page):
    assert [(each.label, each.value) for each in page.metric] == [
        ("Mean |r|", "0.01212"),
        ("KL (k3)", "0.0001271"),
        ("ESS", "0.9998"),
        ("Largest |r|", "0.03995"),
    ]


def test_a_framework_gives_its_own_names(page):
    page.selectbox(key="framework").select("slime").run()
    (table,) = [each.value for each in page.dataframe if "definition" in each.value]
    values = dict(zip(table["figure"], table["value"], strict=True))
    assert values["train/train_rollout_logprob_abs_diff"] == "0.01225"  # not 0.01212, the mean over tokens
    assert not page.exception


@pytest.mark.parametrize("part", ["Distribution", "Depends on", "Sequences"])
def test_every_part_is_drawn(page, part):
    page.session_state["mismatch_part"] = part
    page.run()
    assert not page.exception
