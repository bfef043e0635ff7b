"""The verdict on the overview and in the gallery: every name, every sentence from a stored row, and
how what is missing is supplied.
"""

import dataclasses
import re

import numpy as np
import pandas as pd
import pytest

from app.shell import wording
from app.shell.jobs import Job
from app.verdict.panel import refusal_of
from core.checks.modules_alone import ALONE, AloneFigures
from core.checks.pair import WIDE_PAIR
from core.checks.shrink import SHRINK
from core.evidence import CHECK_GROUPS, FAILED, NOTED, Evidence, Unmeasured
from core.plots import pairs as charts
from core.text import opening as opening_of
from tests.app import opening
from tests.app.opening import click, codes, drawn, keys, page_text
from tests.core.runs.judged_runs import CASES, REQUEST, judged_run, ratio_row

pytestmark = pytest.mark.usefixtures("own_store")


def opened(open_=(), **link):
    """The overview of a viewer who has unfolded the expanders `open_`."""
    return opening.open_page("overview", open_, **link)


def label(app):
    """The verdict: its colour and its name."""
    return app.header[0].value


@pytest.mark.spread(3)
@pytest.mark.parametrize("verdict", CASES)
def test_the_page_opens_with_the_verdict_and_every_row_it_rests_on(own_store, verdict):
    app = opened(run=judged_run(own_store, verdict))
    assert label(app) == f":{wording.VERDICTS[verdict]}[{opening_of(verdict)}]"
    because, _, rows = CASES[verdict]
    assert because in page_text(app)
    steps = [step.label.replace("\\", "") for step in app.expander]
    for row in rows:
        is_explained = verdict == "lower precision" and row.outcome == FAILED
        (step,) = (step for step in steps if f"**{CHECK_GROUPS[row.group]}**" in step)
        assert ("[explained]" if is_explained else f"[{row.outcome}]") in step
        assert row.says.removesuffix(".") in step
        assert row.control in page_text(app)
    assert "judge" not in keys(app)


def test_a_failed_check_is_open_and_a_passed_one_has_figures_too(own_store):
    app = opened(run=judged_run(own_store, "bug suspected"))
    failed = next(step for step in app.expander if "[failed]" in step.label)
    assert failed.proto.expanded
    assert "24.3" in failed.table[0].value.to_string().replace("\\", "")
    passed = next(step for step in app.expander if "[passed]" in step.label)
    assert not passed.proto.expanded
    # a browser opens no step without content
    assert passed.table


def test_rows_of_one_group_open_together(own_store):
    aside = Evidence(
        SHRINK,
        "'decode' against 'prefill', beside a floor",
        Unmeasured(),
        NOTED,
        "The uploaded floor is of two kinds. It is left aside.",
    )
    figures = {"nonfinite_mismatch": 1, "first_nonfinite": (0, 3, 7), "position_ratio_allowed": 4.4}
    row = ratio_row(
        WIDE_PAIR,
        "float32",
        None,
        "failed",
        "In float32, 'decode' is NaN at position 3, token 7.",
        **figures,
    )
    app = opened(
        run=judged_run(own_store, "bug suspected", evidence=[aside, row]),
        open_=("check_0",),
    )
    assert "It is left aside" in page_text(app)


def test_the_next_step_of_a_fault_is_its_first_position(own_store):
    app = opened(run=judged_run(own_store, "bug suspected"))
    (link,) = [each.proto for each in app.get("page_link") if "position 32" in each.proto.label]
    assert link.page == "heatmap"
    assert "position=32" in link.query_string
    app = opened(run=judged_run(own_store, "identical"))
    assert not [each for each in app.get("page_link") if "See" in each.proto.label]


def test_the_next_step_without_flips_are_the_near_ties():
    app = opened(run="where-it-starts")
    labels = [each.proto.label for each in app.get("page_link")]
    (near,) = [label for label in labels if label.startswith("See ")]
    assert re.fullmatch(r"See \d+ near ties? →", near)


def test_the_next_step_to_the_flips_leads_to_one(own_store):
    # the second place is a flip, the first is none
    for position, shown in (("35", "prompt=1&position=30"), ("36", "prompt=1&position=36")):
        app = opened(run="fresh-against-cached", prompt="1", position=position)
        (link,) = [each.proto for each in app.get("page_link") if "See 4 flips" in each.proto.label]
        assert link.query_string.endswith(shown)


def test_a_capture_that_was_not_judged_shows_the_command_and_a_button_that_runs_it(
    own_store,
    submitted,
):
    app = opened(run=judged_run(own_store, None, run_id="mine"))
    assert "Not judged" in label(app)
    assert codes(app)[0] == dataclasses.replace(REQUEST, judge=True).typed()
    click(app, "judge")
    (job,) = submitted
    assert job["arguments"][:3] == ["capture", "--model", "sample_runs/model"]
    assert "--judge" in job["arguments"]
    assert "mine" in job["title"]
    assert job["device"] == "auto"
    assert b'"token_ids": [2, 3, 4' in job["prompts"].content


