"""The KV cache page, the continuations of the Flips page and their lines on the overview, on runs whose every figure is
planted.
"""

from __future__ import annotations

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from core.runs.queries.caches import merge, summaries
from core.runs.reader import RunReader
from core.runs.tables.kv_cache import KvPart
from tests.app.opening import codes, open_page, page_text
from tests.core.runs.cache_runs import PARTING, both, cache, continued_run, kv_run

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
    app = open_page("kv_cache", run=kv_run(own_store, parts, lengths=(74,)))
    assert app.query_params["tab"] == "kv_cache"
    assert "13,086 of 151,552 (8.6%) elements differ" in page_text(app)
    assert "first in layer 0's keys" in page_text(app)
    assert "13,086 of 75,776** elements of layer 0's keys" in page_text(app)
    assert app.metric[0].help == "13,086 of 75,776"
    assert figures(app) == {
        "Keys differ": "17.3%",
        "Values differ": "0.0%",
        "RMS row ULPs": figures(app)["RMS row ULPs"],
        "Max row ULPs": figures(app)["Max row ULPs"],
        "First layer": "0",
    }


def test_figures_are_of_the_prompt_or_of_all_prompts(own_store):
    run_id = continued_run(own_store)
    with RunReader(own_store.path_of(run_id)) as run:
        whole, first = (summaries(run, 0)[of]["together"] for of in (None, 0))
        by_layer = merge(run, 0, None, "layer", "kind")
    app = open_page("kv_cache", run=run_id, variant="decode")
    assert f"{first['neq']:,} of {first['elements']:,}" in page_text(app)
    app.segmented_control(key="kv_scope").set_value("all prompts").run()
    assert f"{whole['neq']:,} of {whole['elements']:,}" in page_text(app)
    assert whole["neq"] > first["neq"]
    assert app.dataframe[0].value["neq"].tolist() == by_layer["neq"].tolist()


def test_a_nan_in_a_cache_is_called_more_than_rounding(own_store):
    bits = cache(0)
    changed = bits.copy()
    changed[0, 0, 0] = 0x7FC0
    app = open_page("kv_cache", run=kv_run(own_store, both(KvPart(1, 0, "key", 0, bits), changed)), prompt="1")
    assert "infinity on one side" in app.error[0].value
    assert "only in 1 element of the caches" in app.error[0].value


def test_the_flips_page_tells_where_continuations_part(continued):
    app = open_page("flips", run=continued, variant="decode")
    assert "diverge after 2 tokens in common" in page_text(app)
    assert app.dataframe[0].value[["parting_position", "reference_margin_ulps"]].iloc[0].tolist() == [PARTING, 2]
    assert any("▸ w12◂" in text for text in codes(app))
    assert not app.warning
    assert "1 flip in 30 positions" in page_text(app)
    app.number_input(key="position").set_value(PARTING).run()
    assert "next token ·\\<b\\>two\\</b\\>↵" in page_text(app)  # a token is no markup
