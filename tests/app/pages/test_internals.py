"""The tabs of Internals and the continuations of Flips, on runs whose every figure is planted."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from streamlit.dataframe_util import convert_arrow_bytes_to_pandas_df
from streamlit.testing.v1 import AppTest

from app.internals import parts
from core.capture_request import CaptureRequest
from core.judging.ingest import ingest
from core.runs.tables.kv_cache import KvPart
from core.runs.tables.mitigations import advice
from tests.app.opening import codes, enter, figures_of, metrics, open_page, page_text, table_of
from tests.core.runs.cache_runs import PARTING, both, cache, continued_run, kv_run
from tests.core.runs.choice_runs import choice_run
from tests.core.runs.kernel_runs import NARROW, REDUCE, WIDE, kernel_run
from tests.core.runs.layer_runs import GROWING, MODULES, layer_run, with_kernels
from tests.core.runs.made_runs import header_of, make_run, write_run
from tests.core.runs.mitigation_runs import ROWS, mitigation_run
from tests.places import CASES

pytestmark = pytest.mark.usefixtures("own_store")


@pytest.fixture
def growing(built, own_store, monkeypatch):
    """The id of a run that tests only read."""
    monkeypatch.setenv("ULPSCOPE_STORE", str(built(growing_run)))
    return "growing"


def growing_run(store):
    layer_run(store, GROWING, run_id="growing")


@pytest.fixture
def continued(built, own_store, monkeypatch):
    """The id of a run with continuations and caches, which tests only read."""
    monkeypatch.setenv("ULPSCOPE_STORE", str(built(continued_run)))
    return "continued"


def test_layers_open_with_the_first_module_and_position_that_differ(growing):
    app = open_page("layers", run=growing, prompt="1")
    assert app.query_params["tab"] == "layers"
    assert "differs at all, at position 3 of prompt 1**: 1 of 8 (12.5%)" in page_text(app)
    # 4 ULPs in one of 40 elements, over a floor of 1 ULP in each: 4 / sqrt(40)
    assert "0.63x" in app.subheader[0].value
    assert "5 of 5" in page_text(app)
    assert len(figures_of(app)) == 3
    assert table_of(app)["module"].tolist() == [each.module for each in MODULES]
    # a phone has room for two columns
    assert table_of(app).columns[:2].tolist() == ["module", "RMS / noise floor"]
    enter(app, "toggle", "layers_table_all_columns", True)
    assert table_of(app)["max_ulps"].tolist() == [0, 0, 0, 1, 2, 4]


def test_a_module_is_opened_by_a_link_and_by_hand_and_its_name_is_no_markup(growing):
    app = open_page("layers", run=growing, prompt="0", module="model.layers.1")
    assert app.selectbox(key="layers_module").value == "model.layers.1"
    assert "`model.layers.1`, decoder layer: 2 of 24 (8.3%)" in page_text(app)
    assert app.query_params["module"] == "model.layers.1"
    enter(app, "selectbox", "layers_module", MODULES[2].module)
    assert "`model.layers.0.attn.<b>q</b>_proj`, projection: " in page_text(app)
    assert app.query_params["module"] == MODULES[2].module
    gone = open_page("layers", run=growing, prompt="0", module="no such module")
    assert gone.selectbox(key="layers_module").value == ""


def test_a_run_without_modules_gives_the_command_that_supplies_them(own_store):
    header = header_of()
    request = CaptureRequest(model="m", prompts=("it's",), prompt_lists=("two of them.jsonl",))
    header = replace(header, provenance=replace(header.provenance, request=request.to_json()))
    write_run(own_store, header, run_id="bare")
    app = open_page("layers", run="bare")
    assert "`--layers`" in app.info[0].value
    assert codes(app) == [
        replace(request, layers=True, kv=True, kernels=True, mitigations=True).typed(),
    ]
    uploaded = open_page(
        "layers",
        run=ingest(own_store, [CASES / "flips_fp16.npz"]),
    )
    assert "dump of logits has no" in uploaded.info[0].value


def test_a_pair_that_only_a_zero_floor_sets_apart_is_not_called_near_its_floor(own_store):
    # the embedding: no reordering moves it
    app = open_page("layers", run=layer_run(own_store, {(0, 0, 0): 1}))
    assert "no reordering moves it" in page_text(app)


def test_choices_show_which_differ_and_dense_runs_do_not_ask_for_them(own_store):
    app = open_page("choices", run=choice_run(own_store), prompt="1")
    assert "2 of 10 (20.0%) choices differ" in page_text(app)
    assert len(figures_of(app)) == 1
    assert table_of(app)["beyond"].tolist() == [1, 0]
    enter(app, "segmented_control", "choices_scope", "all prompts")
    assert table_of(app)["choices"].tolist() == [8, 8]
    make_run(own_store, run_id="dense")
    (missing,) = open_page("layers", run="dense").expander
    assert "Choices" not in missing.label


def test_running_states_are_of_the_last_position_and_in_their_own_dtype(own_store):
    """A bfloat16 run, whose recurrent state is in float32: 2 of 48 elements by an ULP of it."""
    conv = cache(0, 1, 1, 16)
    recurrent = np.arange(1, 33, dtype=np.float32).view(np.uint32).reshape(2, 1, 16)
    changed = recurrent.copy()
    changed[:, 0, 3] += 1
    parts = both(KvPart(0, 0, "conv state", 4, conv), conv.copy()) + both(
        KvPart(0, 0, "recurrent state", 4, recurrent), changed
    )
    app = open_page("kv_cache", run=kv_run(own_store, parts, lengths=(5,)))
    assert "2 of 48 (4.2%) elements differ" in page_text(app)
    assert "(recurrent states), head 0, position 4" in page_text(app)
    assert metrics(app)["States that differ"] == "4.2%"
    # a state has no position to choose a map for
    assert [each.label for each in app.button_group] == ["Measure"]


def test_figures_are_of_the_prompt_or_of_all_prompts(continued):
    app = open_page("kv_cache", run=continued, variant="decode")
    assert app.query_params["tab"] == "kv_cache"
    # keys and values: 10 positions x 0, 2, 4 and 6 elements of the four layers
    assert "240 of 3,072 (7.8%) elements of prompt 0 differ" in page_text(app)
    shown = {
        "Keys that differ": "7.8%",
        "Values that differ": "7.8%",
    }
    assert shown.items() <= metrics(app).items()
    assert app.metric[0].help == "120 of 1,536"
    enter(app, "segmented_control", "kv_scope", "all prompts")
    # prompts of 12, 12 and 6 positions, the first two positions of each equal
    assert "576 of 7,680 (7.5%) elements differ" in page_text(app)


def test_a_nan_in_a_cache_is_called_more_than_rounding(own_store):
    bits = cache(0)
    changed = bits.copy()
    # the quiet NaN of bfloat16
    changed[0, 0, 0] = 0x7FC0
    app = open_page(
        "kv_cache",
        run=kv_run(own_store, both(KvPart(1, 0, "key", 0, bits), changed)),
        prompt="1",
    )
    assert "infinity on one side" in app.error[0].value
    assert "only in 1 element of the caches" in app.error[0].value


def test_the_flips_page_tells_where_continuations_part(continued):
    app = open_page("flips", run=continued, variant="decode")
    assert "diverge after 2 tokens in common" in page_text(app)
    assert table_of(app)[["parting_position", "reference_margin_ulps"]].iloc[0].tolist() == [
        PARTING,
        2,
    ]
    assert any("▸ w12◂" in text for text in codes(app))
    assert not app.warning
    assert "1 flip in 30 positions" in page_text(app)
    enter(app, "number_input", "position", PARTING)
    assert "next token ·<b>two</b>↵" in page_text(app)


def test_what_only_one_side_launched_stands_first_and_the_sentence_says_it(own_store):
    app = open_page("kernels", run=kernel_run(own_store))
    assert "Of 4 kernels, 1 only in `side_0`, 1 only in `side_1` and 1 " in page_text(app)
    table = table_of(app)
    assert table["name"].tolist() == [NARROW, WIDE, REDUCE, "aten::mm"]
    assert any("1 of 1 (`side_0`), 3 of 40 (`side_1`)" in element.value for element in app.caption)


def test_the_page_begins_where_the_sides_begin_to_differ_and_counts_come_after(own_store):
    """Both sides launch the same as often; the first module that differs is the norm, not the
    embedding before it.
    """
    run_id = with_kernels(own_store, layer_run(own_store, {(1, 1, 4): 3, (5, 1, 4): 1}))
    app = open_page("kernels", run=run_id)
    assert "at position 4 of prompt 1." in page_text(app)
    there = table_of(app)
    assert there["modules"].tolist() == ["model.layers.0.norm"]
    assert there["reference_details"][0] == "bfloat16 [1, 8]"
    assert there["variant_details"][0] == "bfloat16 [2, 8]"


def test_mitigations_are_a_table_with_the_advice_above_it(own_store):
    app = open_page("mitigations", run=mitigation_run(own_store))
    (table,) = [frame.value for frame in app.dataframe if "variant_share" in frame.value]
    assert table["mitigation"].tolist() == ["baseline", "float32", "batch-invariant kernels"]
    assert table["variant_share"].tolist() == [100.0, 60.0, 75.0]
    assert advice(ROWS) in page_text(app)
    assert ROWS[2].refusal in page_text(app)


def test_figures_of_a_table_have_three_digits_and_only_an_exact_zero_is_0():
    # AppTest runs the source of this function alone, so it imports what it needs itself
    def page():
        import pandas as pd

        from app.components import tables

        tables.draw(pd.DataFrame({"rms": [0.0, 6.5341e-6, 0.72191], "x": [0, 0.00344, 617]}), "t")

    app = AppTest.from_function(page).run()
    assert not app.exception
    sent = app.dataframe[0].proto
    display = convert_arrow_bytes_to_pandas_df(sent.arrow_data.styler.display_values)
    assert display["rms"].tolist() == ["0", "6.53e-6", "0.722"]
    # as many decimals as the smallest needs for a digit
    assert json.loads(sent.columns)["x"]["type_config"]["format"] == "%,.3f"


def test_shapes_that_torch_did_not_record_are_told_from_a_kernel_that_did_not_run():
    table = pd.DataFrame(
        {
            "name": ["aten::cat", "aten::mm"],
            "places": [[""], ["a.*"]],
            "modules": [[""], ["a.1", "a.2"]],
            "reference_details": [[], ["2x3, 3x4", "5x3, 3x4"]],
            "variant_details": [[], []],
            "reference_launches": [1.0, 1.0],
            "variant_launches": [2.0, 0.0],
        }
    )
    shown = parts.kernel_texts(table)
    assert shown["reference_details"].tolist() == ["not recorded", "[2, 3] x [3, 4] and 1 more"]
    assert shown["variant_details"].tolist() == ["not recorded", ""]
    assert shown["modules"].tolist() == ["(the model itself)", "a.1 and 1 more"]


def test_a_pair_without_mitigations_has_no_tab(own_store):
    app = open_page("internals", run=mitigation_run(own_store, rows=()))
    assert "Mitigations" not in [tab.label for tab in app.tabs]
