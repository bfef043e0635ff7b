"""The Layers page in a real Chromium: what is drawn, what a click opens, and that it reads in the dark and on a
phone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from core.runs.store.store import Store
from tests.browser.driving import Dashboard, picture, settle
from tests.browser.test_accessibility import faults
from tests.core.runs.layer_runs import MODULES, layer_run


@pytest.fixture(scope="module")
def layered(dashboard: Dashboard) -> Iterator[str]:
    """60 positions, the projection of block 0 apart from position 20 on, every later module twice as far."""
    changed = {
        (ordinal, 0, position): 1 << (ordinal - 2)
        for ordinal in range(2, len(MODULES))
        for position in range(20 + ordinal, 60, ordinal)
    }
    store = Store(dashboard.store)
    yield layer_run(store, changed, chosen=(tuple(range(60)),), lengths=(60,), run_id="layered")
    store.delete("layered")


def test_a_click_on_the_map_opens_the_module_and_selects_the_position(page: Page, dashboard: Dashboard, layered: str):
    page.goto(f"{dashboard.url}/layers?run={layered}&position=3")
    settle(page)
    expect(page.locator("h1")).to_have_text("Internals")
    expect(page.get_by_text("is the first module that differs, at position 22")).to_be_visible()
    expect(page.locator(".js-plotly-plot")).to_have_count(3)
    picture(page, "layers")
    map_ = page.locator(".js-plotly-plot").nth(1)
    map_.scroll_into_view_if_needed()
    plot = map_.locator(".nsewdrag").first.bounding_box()
    assert plot is not None
    x, y = (
        plot["x"] + plot["width"] * 40.5 / 60,
        plot["y"] + plot["height"] * 4.5 / 6,
    )  # position 40 of the stream of block 1
    page.mouse.move(x, y)
    expect(map_.locator(".hoverlayer")).to_contain_text("model.layers.1from position 40: 1.41 times the floor")
    page.mouse.click(x, y)
    expect(page.get_by_label("Position, 0 to 59")).to_have_value("40")
    settle(page)
    assert re.search(r"position=40\b.*module=model\.layers\.1\b", page.url)
    expect(page.get_by_text(", residual:")).to_be_visible()
    assert faults(page) == []
    page.set_viewport_size({"width": 390, "height": 844})
    page.emulate_media(color_scheme="dark")
    page.reload()
    settle(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    expect(page.get_by_text(", residual:")).to_be_visible()  # the link restores the module
    assert faults(page) == []
    picture(page, "layers-dark-390")
