"""The Layers page, on runs whose every figure is planted."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from app.layers import charts
from core.capture_request import CaptureRequest
from core.judging.ingest import ingest
from core.runs.reader import RunReader
from core.runs.store.store import Store
from core.runs.views.layers import grid, modules_of, summarize
from tests.app import opening
from tests.app.opening import codes, figures_of, said
from tests.core.runs.damaging import damaged
from tests.core.runs.layer_runs import GROWING, MODULES, layer_run
from tests.core.runs.made_runs import calm_sides, header_of, write_run

ROOT = Path(__file__).resolve().parents[3]

pytestmark = pytest.mark.usefixtures("own_store")


@pytest.fixture
def growing(built, own_store, monkeypatch) -> str:
    """The id of a run that tests only read; the store is its own."""
    monkeypatch.setenv("ULPSCOPE_STORE", str(built(growing_run)))
    return "growing"


def growing_run(store: Store) -> None:
    layer_run(store, GROWING, run_id="growing")


def opened(**link: str) -> AppTest:
    return opening.opened("layers", **link)


def figures(app: AppTest) -> dict[str, str]:
    return {metric.label: metric.value for metric in app.metric}


def test_the_page_opens_with_the_first_module_and_position_that_differ(growing):
    app = opened(run=growing, prompt="1")
    assert app.title[0].value == "Layers"
    assert "first module that differs, at position 3**: 1 of 8 (12.5%)" in said(app)
    assert figures(app) == {
        "First module": "block 0",
        "First block": "0",
        "Logits that differ": "2.5%",
        "Max ratio to floor": "0.632",
        "Positions": "all 5",
    }
    assert "noise floor: `logits`, 0.632x" in said(app)
    assert len(figures_of(app)) == 3
    assert app.dataframe[0].value["module"].tolist() == [module.name for module in MODULES]
    assert app.dataframe[0].value["max ULPs"].tolist() == [0, 0, 0, 1, 2, 4]


def test_all_prompts_together_name_the_prompt_too(growing):
    app = opened(run=growing, prompt="1", of="all-prompts")
    assert "at prompt 0, position 1" in said(app)
    assert figures(app)["Positions"] == "all 8"
    assert app.dataframe[0].value["in prompt"].tolist()[2:4] == [0, 0]


def test_equal_outputs_are_a_sentence_and_no_empty_plot(own_store):
    app = opened(run=layer_run(own_store, {}), prompt="1")
    assert "No module differs: 6 outputs" in app.success[0].value
    assert "at 5 positions" in app.success[0].value
    assert not figures_of(app)


def test_a_module_is_opened_by_a_link_and_by_hand_and_its_name_is_no_markup(growing):
    app = opened(run=growing, prompt="0", module="model.layers.1")
    assert app.selectbox(key="layers_module").value == "model.layers.1"
    assert "`model.layers.1`, residual of block 1: 2 of 24 (8.3%)" in said(app)
    assert app.query_params["module"] == "model.layers.1"
    app.selectbox(key="layers_module").set_value(MODULES[2].name).run()
    assert not app.exception
    assert "`model.layers.0.attn.<b>q</b>_proj`, projection of block 0" in said(app)
    assert app.query_params["module"] == MODULES[2].name
    gone = opened(run=growing, prompt="0", module="no such module")
    assert gone.selectbox(key="layers_module").value == ""


@pytest.mark.parametrize(
    ("measure", "meaning"),
    [
        ("ratio", "rounding floor in the whole prompt"),
        ("neq_share", "share of the output's"),
        ("max_row_ulps", "row ULPs of the output's own dtype"),
        ("max_ulps", "ULPs of the output's own dtype"),
    ],
)
def test_every_measure_draws_and_its_caption_says_the_unit(growing, measure, meaning):
    app = opened(run=growing, prompt="1", measure=measure)
    assert meaning in said(app)
    assert app.segmented_control(key="layers_measure").value == measure


def test_without_a_floor_the_page_says_so_and_offers_no_ratio(own_store):
    app = opened(run=layer_run(own_store, GROWING, floor_ulps=None), prompt="1", measure="ratio")
    assert "No rounding floor was run" in said(app)
    assert figures(app)["Max ratio to floor"] == "no floor"
    assert app.segmented_control(key="layers_measure").value == "neq_share"


def test_positions_that_were_not_looked_at_are_said_to_be_so(own_store):
    run_id = layer_run(own_store, {(1, 1, 4): 3}, chosen=((), (0, 2, 4)))
    app = opened(run=run_id, prompt="1")
    assert figures(app)["Positions"] == "3 of 5"
    assert "3 of 5 positions were looked at" in said(app)
    assert "other prompts have some" in opened(run=run_id, prompt="0").info[0].value


def test_a_run_without_modules_gives_the_command_that_supplies_them(own_store):
    header = header_of()
    request = CaptureRequest(model="m", prompts=("it's",), prompt_lists=("two of them.jsonl",))
    header = dataclasses.replace(header, provenance=dataclasses.replace(header.provenance, request=request.to_json()))
    write_run(own_store, header, calm_sides(header), "bare")
    app = opened(run="bare")
    assert "`--layers`" in app.info[0].value
    assert codes(app) == [dataclasses.replace(request, layers=True).typed()]
    ingest(own_store, [ROOT / "tests" / "cases" / "flips_fp16.npz"])
    uploaded = opened(run=ingest(own_store, [ROOT / "tests" / "cases" / "flips_fp16.npz"]))
    assert "dump of logits holds no" in uploaded.info[0].value


def test_a_compiled_variant_leads_to_one_that_was_watched(own_store):
    app = opened(run=layer_run(own_store, GROWING, sides=3), variant="side_2", prompt="1")
    assert "compiler makes this variant's kernels" in app.info[0].value
    next(button for button in app.button if button.label == "Show side\\_1").click().run()
    assert not app.exception
    assert figures(app)["First module"] == "block 0"


def test_the_growth_has_a_gap_where_nothing_differs_and_marks_the_streams(own_store):
    with RunReader(own_store.path_of(layer_run(own_store, GROWING))) as run:
        table = run.layers(0)
        modules = modules_of(table[table["prompt"] == 1])
        found = grid(run, 0, 1, "max_ulps")
    figure = charts.module_growth(modules, "logits")
    lines = {line.name: line for line in figure.data}
    assert [value > 0 for value in lines["this pair"].y] == [False, False, False, True, True, True]
    assert list(lines["after each block, and the logits"].x) == [3, 4, 5]
    assert "&lt;b&gt;q&lt;/b&gt;" in lines["this pair"].customdata[2][1]
    drawn = charts.module_map(found, "logits", 3).data[1].z
    assert drawn[5][4] == 2.0  # log2 of 4 ULPs
    assert charts.module_map(found, "logits", 3).to_json() == charts.module_map(found, "logits", 3).to_json()


def test_names_of_modules_in_a_file_of_somebody_else_stay_text(own_store):
    run_id = layer_run(own_store, {(4, 0, 0): 1, (5, 0, 0): 1})
    hostile = "'a`\n\n![x](http://x.example/y.png) ' || ordinal"
    damaged(own_store.path_of(run_id), f"UPDATE layer SET module = {hostile}")
    app = opened(run=run_id)
    for text in (*(element.value for element in app.markdown), *(metric.help for metric in app.metric if metric.help)):
        outside = text.split("`")[::2]  # of code spans, none of which a blank line may end
        assert not any("![x]" in part for part in outside), text
        assert "\n\n!" not in text
    assert any("is the first module that differs" in element.value for element in app.markdown)


def test_a_pair_that_only_a_zero_floor_or_a_nan_sets_apart_is_not_called_near_its_floor(own_store):
    run_id = layer_run(own_store, {(0, 0, 0): 1})  # the embedding: no reordering moves it
    app = opened(run=run_id)
    assert figures(app)["Max ratio to floor"] == "floor is 0"
    assert "no reordering does" in said(app)
    assert "its floor, and" not in said(app)
    without_size = layer_run(own_store, {(0, 0, 0): 1}, run_id="nan")
    damaged(
        own_store.path_of(without_size),
        "UPDATE layer SET rms = 0, max_abs = 0, max_ulps = 0, nonfinite_mismatch = neq, finite = elements - neq",
    )
    with RunReader(own_store.path_of(without_size)) as run:
        found = summarize(run.layers(0))
        assert found.first.module == "model.embed"
        assert found.largest is None
