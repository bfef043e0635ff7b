"""The strip of tokens in a real Chromium: what it shows, by mouse and by keys, readable on every
colour, quick with 4096 tokens.
"""

import re

import numpy as np
import pytest
from playwright.sync_api import expect

from core.judging.ingest import ingest
from core.runs.queries.heat import COLOURS
from core.runs.store.store import Store
from tests.browser.driving import BACK, expect_heading, settle, visit

AT_36 = "run=fresh-against-cached&variant=decode&prompt=1&position=36"
HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "</span>",
    "a b",
    "\n",
    "\t",
    "\u202eevil",
    "",
    "\x01",
    "\u200b",
    "$x$",
    "[l](http://x.example)",
    "&amp;",
]
# Streamlit draws the component in a shadow root, which CSS selectors of the driver see through and
# scripts of the page do not.
ROOT_OF = (
    "[...document.querySelectorAll('[data-testid=stBidiComponentIsolated]')].map((e) =>"
    " e.shadowRoot).find((r) => r && r.querySelector('.strip'))"
)


def run_of(dashboard, name, tokens, vocab=256):
    """A run of random logits, its tokens as given. [tokens, vocab] float32"""
    found = list(dashboard.store.glob(f"*{name}*.duckdb"))
    if found:
        return found[0].stem
    random = np.random.default_rng(0)
    reference = random.standard_normal((len(tokens), vocab), dtype=np.float32)
    variant = reference + 1e-2 * random.standard_normal(reference.shape, dtype=np.float32)
    dump = dashboard.store.parent / f"{name}.npz"
    np.savez(
        dump,
        reference=reference,
        variant=variant,
        token_ids=np.arange(len(tokens)) % vocab,
        tokens=np.array(tokens, object).astype(str),
    )
    return ingest(Store(dashboard.store), [dump], name=name)


def token(page, position):
    return page.locator(f".strip .token[data-position='{position}']")


# WCAG 2.1: relative luminance of sRGB, contrast (lighter + 0.05) / (darker + 0.05); a translucent
# colour lies on the page's.
CONTRASTS = """() => {
  const root = ROOT_OF;
  const parts = (colour) => {
    const n = colour.match(/[0-9.]+/g).map(Number);
    return [n[0], n[1], n[2], n[3] ?? 1];
  };
  const over = (top, below) => top.slice(0, 3).map((c, i) => c * top[3] + below[i] * (1 - top[3]));
  const linear = (c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const luminance = (rgb) => {
    const [r, g, b] = rgb.map((c) => linear(c / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const app = document.querySelector('[data-testid=stApp]');
  const back = parts(getComputedStyle(app).backgroundColor);
  return [...root.querySelectorAll('.strip .token')].map((e) => {
    const style = getComputedStyle(e);
    const a = luminance(parts(style.color).slice(0, 3));
    const b = luminance(over(parts(style.backgroundColor), back));
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  });
}""".replace("ROOT_OF", ROOT_OF)


@pytest.mark.thorough
@pytest.mark.parametrize("scheme", BACK)
def test_text_on_every_colour_has_the_contrast_of_wcag_aa(browser, dashboard, scheme):
    page = browser.new_context(
        viewport={"width": 1280, "height": 900},
        color_scheme=scheme,
    ).new_page()
    for colour in COLOURS:
        visit(page, dashboard, f"overview?{AT_36}&colour={colour.replace(' ', '-').lower()}")
        contrasts = page.evaluate(CONTRASTS)
        assert len(contrasts) == 287
        assert min(contrasts) >= 4.5, colour
        assert max(contrasts) > min(contrasts) + 2  # something is coloured
    # the twin
    page.evaluate(
        f"{ROOT_OF}.querySelector('.strip .token').style.backgroundColor = 'rgb(150, 110, 90)'",
    )
    assert min(page.evaluate(CONTRASTS)) < 4.5
    page.context.close()


def test_the_strip_is_one_tab_stop_and_arrows_and_enter_choose(page, dashboard):
    visit(page, dashboard, f"overview?{AT_36}")
    assert page.locator(".strip [tabindex]").count() == 1
    token(page, 36).focus()
    focused = "() => Number(ROOT_OF.activeElement?.dataset.position ?? -1)".replace(
        "ROOT_OF",
        ROOT_OF,
    )
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.evaluate(focused) == 38
    assert page.locator(".strip [tabindex]").count() == 1
    expect(page.get_by_role("tooltip")).to_contain_text("position 38")
    assert re.search(
        r"position 38.*max ULPs [\d,]+.*KL",
        token(page, 38).get_attribute("aria-label"),
    )
    page.keyboard.press("End")
    assert page.evaluate(focused) == 286
    page.keyboard.press("Home")
    assert page.evaluate(focused) == 0
    page.keyboard.press("ArrowDown")
    below = page.evaluate(focused)
    assert 0 < below < 10
    page.keyboard.press("ArrowUp")
    assert page.evaluate(focused) == 0
    page.wait_for_timeout(500)
    settle(page)
    assert "position=36" in page.url  # moving chooses nothing
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect_heading(page, "Top tokens at position 1 of", is_exact=False)
    expect(page.get_by_role("option", selected=True)).to_have_attribute("data-position", "1")
    page.keyboard.press("Escape")
    expect(page.get_by_role("tooltip")).to_be_hidden()


@pytest.mark.thorough
def test_a_prompt_of_more_tokens_than_a_call_takes_is_drawn_whole(page, dashboard):
    run = run_of(dashboard, "long", ["a"] * 65_536, vocab=4)
    visit(page, dashboard, f"overview?run={run}&position=65535")
    expect(token(page, 65_535)).to_have_attribute("aria-selected", "true")


def test_token_texts_are_text_whatever_they_are(page, dashboard):
    run = run_of(dashboard, "hostile", HOSTILE)
    page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
    visit(page, dashboard, f"overview?run={run}")
    expect(token(page, 0)).to_have_text("<img·src=x·onerror=alert(1)>")
    said = [token(page, place).inner_text() for place in range(len(HOSTILE))]
    assert said[1:4] == ["</span>", "a·b", "↵"] or said[1:4] == ["</span>", "a·b", "↵\n"]
    assert said[4:] == [
        "⇥",
        "\\x202eevil",
        "∅",
        "\\x01",
        "\\x200b",
        "$x$",
        "[l](http://x.example)",
        "&amp;",
    ]
    token(page, 0).hover()
    expect(page.get_by_role("tooltip")).to_contain_text("<img")
    assert page.evaluate(f"{ROOT_OF}.querySelectorAll('img, a, script').length") == 0
