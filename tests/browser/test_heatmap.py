"""The heatmap in a real Chromium: one differing logit among twelve million is seen, reached and
told; windows are links.
"""

import re
import struct
from dataclasses import replace

import numpy as np
import pytest
from playwright.sync_api import expect

from core.numerics.formats import BFLOAT16, values_of
from core.runs.file.records import Prompt
from core.runs.store.store import Store
from tests.browser.driving import (
    expect_heading,
    not_in_firefox,
    pause,
    place,
    press,
    settle,
    visit,
    wait_for_map,
    window,
)
from tests.core.runs.made_runs import header_of, sides_one_ulp_apart, write_run

ROWS, VOCAB, ROW, TOKEN = 600, 20000, 417, 15321
TEXT = "<img src=x onerror=alert(1)>"
# Pixels of the map that are neither empty nor the frame, as [x, y, red, green, blue] in its own
# coordinates, 0 to 1.
COLOURED = """(canvas) => {
  const [left, top, width, height] = canvas.dataset.plot.split(",").map(Number);
  const ratio = canvas.width / canvas.clientWidth;
  const [x, y, w, h] = [left, top, width, height].map((v) => Math.round(v * ratio));
  const pixels = canvas.getContext("2d").getImageData(x + 2, y + 2, w - 4, h - 4).data;
  const found = [];
  for (let i = 0; i < pixels.length; i += 4) {
    if (pixels[i + 3] !== 255) continue;
    const across = (2 + (i / 4) % (w - 4)) / w;
    const down = (2 + Math.floor(i / 4 / (w - 4))) / h;
    found.push([across, down, ...pixels.slice(i, i + 3)]);
  }
  return found;
}"""


@pytest.fixture(scope="module")
def runs(dashboard):
    """`one-differs`: one logit differs by one ULP. Gone afterwards: other tests count runs."""
    header = header_of("bfloat16", (400, 200), VOCAB)
    header = replace(header, prompts=(Prompt(400), Prompt(200)), vocabulary={TOKEN: TEXT})
    sides = sides_one_ulp_apart(header, ROW, TOKEN)
    path = write_run(Store(dashboard.store), header, sides, "one-differs")
    yield sides
    path.unlink()


def opened(page, dashboard, link, order="&order=id"):
    visit(page, dashboard, f"heatmap?{link}&position=0{order}")
    return wait_for_map(page)


def test_one_differing_logit_is_seen_clicked_reached_and_told(page, dashboard, runs):
    canvas = opened(page, dashboard, "run=one-differs")
    coloured = canvas.evaluate(COLOURED)
    assert 9 <= len(coloured) <= 100  # a point of five pixels or so
    assert abs(np.mean([p[0] for p in coloured]) - TOKEN / VOCAB) < 0.01
    assert abs(np.mean([p[1] for p in coloured]) - ROW / ROWS) < 0.01

    canvas.evaluate("(canvas) => { canvas.mark = 'the same'; }")
    page.mouse.click(*place(canvas, ROW + 0.5, TOKEN))
    expect(page.get_by_role("heading", name=f"at position {ROW - 400}").first).to_be_visible()
    settle(page)
    assert "prompt=1" in page.url
    assert f"position={ROW - 400}" in page.url
    assert f"token={TOKEN}" in page.url
    assert canvas.evaluate("(canvas) => canvas.mark") == "the same"  # a click does not draw it anew

    for _ in range(40):
        page.mouse.move(*place(canvas, ROW + 0.5, TOKEN + 0.5))
        page.mouse.wheel(0, -300)
        wait_for_map(page)
        y0, y1, x0, x1 = window(canvas)
        assert y0 <= ROW < y1
        assert x0 <= TOKEN < x1
        assert canvas.evaluate(COLOURED), (y0, y1, x0, x1)  # at every zoom
        # the smallest window, SPAN of colours.js
        if (y1 - y0, x1 - x0) == (4, 8):
            break
    assert y1 - y0 == 4
    assert x1 - x0 == 8
    assert canvas.get_attribute("data-level") == "0,0"
    page.mouse.move(*place(canvas, ROW + 0.4, TOKEN + 0.4))
    tip = page.locator(".tip")
    values = [f"{float(values_of(side[ROW, TOKEN], BFLOAT16)):.9g}" for side in runs]
    expect(tip).to_contain_text(f"prompt 1, position {ROW - 400}", timeout=10_000)
    for text in (
        f"side_0: {values[0]}",
        f"side_1: {values[1]}",
        "1 ULP of bfloat16",
        TEXT.replace(" ", "·"),
        f"({TOKEN})",
    ):
        expect(tip).to_contain_text(text)
    assert tip.locator("img").count() == 0  # a token's text is text


