"""The Ops page, on runs whose every answer is planted; what the other pages make of such runs; the job that probes this
machine.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

from app.ops import form, parts
from app.ops.charts import batch_classes, letters_of, number_of
from app.shell import exports
from app.shell.jobs import ANY_DEVICE, Jobs
from core.runs.ops_run import read_ops
from core.runs.reports.ops_wording import beside, distance_says
from core.runs.store.store import Store
from core.runs.tables.ops import BatchClass, OpRow, Repeats
from tests.app import opening
from tests.app.opening import codes
from tests.core.runs.ops_runs import MM, SOFTMAX, probed
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[3]
CUMSUM = OpRow(
    "cumsum",
    "",
    "bfloat16",
    "width 4096",
    elements=4096,
    repeats=Repeats(25, 3, 8, 4, 12, 4096, 2),
    note="repeats differ",
)
FLASH = OpRow("sdpa", "flash", "float32", "8 heads", refusal="no such kernel")

pytestmark = pytest.mark.usefixtures("own_store")


def opened(page: str = "ops", **link: str) -> AppTest:
    return opening.opened(page, **link)


def said(app: AppTest) -> str:
    kinds = ("title", "markdown", "caption", "info", "success", "warning", "error", "subheader")
    return "\n".join(str(element.value) for kind in kinds for element in getattr(app, kind)).replace("\\", "")


def test_with_nothing_probed_the_page_says_what_to_do():
    app = opened()
    assert "No operations were probed yet" in said(app)
    assert any("ulpscope ops --quick" in text for text in codes(app))
    assert "Probe this machine" in [button.label for button in app.button]


def test_one_machine_has_its_three_answers_and_the_sentence_for_the_batch(own_store):
    probed(own_store, "one", MM, SOFTMAX, CUMSUM, FLASH)
    app = opened()
    assert "row's position, 1 not available" in said(app)
    table = app.dataframe[0].value
    assert table["operation"].tolist() == ["mm", "softmax", "cumsum", "sdpa (flash)"]
    assert [list(found) for found in table["run to run"]] == [["yes"], ["yes"], ["no"], ["not available"]]
    assert [list(found) for found in table["batch size"]] == [["no"], ["yes"], ["not asked"], ["not available"]]
    assert table["row 0 over batch sizes"].tolist()[:2] == [
        "differs from batch 1 at 4, 8; same class 1..3",
        "same bits at 1..8",
    ]
    assert table["from batch 1"].tolist()[0] == distance_says(MM)


def test_a_link_restores_machines_filters_and_the_opened_row(own_store):
    probed(own_store, "cpu-run", MM, SOFTMAX, CUMSUM)
    other = replace(MM, classes=(BatchClass((1,), "a" * 16), BatchClass((2, 3, 4, 8), "d" * 16, 9, 3)))
    probed(own_store, "gpu-run", other, SOFTMAX, FLASH, chip="A card", device="cuda:0", minute=1)
    app = opened(machines="cpu-run,gpu-run", show="disagree", row="mm~~float32~256 to 256")
    table = app.dataframe[0].value
    assert table["operation"].tolist() == ["mm"]
    assert table["they disagree on"].tolist() == ["batch classes"]
    assert "1 of 4 probes" in said(app)
    assert "M1: cpu, A processor" in said(app)
    assert "M2: cuda:0, A card" in said(app)
    assert "differs from batch 1 at 2..8" in said(app)
    assert app.dataframe[1].value["class"].tolist() == ["A", "B", "A", "C"]  # batch 1 is the same bits on both
    assert app.dataframe[1].value["elements that differ"].tolist() == [0, 231, 0, 9]
    assert app.query_params["machines"] == "cpu-run,gpu-run"
    assert app.query_params["show"] == "disagree"
    app.segmented_control(key="ops_shown").set_value("all").run()
    assert not app.exception
    assert len(app.dataframe[0].value) == 4


def test_filters_leave_the_operation_and_dtype_asked_for(own_store):
    probed(own_store, "one", MM, SOFTMAX, CUMSUM, FLASH)
    app = opened(op="cumsum", dtype="bfloat16")
    assert app.dataframe[0].value["operation"].tolist() == ["cumsum"]
    app = opened(op="nothing-of-this-kind")
    assert "left by these filters" in said(app)
    app = opened(machines="gone")
    assert "no probes gone" in said(app)
    assert len(app.dataframe[0].value) == 4  # the newest instead


def test_names_of_others_are_inert(own_store):
    hostile = "[x](javascript:alert(1)) <img src=x onerror=alert(1)> **bold**"
    probed(own_store, "one", replace(MM, modules=hostile), replace(FLASH, size=hostile, refusal=hostile), chip=hostile)
    app = opened(row=f"sdpa~flash~float32~{hostile}")
    assert len(app.subheader) == 1
    assert not re.search(r"(?<!\\)(<img|\]\(|\*\*bold)", app.subheader[0].value)
    for element in app.markdown:
        assert not re.search(r"(?<!\\)(<img|\]\(|\*\*bold)", element.value), element.value
    assert not any(element.allow_html for element in app.markdown if "alert" in element.value)


def test_other_pages_neither_offer_it_nor_break(own_store):
    probed(own_store, "these-probes", MM)
    app = opened("overview", run="these-probes")
    assert "Ops page shows" in said(app)
    assert app.title[0].value == "Runs"
    row = app.dataframe[0].value.set_index("name").loc["these-probes"]
    assert row["differ"] == "operations"
    assert pd.isna(row["flips"])
    assert "these-probes" not in app.selectbox(key="run").options
    app = opened("runs")
    app.session_state["ticked"] = ["these-probes"]
    app.run()
    assert not app.exception
    assert "/files/these-probes.duckdb" in said(app)
    assert "/files/these-probes.npz" not in said(app)
    compare = opened("compare")
    assert "these-probes" not in " ".join(compare.multiselect(key="compare_runs").options)


def test_a_store_of_probes_alone_is_no_empty_gallery(own_store, monkeypatch):
    monkeypatch.setenv("ULPSCOPE_SAMPLES", "")
    probed(own_store, "one", MM)
    app = opened("runs")
    assert app.dataframe[0].value["name"].tolist() == ["one"]
    app = opened("ops", op="mm")
    assert app.dataframe[0].value["operation"].tolist() == ["mm"]
    assert app.query_params["op"] == "mm"  # the address keeps what the page is set to, run or no run
    assert "No runs yet" in said(opened("overview"))


def test_what_is_downloaded_has_every_answer_and_figure(own_store):
    probed(own_store, "one", MM, CUMSUM, FLASH)
    runs = [read_ops(own_store, "one")]
    table = parts.listed(beside(runs), runs)
    assert table["batch_size"].tolist() == ["no", "not asked", "not available"]
    assert table["batch_neq"].tolist()[0] == 231
    assert table["differing_calls"].tolist()[:2] == [0, 3]
    assert "no such kernel" in exports.csv(table).decode()


def test_squares_of_equal_bits_have_one_letter_and_colour_on_every_line():
    lines = [("M1", {1: "a", 2: "b", 4: "b"}), ("M2", {1: "b", 4: "c"})]
    assert letters_of(lines) == {"a": "A", "b": "B", "c": "C"}
    first, second = batch_classes(lines).data
    assert list(first.text) == ["A", "B", "B"]
    assert list(second.text) == ["B", "C"]
    assert first.marker.color[1] == second.marker.color[0] != second.marker.color[1]
    assert list(second.x) == ["1", "4"]
    many = letters_of([("M", {size: str(size) for size in range(30)})])
    assert [number_of(letter) for letter in many.values()] == list(range(30))
    assert list(many.values())[25:28] == ["Z", "AA", "AB"]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ((ANY_DEVICE, ["float32"], "quick", ""), ["ops", "--dtype", "float32", "--quick"]),
        (
            ("cuda:0", ["bfloat16"], "all", " org/m "),
            ["ops", "--device", "cuda:0", "--dtype", "bfloat16", "--model=org/m"],
        ),
        ((ANY_DEVICE, [], "all", "--store=/x"), ["ops", "--model=--store=/x"]),
    ],
)
def test_the_form_is_a_command_line(asked, expected):
    assert form._arguments(*asked) == expected


@pytest.mark.thorough
def test_a_job_probes_this_machine_and_captures_do_not_list_it(tmp_path):
    jobs = Jobs(tmp_path / "runs")
    try:
        arguments = ["ops", "--device", "cpu", "--quick", "--op", "mean", "--dtype", "float32", "--repeats", "1"]
        number = jobs.submit(arguments, title="operations", device="cpu").number
        assert jobs.all() == []
        (job,) = until(lambda: [job for job in jobs.all("ops") if job.is_over])
        assert (job.number, job.state, job.message) == (number, "done", "")
        assert job.rows_total == 2
        assert {row.op for row in read_ops(Store(tmp_path / "runs"), job.run_id).rows} == {"mean"}
    finally:
        jobs.stop()
