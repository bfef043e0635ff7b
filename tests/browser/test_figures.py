"""Figures in a real Chromium: drawn when they change and only then, zoomed across positions,
legible, over the whole window, and missed in words.
"""

import re

import pytest
from playwright.sync_api import expect

from tests.browser.driving import BACK, expect_heading, pause, settle, visit

AT = "run=fresh-against-cached&variant=decode&prompt=1&position=36"
RANGE = "figure => figure._fullLayout.xaxis.range.map((end) => Math.round(end * 1e6) / 1e6)"


def figure(page, key):
    return page.locator(f".st-key-{key} .js-plotly-plot")


def step(page, key, position):
    page.keyboard.press(key)
    expect_heading(page, f"Top tokens at position {position} ", is_exact=False)


def zoom(page, chart):
    box = chart.locator(".nsewdrag").first.bounding_box()
    page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 0.3 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + 0.8 * box["height"], steps=6)
    page.mouse.up()
    pause(page, 400)


def test_a_zoom_stays_from_position_to_position_and_goes_with_the_prompt(
    page,
    dashboard,
):
    visit(page, dashboard, f"near_ties?{AT}")
    chart = figure(page, "near_ties")
    whole = chart.evaluate(RANGE)
    zoom(page, chart)
    zoomed = chart.evaluate(RANGE)
    assert zoomed != whole
    step(page, "j", 37)
    assert chart.evaluate(RANGE) == zoomed
    prompt = page.get_by_label("Prompt", exact=True)
    # `fill` appends to a number in Firefox
    prompt.press("Control+a")
    prompt.press_sequentially("0")
    prompt.press("Enter")
    # the first flip of that prompt
    expect(page.get_by_text("Top tokens at position 144")).to_be_visible()
    settle(page)
    assert chart.evaluate(RANGE) not in (zoomed, whole)  # all of another prompt


def contrast(one, other):
    """Of two colours as `rgb(1, 2, 3)`, by WCAG 2."""

    def light(colour):
        shares = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [
            share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4
            for share in shares
        ]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize(("scheme", "back"), BACK.items())
def test_words_of_a_figure_are_legible_in_both_themes(page, dashboard, scheme, back):
    page.emulate_media(color_scheme=scheme)
    visit(page, dashboard, f"near_ties?{AT}")
    expect(figure(page, "near_ties").locator(".xtick text").first).to_be_visible()
    colours = page.evaluate(
        """() => [...new Set([...document.querySelectorAll(
          ".js-plotly-plot :is(.xtick, .ytick, .g-xtitle, .g-ytitle, .legendtext) text," +
          ".js-plotly-plot .legendtext")]
                 .map((text) => getComputedStyle(text).fill))]""",
    )
    assert len(colours) >= 2
    assert min(contrast(colour, back) for colour in colours) >= 4.5
    # the twin: the grey of Streamlit's own figures
    assert contrast("rgb(128, 132, 149)", "rgb(255, 255, 255)") < 4.5


@pytest.mark.thorough
def test_a_figure_opens_over_the_whole_window_and_comes_back(page, dashboard):
    visit(page, dashboard, f"near_ties?{AT}")
    chart = figure(page, "near_ties")
    before = chart.bounding_box()
    chart.hover()
    chart.locator("[data-title='Whole window']").click()
    expect(chart.locator(".main-svg").first).to_have_attribute("height", str(900 - 32))
    box = chart.bounding_box()
    assert box["x"] == 0
    assert box["y"] == 0
    assert box["width"] == 1280
    page.keyboard.press("Escape")
    expect(chart.locator(".main-svg").first).to_have_attribute("height", "460")
    assert chart.bounding_box() == before