def test_wheel_and_drag_move_the_window_and_the_address_keeps_it(
    page,
    dashboard,
    browser,
):
    canvas = opened(page, dashboard, "run=fresh-against-cached")
    whole = page.get_by_role("button", name="Whole run")
    expect(whole).to_be_disabled()
    assert window(canvas) == (0, 729, 0, 4096)
    page.mouse.move(*place(canvas, 364.5, 2048))
    page.mouse.wheel(0, -400)
    wait_for_map(page)
    y0, y1, x0, x1 = window(canvas)
    assert (y0 + y1) / 2 == pytest.approx(364.5, abs=2)
    assert (x0 + x1) / 2 == pytest.approx(2048, abs=10)
    assert (y1 - y0) / 729 == pytest.approx((x1 - x0) / 4096)
    assert 0.2 < (y1 - y0) / 729 < 0.5

    start, stop = place(canvas, 364, 2048), place(canvas, 364 + (y1 - y0) / 4, 2048 + (x1 - x0) / 4)
    page.mouse.move(*start)
    page.mouse.down()
    page.mouse.move(*stop, steps=6)
    page.mouse.up()
    wait_for_map(page)
    moved = window(canvas)
    assert moved[0] == pytest.approx(y0 - (y1 - y0) / 4, abs=2)
    assert moved[2] == pytest.approx(x0 - (x1 - x0) / 4, abs=10)
    page.wait_for_url(
        re.compile(rf"rows={int(moved[0])}(%3A|:)"),
        timeout=15_000,
    )  # where the wheel came to rest it may have been said before
    settle(page)
    assert "position=0" in page.url  # a drag selects nothing
    linked = {
        axis: [int(n) for n in re.search(rf"{axis}=(\d+)(?:%3A|:)(\d+)", page.url).groups()]
        for axis in ("rows", "tokens")
    }
    assert linked["rows"] == [int(moved[0]), int(np.ceil(moved[1]))]
    assert linked["tokens"] == [int(moved[2]), int(np.ceil(moved[3]))]
    assert window(canvas) == moved  # what came back from the server moved nothing

    # gestures can be undone; two that follow each other closely are one entry, on a slow machine
    # two
    steps = 0
    while "rows=" in page.url and steps < 4:
        page.go_back()
        settle(page)
        steps += 1
    expect(whole).to_be_disabled()
    for _ in range(steps):
        page.go_forward()
        settle(page)
    expect(whole).to_be_enabled()
    settle(page)
    assert window(wait_for_map(page)) == (*linked["rows"], *linked["tokens"])
    whole.click()
    expect(whole).to_be_disabled()
    page.wait_for_url(re.compile("heatmap(?!.*rows=)"))


def test_the_keyboard_reaches_everything(page, dashboard):
    canvas = opened(page, dashboard, "run=batch-1-against-n")
    canvas.focus()
    page.keyboard.press("+")
    page.keyboard.press("+")
    wait_for_map(page)
    assert window(canvas)[1] - window(canvas)[0] == pytest.approx(287 / 4)
    before = window(canvas)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowLeft")
    wait_for_map(page)
    after = window(canvas)
    assert after[0] > before[0]
    assert after[2] < before[2]
    expect(page.locator(".tip")).to_be_visible(timeout=10_000)  # what is at the middle is told
    page.keyboard.press("Enter")
    expect_heading(page, re.compile("Token .* at position"))
    position = int(re.search(r"position=(\d+)", page.url).group(1))
    assert after[0] <= position < after[1]
    canvas.focus()
    page.keyboard.press("0")
    wait_for_map(page)
    assert window(canvas) == (0, 287, 0, 4096)


