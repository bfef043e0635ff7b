"""The Layers page, on runs whose every figure is planted."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from core.capture_request import CaptureRequest
from core.judging.ingest import ingest
from core.runs.store.store import Store
from tests.app import opening
from tests.app.opening import codes, figures_of, page_text
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
    return opening.open_page("layers", **link)


def figures(app: AppTest) -> dict[str, str]:
    return {metric.label: metric.value for metric in app.metric}


def test_the_page_opens_with_the_first_module_and_position_that_differ(growing):
    app = opened(run=growing, prompt="1")
    assert app.query_params["tab"] == "layers"
    assert "first module that differs, at position 3**: 1 of 8 (12.5%)" in page_text(app)
    assert figures(app) == {
        "First module": "block 0",
        "Logits that differ": "2.5%",
        "Max ratio to floor": "0.632",
        "Positions": "5 of 5",
    }
    assert len(figures_of(app)) == 3
    assert app.dataframe[0].value["module"].tolist() == [module.name for module in MODULES]
    app.toggle(key="layers_table_all_columns").set_value(True).run()
    assert app.dataframe[0].value["max_ulps"].tolist() == [0, 0, 0, 1, 2, 4]


def test_a_module_is_opened_by_a_link_and_by_hand_and_its_name_is_no_markup(growing):
    app = opened(run=growing, prompt="0", module="model.layers.1")
    assert app.selectbox(key="layers_module").value == "model.layers.1"
    assert "`model.layers.1`, residual: 2 of 24 (8.3%)" in page_text(app)
    assert app.query_params["module"] == "model.layers.1"
    app.selectbox(key="layers_module").set_value(MODULES[2].name).run()
    assert not app.exception
    assert "`model.layers.0.attn.<b>q</b>_proj`, projection: " in page_text(app)
    assert app.query_params["module"] == MODULES[2].name
    gone = opened(run=growing, prompt="0", module="no such module")
    assert gone.selectbox(key="layers_module").value == ""


def test_a_run_without_modules_gives_the_command_that_supplies_them(own_store):
    header = header_of()
    request = CaptureRequest(model="m", prompts=("it's",), prompt_lists=("two of them.jsonl",))
    header = dataclasses.replace(header, provenance=dataclasses.replace(header.provenance, request=request.to_json()))
    write_run(own_store, header, calm_sides(header), "bare")
    app = opened(run="bare")
    assert "`--layers`" in app.info[0].value
    assert codes(app) == [dataclasses.replace(request, layers=True, kv=True, kernels=True, remedies=True).typed()]
    uploaded = opened(run=ingest(own_store, [ROOT / "tests" / "cases" / "flips_fp16.npz"]))
    assert "dump of logits holds no" in uploaded.info[0].value


def test_a_pair_that_only_a_zero_floor_sets_apart_is_not_called_near_its_floor(own_store):
    app = opened(run=layer_run(own_store, {(0, 0, 0): 1}))  # the embedding: no reordering moves it
    assert figures(app)["Max ratio to floor"] == "floor is 0"
    assert "no reordering does" in page_text(app)
