"""The KV cache page, the continuations of the Flips page and their lines on the overview, on runs whose every figure is
planted.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from app.shell import glossary
from core.judging.ingest import ingest
from core.runs.reader import RunReader
from core.runs.tables.kv_cache import KvPart
from core.runs.views.kv_cache import by_layer, summarize
from tests.app.opening import codes, figures_of, opened, said
from tests.core.runs.cache_runs import PARTING, both, cache, continued_run, kv_run
from tests.covering import few

ROOT = Path(__file__).resolve().parents[3]

pytestmark = pytest.mark.usefixtures("own_store")


@pytest.fixture
def continued(built, own_store, monkeypatch) -> str:
    """The id of a run with continuations, which tests only read; the store is its own."""
    monkeypatch.setenv("ULPSCOPE_STORE", str(built(continued_run)))
    return "continued"


def figures(app: AppTest) -> dict[str, str]:
    return {metric.label: metric.value for metric in app.metric}


def test_the_page_tells_how_much_differs_and_where_it_begins(own_store):
    bits = cache(0, 8, 74, 128)
    later = np.zeros((8, 67, 128), np.uint16)
    later.ravel()[:13_086] = 1
    change = np.concatenate([np.zeros((8, 7, 128), np.uint16), later], axis=1)  # from position 7 on
    parts = both(KvPart(0, 0, "key", 0, bits), bits ^ change) + both(KvPart(0, 0, "value", 0, bits), bits.copy())
    app = opened("kv_cache", run=kv_run(own_store, parts, lengths=(74,)))
    assert app.title[0].value == "KV cache"
    assert "13,086 of 151,552 (8.6%) elements differ" in said(app)
    assert "first in layer 0's keys" in said(app)
    assert "13,086 of 75,776** elements of layer 0's keys" in said(app)
    assert app.metric[0].help == "13,086 of 75,776 elements"
    assert figures(app) == {
        "Keys differ": "17.3%",
        "Values differ": "0.0%",
        "RMS row ULPs": figures(app)["RMS row ULPs"],
        "Max row ULPs": figures(app)["Max row ULPs"],
        "First layer": "0",
        "Its first head": "0",
        "Its first position": "7",
    }


@pytest.mark.parametrize("measure", few(["neq_share", "max_row_ulps", "max_ulps", "rms"], "rms", "max_row_ulps"))
def test_every_measure_draws_and_its_caption_says_the_unit(continued, measure):
    app = opened("kv_cache", run=continued, variant="decode")
    app.segmented_control(key="kv_measure").set_value(measure).run()
    assert not app.exception
    unit = {
        "neq_share": "share of a head's elements",
        "max_row_ulps": "row ULPs of bfloat16, linear",
        "max_ulps": "ULPs of bfloat16, log",
        "rms": "in the unit of the cache, log",
    }
    assert unit[measure] in said(app)
    assert len(figures_of(app)) == 3


def test_figures_are_of_the_prompt_or_of_all_prompts(own_store):
    run_id = continued_run(own_store)
    with RunReader(own_store.path_of(run_id)) as run:
        table = run.kv(0)
    whole, first = summarize(table), summarize(table[table["prompt"] == 0])
    assert whole is not None
    assert first is not None
    app = opened("kv_cache", run=run_id, variant="decode")
    assert f"{first.together.neq:,} of {first.together.elements:,}" in said(app)
    app.segmented_control(key="kv_scope").set_value("all prompts").run()
    assert f"{whole.together.neq:,} of {whole.together.elements:,}" in said(app)
    assert whole.together.neq > first.together.neq
    shown = app.dataframe[0].value
    assert shown["differ"].tolist() == by_layer(table)["neq"].tolist()


def test_equal_caches_are_a_sentence_and_no_empty_plot(continued):
    app = opened("kv_cache", run=continued, variant="decode+batch:8")
    assert "equal in all 3,072 elements" in app.success[0].value
    assert "4 layers, 2 key/value heads" in app.success[0].value
    assert not figures_of(app)
    assert "logits do differ" not in said(app)


def test_equal_caches_under_differing_logits_say_where_to_look(own_store):
    bits = cache(0, positions=3)
    app = opened("kv_cache", run=kv_run(own_store, both(KvPart(0, 0, "key", 0, bits), bits.copy())))
    assert "The logits do differ" in app.success[0].value


def test_a_run_without_caches_says_what_to_do(own_store):
    run_id = kv_run(own_store, [])
    app = opened("kv_cache", run=run_id)
    assert "--kv" in app.info[0].value
    assert codes(app) == []  # of a run that does not say by which command it was made, no other is shown
    uploaded = ingest(own_store, [ROOT / "tests" / "cases" / "flips_fp16.npz"])
    assert "dump of logits holds no" in opened("kv_cache", run=uploaded).info[0].value


def test_a_variant_without_caches_leads_to_one_that_has_them(own_store):
    bits = cache(0, positions=3)
    parts = [(0, KvPart(0, 0, "key", 0, bits)), (2, KvPart(0, 0, "key", 0, bits ^ 1))]
    app = opened("kv_cache", run=kv_run(own_store, parts, sides=3), variant="side_1")
    assert "have: `side_2`" in app.info[0].value
    next(button for button in app.button if button.label == "Show side\\_2").click().run()
    assert not app.exception
    assert "100.0%" in said(app)


def test_a_prompt_without_caches_points_to_those_that_have_them(own_store):
    bits = cache(0)
    app = opened("kv_cache", run=kv_run(own_store, both(KvPart(1, 0, "key", 0, bits), bits ^ 1)), prompt="0")
    assert "Prompt 0 has no caches" in app.info[0].value
    app.segmented_control(key="kv_scope").set_value("all prompts").run()
    assert not app.exception
    assert figures(app)["Keys differ"] == "100.0%"


def test_a_nan_in_a_cache_is_called_more_than_rounding(own_store):
    bits = cache(0)
    changed = bits.copy()
    changed[0, 0, 0] = 0x7FC0
    app = opened("kv_cache", run=kv_run(own_store, both(KvPart(1, 0, "key", 0, bits), changed)), prompt="1")
    assert "infinity on one side" in app.error[0].value
    assert "only in 1 element of the caches" in app.error[0].value


@pytest.mark.parametrize(("kind", "other"), [("key", "Values"), ("value", "Keys")])
def test_keys_or_values_alone_draw_too(own_store, kind, other):
    bits = cache(0)
    app = opened("kv_cache", run=kv_run(own_store, both(KvPart(1, 3, kind, 0, bits), bits ^ 1)), prompt="1")
    assert f"first in layer 3's {kind}s" in said(app)
    assert "ayer 0's keys" not in said(app)
    assert figures(app)[f"{other} differ"] == "none kept"
    assert len(figures_of(app)) == 3


def test_the_flips_page_tells_where_continuations_part(continued):
    app = opened("flips", run=continued, variant="decode")
    assert "diverge after 2 tokens in common" in said(app)
    assert "0.125 (2 ULPs) and 0.125 (2 ULPs), ULPs of bfloat16" in said(app)
    assert not app.warning
    assert "1 flip in 30 positions" in said(app)
    app.number_input(key="position").set_value(PARTING).run()
    assert "next token ·\\<b\\>two\\</b\\>↵" in said(app)  # a token is no markup


def test_logits_that_do_not_confirm_what_was_generated_are_said_to_be_so(own_store):
    app = opened("flips", run=continued_run(own_store, is_confirmed=False), variant="decode")
    assert "tokens the same way twice" in app.warning[0].value
    assert "position 6" in app.warning[0].value


@pytest.mark.parametrize(("variant", "prompt"), [("decode+batch:8", "0"), ("decode", "1")])
def test_continuations_that_never_part_say_within_how_many_tokens(continued, variant, prompt):
    app = opened("flips", run=continued, variant=variant, prompt=prompt)
    assert f"`{variant}` and `prefill` do not diverge within 8 tokens" in said(app)


def test_a_prompt_that_was_only_scored_says_so_and_shows_the_others(continued):
    app = opened("flips", run=continued, variant="decode", prompt="2")
    assert "only scored" in said(app)
    rows = app.dataframe[0].value
    assert rows["parts after"].tolist() == ["2 tokens", "never in 8", "never in 8", "never in 8"]
    assert rows["position"].tolist()[0] == PARTING
    assert rows["margins, ULPs"].tolist() == ["2 / 2", "", "", ""]


def test_continuations_of_unknown_texts_are_shown_by_id(own_store):
    app = opened("flips", run=continued_run(own_store, texts=False), variant="decode")
    assert "`token 12`" in said(app)
    assert "`token 22`" in said(app)
    (table,) = [frame.value for frame in app.dataframe if "parts after" in frame.value]
    assert (table["reference token"][0], table["variant token"][0]) == ("token 12", "token 22")


def test_a_run_without_continuations_does_not_speak_of_them(own_store):
    shown = said(opened("flips", run=kv_run(own_store, [])))
    for definitions in (glossary.definitions(), glossary.reading("Flips")):  # which have all words of all pages
        assert definitions in shown
        shown = shown.replace(definitions, "")
    assert "ontinu" not in shown


def test_the_overview_has_a_line_on_each(continued):
    app = opened("overview", run=continued, variant="decode")
    assert "Key/value caches: **" in said(app)
    assert "prompts part** within 8 generated" in said(app)
    same = opened("overview", run=continued, variant="decode+batch:8")
    assert "Key/value caches: Nothing differs" in said(same)
    assert "8 generated tokens of each" in said(same)


def test_the_overview_of_other_runs_has_neither(own_store):
    text = said(opened("overview", run=kv_run(own_store, [])))
    assert "Key/value caches" not in text
    assert "Continuations" not in text