def test_the_first_ranks_come_first_with_texts_and_every_logit_is_one_click_away(
    page,
    dashboard,
):
    canvas = opened(page, dashboard, "run=batch-1-against-n", order="")
    assert window(canvas) == (0, 287, 0, 64)
    with page.expect_response(re.compile("/tokens")) as texts:
        press(page, "Rows at the position")
    wait_for_map(page)
    rows = texts.value.json()
    assert window(canvas) == (0, 17, 0, 16)
    assert len(rows) == 17
    assert len(rows[0]) == 16
    token, text = rows[0][0]  # the argmax of position 0
    page.mouse.move(*place(canvas, 0.5, 0.5))
    expect(page.locator(".tip")).to_contain_text(f"{text}  ({token})", timeout=10_000)
    press(page, "token id", is_exact=True)  # every logit, by one click
    wait_for_map(page)
    assert window(canvas) == (0, 17, 0, 4096)
    page.wait_for_url(re.compile("order=id"))


@pytest.mark.thorough
def test_colours_need_no_tile_and_a_tile_is_fetched_once(page, dashboard):
    asked = []
    page.on(
        "request",
        lambda request: asked.append(request.url) if "/tiles/" in request.url else None,
    )
    canvas = opened(page, dashboard, "run=batch-1-against-n&cells=ulps")
    first = len(asked)
    assert first > 0
    before = canvas.evaluate(COLOURED)
    for name in ("linear", "log"):
        press(page, name, is_exact=True)
        wait_for_map(page)
        pause(page, 100)
        if name == "linear":
            assert canvas.evaluate(COLOURED) != before
    assert canvas.evaluate(COLOURED) == before
    assert len(asked) == first
    press(page, "Zoom in")
    wait_for_map(page)
    press(page, "Zoom out")
    wait_for_map(page)
    assert len(asked) == len(set(asked))
    assert canvas.evaluate(COLOURED) == before


@pytest.mark.thorough
def test_a_tile_that_fails_is_said_in_a_sentence(page, dashboard):
    page.route(
        "**/tiles/**",
        lambda route: route.fulfill(
            status=409,
            json={"error": "run.duckdb: <b>its</b> heatmap makes no sense."},
        ),
    )
    visit(page, dashboard, "heatmap?run=batch-1-against-n&position=0")
    page.wait_for_selector("canvas[data-state=failed]")
    expect(page.locator(".status")).to_contain_text("<b>its</b> heatmap makes no sense")
    assert page.locator(".status b").count() == 0
    page.unroute("**/tiles/**")
    press(page, "Zoom in")
    wait_for_map(page)


@not_in_firefox("downloads of what a script made")
def test_colours_are_in_the_link_and_the_map_is_saved_as_a_picture(page, dashboard):
    canvas = opened(page, dashboard, "run=batch-1-against-n&position=89&rows=80:97&tokens=0:1024")
    before = canvas.evaluate(COLOURED)
    for name in ("row ULPs", "linear"):  # what the map opens in
        expect(page.get_by_role("button", name=name, exact=True)).to_have_attribute(
            "aria-pressed",
            "true",
        )
    press(page, "log", is_exact=True)
    page.wait_for_url(re.compile("colours=log"))
    settle(page)
    page.goto(page.url)
    settle(page)
    wait_for_map(page)
    expect(page.get_by_role("button", name="log", exact=True)).to_have_attribute(
        "aria-pressed",
        "true",
    )
    assert page.locator("canvas[data-state]").evaluate(COLOURED) != before
    with page.expect_download() as saved:
        press(page, "Save the map as PNG")
    assert (
        saved.value.suggested_filename
        == "batch-1-against-n-pair0-heatmap-row_ulps-by-id-rows80-96-columns0-1023.png"
    )
    png = saved.value.path().read_bytes()
    width, height = struct.unpack(">II", png[16:24])  # of the IHDR chunk
    box = page.locator("canvas[data-state]").bounding_box()
    assert png.startswith(b"\x89PNG")
    assert width == pytest.approx(box["width"], abs=1)
    assert height == pytest.approx(box["height"] + 50, abs=1)
