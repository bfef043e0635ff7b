"""The verdict in a real Chromium: judged from the page, unfolded, clicked into, copied; in light, in the dark and on a
phone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, Page, expect

from core.runs.reader import RunReader
from core.runs.store.store import Store
from tests.browser.driving import Dashboard, pause, picture, settle
from tests.core.runs.judged_runs import CASES, judged_run


@pytest.fixture(scope="module")
def runs(dashboard: Dashboard) -> Iterator[Store]:
    """A run of every verdict, `v-bug` and so on, and `v-unjudged`."""
    store = Store(dashboard.store)
    names = {verdict: f"v-{verdict.split()[0]}" for verdict in CASES}
    for verdict, run_id in names.items():
        judged_run(store, verdict, run_id=run_id)
    judged_run(store, None, run_id="v-unjudged")
    yield store
    for run_id in (*names.values(), "v-unjudged"):
        store.delete(run_id)


def badge(page: Page) -> Locator:
    return page.locator(".st-key-verdict .stMarkdownBadge").first


def plot(page: Page, key: str) -> Locator:
    return page.locator(f".st-key-{key} .js-plotly-plot")


def test_a_click_on_the_plot_selects_the_position(page: Page, dashboard: Dashboard, runs: Store):
    page.goto(f"{dashboard.url}/overview?run=v-bug&position=10")
    settle(page)
    for key, share in (("floor_ratio_float32", 0.7), ("floor_ratio_float32", 0.3)):
        before = re.search(r"position=(\d+)", page.url)
        plot(page, key).scroll_into_view_if_needed()
        area = plot(page, key).locator(".nsewdrag").first.bounding_box()
        assert area is not None
        low, high = plot(page, key).evaluate("figure => figure._fullLayout.xaxis.range")
        page.mouse.move(area["x"] + area["width"] * share, area["y"] + area["height"] * 0.5)
        pause(page, 300)
        page.mouse.click(area["x"] + area["width"] * share, area["y"] + area["height"] * 0.5)
        expect(page.get_by_label("Position, 0 to 95")).not_to_have_value(before.group(1) if before else "10")
        settle(page)
        position = int(re.search(r"position=(\d+)", page.url).group(1))
        assert abs(position - (low + (high - low) * share)) < 8, key
        expect(plot(page, key)).to_be_visible()  # what was unfolded stays so


@pytest.mark.thorough
def test_the_report_unfolds_with_a_button_that_copies_it(page: Page, dashboard: Dashboard, runs: Store):
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(f"{dashboard.url}/overview?run=v-rounding&position=10")
    settle(page)
    page.locator(".st-key-copy_report summary").click()
    settle(page)
    block = page.locator(".st-key-copy_report [data-testid=stCode]")
    block.hover()
    block.get_by_role("button", name="Copy to clipboard").click()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert "| passed | float32 comparison |" in copied
    assert f"{dashboard.url}/overview?run=v-rounding&variant=decode&position=10" in copied


@pytest.mark.thorough
@pytest.mark.model
def test_a_run_that_was_not_judged_is_judged_from_the_page(page: Page, dashboard: Dashboard, runs: Store):
    """A real capture and every control, on the run's own tokens and the shipped model."""
    page.goto(f"{dashboard.url}/overview?run=v-unjudged")
    settle(page)
    expect(badge(page)).to_contain_text("not judged")
    picture(page, "verdict-unjudged")
    page.get_by_role("button", name="Judge it here").click()
    expect(page.get_by_text("It goes on if you leave this page.")).to_be_visible()
    expect(page.get_by_text("Judged: None, judged").first).to_be_visible(timeout=300_000)  # it opens by itself
    settle(page)
    expect(badge(page)).to_contain_text("rounding")
    run_id = re.search(r"run=([^&]+)", page.url).group(1)
    assert run_id != "v-unjudged"
    with RunReader(runs.path_of(run_id)) as run, RunReader(runs.path_of("v-unjudged")) as first:
        assert run.header.prompts[0].token_ids == first.header.prompts[0].token_ids
        assert run.pairs[0].verdict == "rounding"
        assert {row.rung for row in run.evidence(0)} >= {"rerun", "own dtype", "float32"}
    picture(page, "verdict-judged-here")
    page.goto(f"{dashboard.url}/capture")  # the list of jobs is every viewer's, other tests' too
    page.get_by_role("button", name="Dismiss").first.click()  # the newest stands first
    settle(page)
    runs.delete(run_id)
