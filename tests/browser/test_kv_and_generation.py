"""The KV cache page and the continuations in a real Chromium: what is drawn, and what a click selects."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from core.runs.queries.caches import cells
from core.runs.reader import RunReader
from core.runs.store.store import Store
from core.runs.tables.kv_cache import KINDS, KvPart
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


@pytest.mark.thorough
def test_a_click_on_the_map_selects_the_position(page: Page, dashboard: Dashboard, runs: None):
    page.goto(f"{dashboard.url}/kv_cache?run=deep&position=10")
    settle(page)
    expect(page.locator("h1")).to_have_text("Internals")
    expect(page.get_by_text("first in layer 3's keys and values")).to_be_visible()
    picture(page, "kv-cache")
    map_ = page.locator(".js-plotly-plot").nth(1)
    map_.scroll_into_view_if_needed()
    plot = map_.locator(".nsewdrag").first.bounding_box()
    assert plot is not None
    x, y = plot["x"] + plot["width"] * 0.7, plot["y"] + plot["height"] * 0.8
    page.mouse.move(x, y)
    hover = map_.locator(".hoverlayer")
    expect(hover).to_contain_text(re.compile(r"layer 25from position \d+: [\d.]+% of its elements differ"))
    first, share = re.search(r"position (\d+): ([\d.]+)%", hover.text_content() or "").groups()
    with RunReader(Store(dashboard.store).path_of("deep")) as run:
        grid = cells(run, 0, 0, "key", "neq_share")
    cell = grid[(grid["row"] == 25) & (grid["first_position"] == int(first))].iloc[0]
    assert float(share) == pytest.approx(100 * cell["value"], rel=1e-3)
    page.mouse.click(x, y)
    expect(page.get_by_label("Position, 0 to 999")).not_to_have_value("10")
    settle(page)
    position = int(re.search(r"position=(\d+)", page.url).group(1))
    assert 685 <= position <= 715


def test_the_token_that_parts_the_sides_is_marked_and_a_click_on_the_row_selects_it(
    page: Page, dashboard: Dashboard, runs: None
):
    page.goto(f"{dashboard.url}/flips?run=continued&variant=decode&prompt=0&position=0")
    settle(page)
    expect(page.get_by_text("▸ w12◂")).to_be_visible()
    expect(page.get_by_text("▸ <b>two</b>")).to_be_visible()  # markup in a token is text
    picture(page, "continuations")
    table = page.get_by_test_id("stDataFrame").first
    table.click(position={"x": 60, "y": 50})
    expect(page.get_by_role("heading", name=f"Position {PARTING}")).to_be_visible()
    settle(page)
    assert f"position={PARTING}" in page.url
