"""The Ops page in a real Chromium: two machines beside each other, a row's classes, and a probe of this machine that is
cancelled.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from playwright.sync_api import Page, expect

from core.runs.ops_run import OpsHeader, write_ops_run
from core.runs.store.store import Store
from core.runs.tables.ops import BatchClass, OpRow, Repeats, RowPositions
from tests.browser.driving import Dashboard, picture, settle

MM = OpRow(
    "mm",
    "",
    "float32",
    "256 to 256",
    elements=256,
    repeats=Repeats(25),
    relative_rms=3e-7,
    classes=(BatchClass((1, 2, 3), "a" * 16), BatchClass((4, 8), "b" * 16, 231, 1792)),
    positions=(RowPositions(3, ((0, 1, 2),)),),
)
OTHER = replace(MM, classes=(BatchClass((1,), "a" * 16), BatchClass((2, 3, 4, 8), "d" * 16, 9, 3)))
SOFTMAX = replace(MM, op="softmax", size="width 256", classes=(BatchClass((1, 2, 3, 4, 8), "c" * 16),))


@pytest.fixture(scope="module")
def machines(dashboard: Dashboard) -> Iterator[str]:
    store = Store(dashboard.store)
    for name, device, rows in (("a-processor", "cpu", (MM, SOFTMAX)), ("a-card", "cuda:0", (OTHER, SOFTMAX))):
        about = OpsHeader(
            name, device, f"<b>{name}</b>", ("float32",), 0, "python -m core ops", versions={"torch": "2.13.0"}
        )
        write_ops_run(store, about, rows, run_id=name)
    yield "a-processor,a-card"
    for name in ("a-processor", "a-card"):
        store.delete(name)


@pytest.mark.thorough
def test_machines_stand_beside_each_other_and_this_one_is_probed(page: Page, dashboard: Dashboard, machines: str):
    page.goto(f"{dashboard.url}/ops?machines={machines}")
    settle(page)
    expect(page.locator("h1")).to_have_text("Ops")
    expect(page.get_by_text("M2: cuda:0, <b>a-card</b>, torch 2.13.0")).to_be_visible()  # as text
    page.get_by_text("where machines disagree").click()
    settle(page)
    expect(page.get_by_text("1 of 2 probes")).to_be_visible()
    table = page.locator("[data-testid=stDataFrame]").first
    place = table.bounding_box()
    assert place is not None
    page.mouse.click(place["x"] + 16, place["y"] + 50)  # the box of the first row, which is drawn on a canvas
    settle(page)
    expect(page.get_by_role("heading", name="mm, float32, 256 to 256")).to_be_visible()
    letters = page.locator(".js-plotly-plot .textpoint")
    expect(letters).to_have_text(["A", "A", "A", "B", "B", "A", "C", "C", "C", "C"])
    assert re.search(r"show=disagree.*row=mm", page.url)
    picture(page, "ops")

    page.get_by_text("Probe this machine").first.click()
    settle(page)
    page.get_by_role("button", name="Probe this machine").click()
    expect(page.get_by_text(re.compile(r"of 5\d probes"))).to_be_visible(
        timeout=300_000
    )  # a job is polite to what else runs
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text("cancelled; nothing was stored")).to_be_visible()
    page.get_by_role("button", name="Dismiss").click()
    expect(page.get_by_text("cancelled; nothing was stored")).to_have_count(0)
