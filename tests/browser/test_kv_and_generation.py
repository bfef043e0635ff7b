"""The KV cache page and the continuations in a real Chromium: what is drawn, and what a click selects."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect

from core.runs.reader import RunReader
from core.runs.store.store import Store
from core.runs.tables.kv_cache import KINDS, KvPart
from core.runs.views.kv_cache import by_position
from tests.browser.driving import Dashboard, picture, settle
from tests.core.runs.cache_runs import PARTING, both, cache, continued_run, kv_run


@pytest.fixture(scope="module")
def runs(dashboard: Dashboard) -> Iterator[None]:
    """`continued`; `deep`: 32 layers, 8 heads, 1000 positions, differing from layer 3 and position 400 on."""
    store = Store(dashboard.store)
    continued_run(store)
    parts = []
    random = np.random.default_rng(0)
    for layer in range(32):
        for kind in KINDS:
            bits = cache(layer, 8, 1000, 8)
            changed = bits.copy()
            changed[:, 400:] ^= (random.random((8, 600, 8)) < max(0, layer - 2) / 40).astype(np.uint16)
            parts += both(KvPart(0, layer, kind, 0, bits), changed)
    kv_run(store, parts, lengths=(1000,), run_id="deep")
    yield
    for name in ("continued", "deep"):
        store.delete(name)


def charts(page: Page) -> int:
    return page.locator(".js-plotly-plot").count()


@pytest.mark.thorough
def test_a_click_on_the_map_selects_the_position(page: Page, dashboard: Dashboard, runs: None):
    page.goto(f"{dashboard.url}/kv_cache?run=deep&position=10")
    settle(page)
    expect(page.locator("h1")).to_have_text("KV cache")
    expect(page.get_by_text("first in layer 3's keys and values")).to_be_visible()
    picture(page, "kv-cache")
    map_ = page.locator(".js-plotly-plot").nth(2)
    map_.scroll_into_view_if_needed()
    plot = map_.locator(".nsewdrag").first.bounding_box()
    assert plot is not None
    x, y = plot["x"] + plot["width"] * 0.7, plot["y"] + plot["height"] * 0.8
    page.mouse.move(x, y)
    hover = map_.locator(".hoverlayer")
    expect(hover).to_contain_text(re.compile(r"layer 25, positions around \d+: [\d.]+% of its elements differ"))
    around, share = re.search(r"around (\d+): ([\d.]+)%", hover.text_content() or "").groups()
    with RunReader(Store(dashboard.store).path_of("deep")) as run:
        grid = by_position(run, 0, 0)["key"]
    cell = np.searchsorted(grid.edges, int(around), side="right") - 1
    assert float(share) == pytest.approx(100 * grid.neq_share[25, cell], rel=1e-3)
    page.mouse.click(x, y)
    expect(page.get_by_label("Position, 0 to 999")).not_to_have_value("10")
    settle(page)
    position = int(re.search(r"position=(\d+)", page.url).group(1))
    assert 685 <= position <= 715


@pytest.mark.thorough
def test_the_map_zooms_by_dragging_and_selects_nothing(page: Page, dashboard: Dashboard, runs: None):
    page.goto(f"{dashboard.url}/kv_cache?run=deep&position=10")
    settle(page)
    map_ = page.locator(".js-plotly-plot").nth(2)
    map_.scroll_into_view_if_needed()
    plot = map_.locator(".nsewdrag").first.bounding_box()
    assert plot is not None
    page.mouse.move(plot["x"] + plot["width"] * 0.4, plot["y"] + plot["height"] * 0.3)
    page.mouse.down()
    page.mouse.move(plot["x"] + plot["width"] * 0.6, plot["y"] + plot["height"] * 0.6, steps=6)
    page.mouse.up()
    settle(page)
    low, high = map_.evaluate("figure => figure._fullLayout.xaxis.range")
    assert 380 < low < 420
    assert 580 < high < 620
    assert "position=10" in page.url


@pytest.mark.thorough
def test_measure_and_kind_change_what_is_drawn(page: Page, dashboard: Dashboard, runs: None):
    page.goto(f"{dashboard.url}/kv_cache?run=deep")
    settle(page)
    page.get_by_test_id("stButtonGroup").filter(has_text="rms difference").get_by_text("rms difference").click()
    expect(page.get_by_text("the rms difference in a head")).to_be_visible()
    page.get_by_test_id("stButtonGroup").filter(has_text="keys").get_by_text("values", exact=True).click()
    expect(page.get_by_text("Layers x positions of the values")).to_be_visible()
    expect(page.locator(".js-plotly-plot")).to_have_count(
        3
    )  # what was drawn before goes a moment after the new is there


@pytest.mark.thorough
def test_every_table_of_the_page_downloads_under_its_name(page: Page, dashboard: Dashboard, runs: None):
    page.goto(f"{dashboard.url}/kv_cache?run=deep")
    settle(page)
    page.get_by_test_id("stPopoverButton").filter(has_text="Download").click()
    buttons = page.get_by_test_id("stPopoverBody").get_by_role("button", name="CSV", exact=True)
    expect(buttons).to_have_count(3)
    found = {}
    for button in buttons.all():
        with page.expect_download() as got:
            button.click()
        found[got.value.suggested_filename] = Path(got.value.path()).read_text().splitlines()
    with RunReader(Store(dashboard.store).path_of("deep")) as run:
        expected = {
            "by-layer": 64,
            "by-prompt-layer-and-head": len(run.kv(0)),
            "by-position": len(run.kv_positions(0, 0)),
        }
    assert {name: len(lines) - 1 for name, lines in found.items()} == {
        f"deep-pair0-kv-{part}.csv": rows for part, rows in expected.items()
    }


@pytest.mark.thorough
def test_equal_caches_are_a_sentence_in_the_dark_and_on_a_phone(browser: Browser, dashboard: Dashboard, runs: None):
    context = browser.new_context(viewport={"width": 390, "height": 844}, color_scheme="dark")
    page = context.new_page()
    page.goto(f"{dashboard.url}/kv_cache?run=continued&variant=decode%2Bbatch:8")
    settle(page)
    expect(page.get_by_text("Nothing differs")).to_be_visible()
    assert charts(page) == 0
    page.goto(f"{dashboard.url}/kv_cache?run=continued&variant=decode")
    settle(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    picture(page, "kv-cache-dark-390")
    page.goto(f"{dashboard.url}/flips?run=continued&variant=decode")
    settle(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    picture(page, "continuations-dark-390")
    context.close()


def test_the_token_that_parts_the_sides_is_marked_on_both_and_a_click_selects_it(
    page: Page, dashboard: Dashboard, runs: None
):
    page.goto(f"{dashboard.url}/flips?run=continued&variant=decode&prompt=0&position=0")
    settle(page)
    expect(page.locator(".reference .token.parting")).to_have_text("·w12")
    expect(page.locator(".variant .token.parting")).to_have_text("·<b>two</b>↵\n")  # markup in a token is text
    expect(page.locator(".reference .token.given")).to_have_count(5)
    expect(page.locator(".variant .token.common")).to_have_count(2)
    expect(page.locator(".variant .token.after")).to_have_count(5)
    page.locator(".variant .token.parting").click()
    expect(page.get_by_role("heading", name=f"Position {PARTING}")).to_be_visible()
    settle(page)
    assert f"position={PARTING}" in page.url
    expect(page.locator(".token.here")).to_have_count(2)
    picture(page, "continuations")


@pytest.mark.thorough
def test_a_token_after_the_parting_is_no_place_of_the_run(page: Page, dashboard: Dashboard, runs: None):
    page.goto(f"{dashboard.url}/flips?run=continued&variant=decode&prompt=0&position=3")
    settle(page)
    page.locator(".variant .token.after").first.click()
    settle(page)
    assert "position=3" in page.url
    page.locator(".reference .token.after").first.click()  # the reference's own text goes on being scored
    expect(page.get_by_label("Position, 0 to 11")).to_have_value(str(PARTING + 1))


@pytest.mark.thorough
def test_a_row_of_the_table_selects_prompt_variant_and_position(page: Page, dashboard: Dashboard, runs: None):
    page.goto(f"{dashboard.url}/flips?run=continued&variant=decode%2Bbatch:8&prompt=1&position=0")
    settle(page)
    expect(page.get_by_text("do not diverge within 8 tokens")).to_be_visible()
    table = page.locator("[data-testid=stDataFrame]").first.bounding_box()
    assert table is not None
    page.mouse.click(table["x"] + 17, table["y"] + 52)  # the box of the first row; the table is drawn on a canvas
    expect(page.get_by_text("diverge after 2 tokens in common")).to_be_visible()
    settle(page)
    assert f"variant=decode&prompt=0&position={PARTING}" in page.url


@pytest.mark.thorough
def test_the_overview_leads_to_both_pages_and_keeps_the_selection(page: Page, dashboard: Dashboard, runs: None):
    for label, title in (("KV cache →", "KV cache"), ("Flips →", "Flips")):
        page.goto(f"{dashboard.url}/overview?run=continued&variant=decode&prompt=0&position=7")
        settle(page)
        if title == "Flips":
            picture(page, "overview-continued")
        page.get_by_role("link", name=label).click()
        expect(page.locator("h1")).to_have_text(title)
        settle(page)
        assert "position=7" in page.url
        assert "variant=decode" in page.url
