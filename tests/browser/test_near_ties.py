"""Near ties in a real Chromium: thousands of positions, and figures that are saved."""

import struct
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import expect

from core.numerics.formats import BFLOAT16
from core.runs.store.store import Store
from tests.browser.driving import visit
from tests.core.runs.made_runs import header_of, write_run

VOCAB = 512


@pytest.fixture(scope="module")
def crowded(dashboard):
    """4096 positions, bfloat16; differences from below a step to a hundred steps."""
    random = np.random.default_rng(1)
    header = header_of("bfloat16", (4096,), VOCAB)
    reference = (random.standard_normal((header.rows, VOCAB)) * 2).astype(BFLOAT16.values)
    size = 10 ** random.uniform(-3.5, -1.2, (header.rows, 1))
    variant = (
        reference.astype(np.float32) + random.standard_normal(reference.shape) * size
    ).astype(BFLOAT16.values)
    path = write_run(
        Store(dashboard.store),
        header,
        [side.view(np.uint16) for side in (reference, variant)],
        "crowded",
    )
    yield "crowded"
    path.unlink()


def opened(page, dashboard, link):
    visit(page, dashboard, link)
    page.wait_for_selector(".js-plotly-plot .main-svg")


def test_thousands_of_positions_are_shaded_and_a_click_on_a_flip_selects_it(
    page,
    dashboard,
    crowded,
):
    with page.expect_response("**/media/*.json"):  # fetched once, not sent at every step
        opened(page, dashboard, f"near_ties?run={crowded}&prompt=0&position=0")
    chart = page.locator(".js-plotly-plot").first
    # a crowd is shaded, its points are not elements of the page
    assert chart.locator(".point").count() < 2100
    opened_at = page.get_by_role("heading", name="Top tokens at position 0", exact=True)
    expect(opened_at).to_be_visible()
    click_some_flip(page, chart)
    expect(opened_at).not_to_be_visible()


def click_some_flip(page, chart):
    names = chart.evaluate("figure => figure.calcdata.map((one) => one[0].trace.name)")
    scatters = [name for name in names if name != "density"]
    place = next(i for i, name in enumerate(scatters) if name.startswith("flip ("))
    box = chart.locator(".scatterlayer .trace").nth(place).locator(".point").last.bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)


def test_the_ring_is_around_the_selected_point(page, dashboard):
    opened(page, dashboard, "near_ties?run=injected-bug")
    chart = page.locator(".js-plotly-plot").first
    middles = """all => all.map((one) => one.getBoundingClientRect()).map((box) =>
        [box.x + box.width / 2, box.y + box.height / 2])"""
    points = np.array(chart.locator(".scatterlayer .point").evaluate_all(middles))
    ring = np.array(chart.locator(".shapelayer path").evaluate_all(middles)[-1])
    assert np.linalg.norm(points - ring, axis=1).min() < 1


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("form", "begins"),
    [("SVG", b"<svg"), ("PNG", b"\x89PNG")],
)
def test_figures_are_saved_as_chosen_under_the_name_of_run_and_position(
    page,
    dashboard,
    form,
    begins,
):
    opened(page, dashboard, "near_ties?run=fresh-against-cached&prompt=1&position=36")
    chart = page.locator(".js-plotly-plot").nth(1)
    chart.scroll_into_view_if_needed()
    chart.hover()
    with page.expect_download() as got:
        chart.locator(f"[data-title='Save as {form}']").click()
    name = f"fresh-against-cached-pair0-top-tokens-prompt1-position36.{form.lower()}"
    assert got.value.suggested_filename == name
    content = Path(got.value.path()).read_bytes()
    assert content.startswith(begins)
    if form == "SVG":
        for line in (
            "(fresh-against-cached)",
            "decode vs prefill",
            "ULPs of bfloat16",
            "prompt 1, position 36",
        ):
            assert line in content.decode()
    else:
        box = chart.bounding_box()
        _, height = struct.unpack(">II", content[16:24])  # of the IHDR chunk
        assert height > 2 * (box["height"] + 20)  # the same lines above it, twice as sharp
