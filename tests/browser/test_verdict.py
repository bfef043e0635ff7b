"""The verdict in a real Chromium: judged from the page, unfolded, clicked into, copied; in light, in the dark and on a
phone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from core.runs.file.evidence import PRECISION, RUNGS, SCREENING
from core.runs.reader import RunReader
from core.runs.store.cards import list_runs
from core.runs.store.store import Store
from tests.app.test_copied_texts import harmful, of_a_stranger
from tests.browser.driving import ROOT, Dashboard, pause, picture, settle
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


def step(page: Page, title: str) -> Locator:
    """The rung of that title, to unfold."""
    return page.locator(".st-key-ladder summary").filter(has_text=title)


def unfold(page: Page, title: str) -> None:
    if not page.locator(".st-key-ladder").count():
        page.locator(".st-key-ladder_fold summary").click()
        settle(page)
    step(page, title).click()
    settle(page)


def badge(page: Page) -> Locator:
    return page.locator(".st-key-verdict .stMarkdownBadge").first


def plot(page: Page, key: str) -> Locator:
    return page.locator(f".st-key-{key} .js-plotly-plot")


@pytest.mark.parametrize(("verdict", "scheme"), [*((verdict, "light") for verdict in CASES), ("bug suspected", "dark")])
def test_every_verdict_opens_the_page(browser: Browser, dashboard: Dashboard, runs: Store, verdict, scheme):
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    page.goto(f"{dashboard.url}/overview?run=v-{verdict.split()[0]}&position=40")
    settle(page)
    expect(badge(page)).to_contain_text(verdict)
    page.locator(".st-key-ladder_fold summary").click()
    settle(page)
    asked = {row.rung for row in CASES[verdict][2]}
    rungs = [rung for rung in RUNGS if rung not in (PRECISION, SCREENING) or rung in asked]
    expect(page.locator(".st-key-ladder [data-testid=stExpander]")).to_have_count(len(rungs))
    assert page.locator("[data-testid=stException]").count() == 0
    if verdict == "bug suspected":
        unfold(page, "float32 microscope")
        expect(plot(page, "floor_pair_float32")).to_be_visible()
        unfold(page, "Structure")
        expect(plot(page, "floor_residues")).to_be_visible()
    picture(page, f"verdict-{verdict.split()[0]}-{scheme}")
    context.close()


def test_a_click_on_the_plot_selects_the_position(page: Page, dashboard: Dashboard, runs: Store):
    page.goto(f"{dashboard.url}/overview?run=v-bug&position=10")
    settle(page)
    unfold(page, "float32 microscope")
    for key, share in (("floor_pair_float32", 0.7), ("floor_ratio_float32", 0.3)):
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
    block = page.locator(".st-key-copy_report div:has(> pre)")
    block.hover()
    block.get_by_role("button", name="Copy to clipboard").click()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert "| float32 | passed |" in copied
    assert f"{dashboard.url}/overview?run=v-rounding&variant=decode&position=10" in copied


def test_the_gallery_shows_verdicts_and_filters_by_them(page: Page, dashboard: Dashboard, runs: Store):
    # that of these tests, the labelled one of the sample runs, and what other tests left in the store
    shown = Store(dashboard.store, [ROOT / "tests" / "runs"])
    bugs = sum("bug suspected" in card.pair_verdicts for card in list_runs(shown)[0])
    assert bugs >= 2
    page.goto(dashboard.url)
    settle(page)
    picture(page, "verdict-gallery")
    page.get_by_role("combobox", name="Verdict").click()
    page.get_by_role("option", name="bug suspected").click()
    expect(page.get_by_text(re.compile(rf"^{bugs} of \d+ runs"))).to_be_visible()


@pytest.mark.thorough
@pytest.mark.parametrize("run_id", ["v-bug", "v-unjudged"])
def test_nothing_is_wider_than_a_phone(browser: Browser, dashboard: Dashboard, runs: Store, run_id: str):
    context = browser.new_context(viewport={"width": 390, "height": 844}, color_scheme="dark")
    page = context.new_page()
    page.goto(f"{dashboard.url}/overview?run={run_id}&position=40")
    settle(page)
    if run_id == "v-bug":
        unfold(page, "float32 microscope")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    picture(page, f"verdict-{run_id}-dark-390")
    context.close()


@pytest.mark.thorough
def test_nothing_that_cannot_be_seen_reaches_the_clipboard(page: Page, dashboard: Dashboard, runs: Store):
    """Of a run every text of which is planted: its command, and its report."""
    of_a_stranger(runs.path_of(judged_run(runs, None, run_id="v-stranger")))
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(f"{dashboard.url}/overview?run=v-stranger")
    settle(page)
    page.locator(".st-key-judge_command summary").click()
    page.locator(".st-key-copy_report summary").click()
    settle(page)
    copied = []
    for block in page.locator("div:has(> pre)").all():
        block.hover()
        block.get_by_role("button", name="Copy to clipboard").click()
        copied.append(page.evaluate("navigator.clipboard.readText()"))
    runs.delete("v-stranger")
    assert [harmful(text) for text in copied] == [[], []]
    assert copied[0].startswith("ulpscope judge --model $'x")


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
