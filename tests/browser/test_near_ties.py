"""Near ties and Flips in a real Chromium: thousands of positions, and what is downloaded."""

from __future__ import annotations

import csv
import io
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from playwright.sync_api import Locator, Page, expect

from core.numerics.formats import BFLOAT16
from core.runs.file.records import Prompt, Provenance, RunHeader, SideHeader
from core.runs.reader import RunReader
from core.runs.store.store import Store
from core.runs.writer import RunWriter
from tests.browser.driving import Dashboard, picture, visit

VOCAB = 512
LENGTHS = (4096, 300)


@pytest.fixture(scope="module")
def crowded(dashboard: Dashboard) -> Iterator[str]:
    """4096 and 300 positions, bfloat16; differences from below a step to a hundred steps, one token text a formula, one
    markup.
    """
    random = np.random.default_rng(1)
    texts = {i: f" w{i}" for i in range(VOCAB)} | {3: "=cmd|' /C calc'!A0", 4: "<img src=x onerror=alert(1)>"}
    prompts = tuple(Prompt(n, tuple(int(i) for i in random.integers(0, VOCAB, n))) for n in LENGTHS)
    sides = tuple(SideHeader(name, name, "bfloat16") for name in ("prefill", "decode+batch:8"))
    header = RunHeader("Crowded", "bfloat16", VOCAB, prompts, sides, Provenance("capture", model="planted"), texts)
    reference = (random.standard_normal((header.rows, VOCAB)) * 2).astype(BFLOAT16.values)
    size = 10 ** random.uniform(-3.5, -1.2, (header.rows, 1))
    variant = (reference.astype(np.float32) + random.standard_normal(reference.shape) * size).astype(BFLOAT16.values)
    store = Store(dashboard.store)
    with RunWriter(store, header, run_id="crowded") as writer:
        writer.write(0, 0, reference.view(np.uint16))
        writer.write(1, 0, variant.view(np.uint16))
        writer.finish()
    yield "crowded"
    store.delete("crowded")


def opened(page: Page, dashboard: Dashboard, link: str) -> None:
    visit(page, dashboard, link)
    page.wait_for_selector(".js-plotly-plot .main-svg")


def test_thousands_of_positions_are_shaded_and_a_click_on_a_flip_selects_it(
    page: Page, dashboard: Dashboard, crowded: str
):
    with page.expect_response("**/media/*.json"):  # fetched once, not sent at every step
        opened(page, dashboard, f"near_ties?run={crowded}&prompt=0&position=0")
    chart = page.locator(".js-plotly-plot").first
    assert chart.locator(".point").count() < 2100  # a crowd is shaded, its points are not elements of the page
    picture(page, "near-ties")
    opened_at = page.get_by_role("heading", name="Top tokens at position 0", exact=True)
    expect(opened_at).to_be_visible()
    click_some_flip(page, chart)
    expect(opened_at).not_to_be_visible()


def click_some_flip(page: Page, chart: Locator) -> None:
    names = chart.evaluate("figure => figure.calcdata.map((one) => one[0].trace.name)")
    scatters = [name for name in names if name != "density"]
    place = next(i for i, name in enumerate(scatters) if name.startswith("flip ("))
    box = chart.locator(".scatterlayer .trace").nth(place).locator(".point").last.bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)


def files(page: Page, popover: Locator, *names: str) -> dict[str, tuple[str, bytes]]:
    """What the buttons of a Download popover give: suggested name and content."""
    popover.click()
    found = {}
    for name in names:
        with page.expect_download() as got:
            page.get_by_test_id("stPopoverBody").get_by_role("button", name=name, exact=True).first.click()
        found[name] = (got.value.suggested_filename, Path(got.value.path()).read_bytes())
    page.keyboard.press("Escape")
    return found


def test_the_table_of_flips_downloads_with_every_digit_in_both_forms(page: Page, dashboard: Dashboard, crowded: str):
    visit(page, dashboard, f"flips?run={crowded}&position=0")
    got = files(page, page.get_by_test_id("stPopoverButton").filter(has_text="Download").first, "CSV", "Parquet")
    assert [got[form][0] for form in ("CSV", "Parquet")] == ["crowded-pair0-flips.csv", "crowded-pair0-flips.parquet"]
    heading, *rows = csv.reader(io.StringIO(got["CSV"][1].decode(), newline=""))
    table = pq.read_table(io.BytesIO(got["Parquet"][1])).to_pydict()
    assert heading == list(table)
    with RunReader(Store(dashboard.store).path_of(crowded)) as run:
        figures = run.positions(0)
    flips = figures[figures["is_flip"]]
    for name in ("max_abs", "kl", "reference_margin"):
        assert [float(row[heading.index(name)]) for row in rows] == table[name] == flips[name].tolist()
    texts = [row[heading.index("reference_text")] for row in rows]
    assert not any(text.startswith("=") for text in texts)
    assert "<img src=x onerror=alert(1)>" in texts or 4 not in table["reference_token"]
    assert all(
        f" w{token}" == text for token, text in zip(table["reference_token"], texts, strict=True) if token not in (3, 4)
    )


@pytest.mark.thorough
@pytest.mark.parametrize(("form", "begins"), [("SVG", b"<svg"), ("PNG", b"\x89PNG")])
def test_figures_are_saved_as_chosen_under_the_name_of_run_and_position(
    page: Page, dashboard: Dashboard, form: str, begins: bytes
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
        for part in (
            "(fresh-against-cached)",
            "decode vs prefill",
            "logits and ULPs of bfloat16",
            "prompt 1, position 36",
        ):
            assert part in content.decode()
    else:
        box = chart.bounding_box()
        assert box is not None
        _, height = struct.unpack(">II", content[16:24])  # of the IHDR chunk
        assert height > 2 * (box["height"] + 20)  # the same lines above it, twice as sharp
