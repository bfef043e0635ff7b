"""The Machine page, on runs whose every answer is planted; what the other pages make of such
runs.
"""

import pandas as pd
import pytest

from app.machine import parts
from app.shell.jobs import ANY_DEVICE, Job, Jobs
from core.runs.ops_run import write_ops_run
from tests.app.opening import click, codes, open_page, page_text, table_of
from tests.core.runs.test_ops_run import ABSENT, STEADY, UNSTEADY, header, row_of

ROWS = [row_of(), STEADY, UNSTEADY, ABSENT]

pytestmark = pytest.mark.usefixtures("own_store")


def test_with_nothing_probed_the_page_says_what_to_do():
    app = open_page("machine")
    assert "No operations were probed yet" in page_text(app)
    assert "ulpscope ops --quick" in " ".join(codes(app))


def test_a_button_probes_this_machine(submitted):
    open_page("machine").button(key="ops_start").click().run()
    ((job, arguments),) = ((each["job"], each["arguments"]) for each in submitted)
    assert arguments == ["ops", "--dtype", "float32", "--dtype", "bfloat16", "--quick"]
    assert job.kind == "ops"


def test_a_row_has_its_three_answers(own_store):
    write_ops_run(own_store, header(), ROWS, run_id="one")
    table = table_of(open_page("machine"))
    answers = table["batch size"].tolist()
    assert answers[0].startswith("differs at 2, 3: ")
    assert answers[1:3] == ["same", "not asked"]


@pytest.mark.parametrize(
    ("link", "operations"),
    [
        ({"op": "softmax"}, ["softmax"]),
        ({"dtype": "bfloat16"}, ["scatter_add"]),
        ({"show": "differing"}, ["mm", "scatter_add"]),
        ({"probes": "two"}, ["softmax"]),
        ({"probes": "gone"}, ["mm", "softmax", "scatter_add", "sdpa (flash)"]),
    ],
)
def test_a_link_restores_the_run_and_its_filters(own_store, link, operations):
    write_ops_run(own_store, header(), ROWS, run_id="one")
    # the latest probes open by themselves: a link has to lead to others
    earlier = header(created=header().created.replace(year=2025))
    write_ops_run(own_store, earlier, [STEADY], run_id="two")
    app = open_page("machine", **link)
    assert table_of(app)["operation"].tolist() == operations
    assert ("are not in this store" in page_text(app)) == (link.get("probes") == "gone")


def test_the_chart_has_the_distance_of_every_batch_size():
    (cells,) = parts.batch_chart([row_of(), STEADY, {**UNSTEADY, "batch_classes": []}]).data
    assert list(cells.x) == ["1", "2", "3", "4", "5"]
    assert list(cells.customdata[0]) == [0, 1792, 1792, 0, 0]
    assert list(cells.z[0]) == [0, 10, 10, 0, 0]  # log2
    assert len(cells.y) == 2


def test_other_pages_neither_offer_it_nor_break(own_store):
    write_ops_run(own_store, header(name="these-probes"), [row_of()], run_id="these-probes")
    app = open_page("overview", run="these-probes")
    assert "Machine page shows" in page_text(app)
    row = table_of(app).set_index("name").loc["these-probes"]
    assert pd.isna(row["differ"])
    assert pd.isna(row["flips"])
    assert "these-probes" not in app.selectbox(key="run").options
    assert "these-probes" not in " ".join(
        open_page("compare").multiselect(key="compare_runs").options,
    )


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ((ANY_DEVICE, ["float32"], "quick", ""), "--dtype float32 --quick"),
        (
            ("cuda:0", ["bfloat16"], "all", " org/m "),
            "--device cuda:0 --dtype bfloat16 --model=org/m",
        ),
        ((ANY_DEVICE, [], "all", "--store=/x"), "--model=--store=/x"),
    ],
)
def test_the_form_is_a_command_line(asked, expected):
    assert parts.arguments(*asked) == ["ops", *expected.split()]


def test_a_finished_job_opens_its_probes_on_this_page(own_store, monkeypatch):
    for run_id in ("one", "two"):
        write_ops_run(own_store, header(), [STEADY], run_id=run_id)
    jobs = [Job(n, "probes", "cpu", ("ops",), state="done", run_id="one") for n in (1, 2)]
    dismissed = []
    # a list times False is empty: other pages ask for jobs of other kinds
    monkeypatch.setattr(Jobs, "all", lambda self, kind="capture": jobs * (kind == "ops"))
    monkeypatch.setattr(Jobs, "forget", lambda self, number: dismissed.append(number))
    app = open_page("machine", probes="two")
    click(app, "dismiss_all")
    assert dismissed == [1, 2]
    click(app, "open_1")
    assert app.title[0].value == "Machine"
    assert app.selectbox(key="ops_run").value == "one"
    assert not app.warning