def test_a_judging_that_is_done_opens_the_judged_run_unless_a_side_failed(own_store, monkeypatch):
    judged_run(own_store, None, run_id="mine")
    judged_run(own_store, None, run_id="better")
    running = Job(1, "Judge Judged: None (mine)", "cpu", (), "running")
    # a run stored in part stays in the list, and a viewer is not led to it
    for message, opened_run in (("a side failed", "mine"), ("", "better")):
        jobs = [running]
        monkeypatch.setattr("app.shell.jobs.Jobs.all", lambda self, kind="", jobs=jobs: jobs)
        app = opened(run="mine")
        jobs[0] = dataclasses.replace(running, state="done", run_id="better", message=message)
        drawn(app)
        assert app.query_params["run"] == opened_run


def test_a_run_that_was_judged_elsewhere_or_earlier_shows_its_verdict(own_store):
    judged_run(own_store, None, run_id="mine")
    judged_run(own_store, "rounding", run_id="better")
    app = opened(run="mine")
    own_store.mark_judged("mine", "better")
    drawn(app)
    (link,) = [each.proto for each in app.get("page_link") if "Judged" in each.proto.label]
    assert "rounding" in link.label
    assert link.query_string == "run=better"
    assert "judge" not in keys(app)


def test_the_report_can_be_copied_and_carries_the_address(own_store, monkeypatch):
    monkeypatch.setenv("ULPSCOPE_HOSTING_PUBLIC_URL", "https://ulps.example.org")
    run_id = judged_run(own_store, "rounding")
    assert not [text for text in codes(opened(run=run_id)) if "###" in text]
    app = opened(run=run_id, open_=("copy_report",), position="10")
    (text,) = (text for text in codes(app) if "###" in text)
    assert "| passed | rerun |" in text
    assert f"/overview?run={run_id}&variant=decode&position=10" in text
    assert [button.proto.label for button in app.get("download_button")] == ["Picture (PNG)"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (True, "yes"),
        (12345, "12,345"),
        (0.95572, "0.956"),
        ({"a": (3, 2.5), "b": ()}, "a: 3, 2.5, b: none"),
        ("x", "x"),
    ],
)
def test_figures_of_any_json_are_shown(value, shown):
    assert wording.figure(value) == shown


def trace(figure, name):
    return [drawn for drawn in figure.data if drawn.name == name]


def test_what_is_beyond_the_threshold_is_marked_and_without_one_nothing_is():
    ratios = pd.DataFrame({"position": np.arange(96), "ratio": 1.0})
    ratios.loc[[32, 33], "ratio"] = 1000
    drawn = charts.floor_ratio(ratios, 4.4, "float32", np.array([], int))
    assert list(trace(drawn, "outlier")[0].x) == [32, 33]
    assert any(shape.y0 == 4.4 for shape in drawn.layout.shapes)
    assert not trace(charts.floor_ratio(ratios, None, "bfloat16", np.array([], int)), "outlier")


MODULES_ALONE = AloneFigures(
    largest_ratio_allowed=10.0,
    modules_beyond=("<b>x</b>",),
    largest_ratio_of_others=1.5,
    modules=("model.embed_tokens", "model.layers.0.self_attn", "model.layers.0", "<b>x</b>"),
    alone_rms=(0.0, 1e-6, 2e-6, 1e-3),
    own_rounding_rms=(0.0, 1e-6, 1e-6, 1e-6),
)


def test_a_check_that_names_modules_opens_with_its_chart(own_store):
    row = Evidence(
        ALONE,
        "each module alone",
        MODULES_ALONE,
        NOTED,
        "One module alone differs.",
        "decode",
    )
    app = opened(("check_0",), run=judged_run(own_store, "bug suspected", evidence=[row]))
    assert "RMS error vs. float64" in page_text(app)
    figure = charts.over_modules(MODULES_ALONE)
    assert "<b>x" not in figure.to_json().replace("\\u003c", "<")
    assert np.isnan(figure.data[1].y[0])  # a log axis has no 0
    assert figure.data[1].y[3] == 1e-3


@pytest.mark.parametrize(
    ("model", "revision", "refusal"),
    [
        ("sample_runs/model", None, ""),
        ("gpt2", "refs/pr/7", ""),
        ("sample_runs/model\u200b", None, "cannot be seen"),
        ("gpt2", "ma\u202ein", "cannot be seen"),
        ("../gone/model", None, "not on this machine"),
        ("~nobody-of-that-name/a/b", None, "not on this machine"),
        ("m" * 5000 + "/a/b", None, "not on this machine"),
    ],
)
def test_a_model_that_cannot_be_loaded_here_is_refused(model, revision, refusal):
    sentence = refusal_of(dataclasses.replace(REQUEST, model=model, revision=revision))
    assert refusal in sentence
    assert bool(sentence) == bool(refusal)


def test_a_model_that_a_file_names_is_shown_before_the_click(own_store):
    app = opened(run=judged_run(own_store, None, model="a-stranger/model", revision="refs/pr/7"))
    assert "Loads `a-stranger/model` at revision `refs/pr/7`" in page_text(app)
    assert "judge" in keys(app)
    assert "Not run: rerun, compute dtype, float32 comparison" in page_text(app)
