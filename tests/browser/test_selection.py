"""Back and Forward in a real Chromium."""

import re

from playwright.sync_api import expect

from tests.browser.driving import choose, expect_heading, expect_title, settle, visit

# Prompt 1 of this run has flips at 30, 36 and 239.
AT_36 = "run=fresh-against-cached&variant=decode&prompt=1&position=36"


def expect_position(page, position):
    expect_heading(page, f"Top tokens at position {position} of prompt 1")
    expect(page).to_have_url(re.compile(rf"[?&]position={position}(&|$)"))


def test_back_undoes_a_setting_and_a_step_one_at_a_time(page, dashboard):
    visit(page, dashboard, f"overview?{AT_36}")
    choose(page, "Color by", "KL")
    expect(page).to_have_url(re.compile("colour=kl"))
    settle(page)
    page.keyboard.press("Escape")
    page.get_by_role("heading", name="Overview").click()
    page.keyboard.press("n")
    expect_position(page, 239)
    page.get_by_role("link", name="Near ties", exact=True).click()
    expect_title(page, "Near ties")
    assert "colour" not in page.url
    page.go_back()
    expect_title(page, "Overview")
    expect_position(page, 239)
    assert "colour=kl" in page.url
    page.go_back()
    expect_position(page, 36)
    assert "colour=kl" in page.url
    page.go_back()
    expect(page).not_to_have_url(re.compile("colour"))
    settle(page)
    expect(page.locator(".legend .unit").get_by_text("largest difference, logits")).to_be_visible()
    page.go_forward()
    expect(page.locator(".legend .unit").get_by_text("KL, nats, log scale")).to_be_visible()
