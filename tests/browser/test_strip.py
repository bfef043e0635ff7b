"""The strip of tokens in a real Chromium: what it shows, by mouse and by keys, readable on every colour, quick with
4096 tokens.
"""

from __future__ import annotations

import re
import statistics

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect

from app.overview import COLOURS
from core.judging.ingest import ingest
from core.runs.reader import RunReader
from core.runs.store.store import Store
from tests.browser.driving import ROOT, Dashboard, settle

AT_36 = "run=fresh-against-cached&variant=decode&prompt=1&position=36"
LONG = 4096
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
# Streamlit draws the component in a shadow root, which CSS selectors of the driver see through and scripts of the page
# do not.
ROOT_OF = (
    "[...document.querySelectorAll('[data-testid=stBidiComponentIsolated]')].map((e) => e.shadowRoot).find((r) => r &&"
    " r.querySelector('.strip'))"
)


def run_of(dashboard: Dashboard, name: str, tokens: list[str]) -> str:
    """A run of random logits, its tokens as given. [tokens, 256] float32"""
    found = list(dashboard.store.glob(f"*{name}*.duckdb"))
    if found:
        return found[0].stem
    random = np.random.default_rng(0)
    reference = random.standard_normal((len(tokens), 256), dtype=np.float32)
    variant = reference + 1e-2 * random.standard_normal(reference.shape, dtype=np.float32)
    dump = dashboard.store.parent / f"{name}.npz"
    np.savez(
        dump,
        reference=reference,
        variant=variant,
        token_ids=np.arange(len(tokens)) % 256,
        tokens=np.array(tokens, object).astype(str),
    )
    return ingest(Store(dashboard.store), [dump], name=name)


def opened(page: Page, dashboard: Dashboard, path: str) -> None:
    page.goto(f"{dashboard.url}/{path}")
    settle(page)
    if "position=" in path:
        page.locator(".st-key-stepper .worst").wait_for(state="attached")  # it listens to the keys from then on
    expect(token(page, 0)).to_be_attached()


def token(page: Page, position: int):
    return page.locator(f".strip .token[data-position='{position}']")


# WCAG 2.1: relative luminance of sRGB, contrast (lighter + 0.05) / (darker + 0.05); a translucent colour lies on the
# page's.
CONTRASTS = """() => {
  const root = ROOT_OF;
  const parts = (colour) => { const n = colour.match(/[0-9.]+/g).map(Number); return [n[0], n[1], n[2], n[3] ?? 1]; };
  const over = (top, below) => top.slice(0, 3).map((c, i) => c * top[3] + below[i] * (1 - top[3]));
  const luminance = (rgb) => { const [r, g, b] = rgb.map((c) => { c /= 255;
    return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const back = parts(getComputedStyle(document.querySelector('[data-testid=stApp]')).backgroundColor);
  return [...root.querySelectorAll('.strip .token')].map((e) => {
    const style = getComputedStyle(e);
    const [a, b] = [luminance(parts(style.color).slice(0, 3)), luminance(over(parts(style.backgroundColor), back))];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  });
}""".replace("ROOT_OF", ROOT_OF)


@pytest.mark.thorough
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_on_every_colour_has_the_contrast_of_wcag_aa(browser: Browser, dashboard: Dashboard, scheme: str):
    page = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme=scheme).new_page()
    for colour in COLOURS:
        opened(page, dashboard, f"overview?{AT_36}&colour={colour.replace(' ', '-').lower()}")
        contrasts = page.evaluate(CONTRASTS)
        assert len(contrasts) == 287
        assert min(contrasts) >= 4.5, colour
        assert max(contrasts) > min(contrasts) + 2  # something is coloured
    page.evaluate(f"{ROOT_OF}.querySelector('.strip .token').style.backgroundColor = 'rgb(150, 110, 90)'")  # the twin
    assert min(page.evaluate(CONTRASTS)) < 4.5
    page.context.close()


@pytest.mark.thorough
def test_the_tooltip_has_the_figures_of_the_position(page: Page, dashboard: Dashboard):
    with RunReader(ROOT / "tests" / "runs" / "fresh-against-cached.duckdb") as run:
        table = run.positions(0)
        row = table[(table["prompt"] == 1) & (table["position"] == 30)].iloc[0]
        vocabulary, ids = run.vocabulary, run.header.prompts[1].token_ids
    opened(page, dashboard, f"overview?{AT_36}")
    token(page, 30).hover()
    tip = page.get_by_role("tooltip")
    expect(tip).to_be_visible()
    said = tip.inner_text()
    for part in (
        "position 30",
        f"({ids[30]})",
        "FLIP",
        f"({row['reference_token']}) → ",
        f"({row['variant_token']})",
        f"{row['max_ulps']:,}",
        f"{row['max_abs']:.4g} logits",
        f"{row['neq']:,} of 4,096",
        f"{row['kl']:.4g} nats",
        "ULPs of bfloat16",
        "near tie",
        f"{row['reference_margin_ulps']} / {row['variant_margin_ulps']} ULPs",
    ):
        assert part in said, part
    assert vocabulary[int(row["variant_token"])] in said
    token(page, 31).hover()
    expect(tip).to_contain_text("position 31")
    assert "FLIP" not in tip.inner_text()
    page.get_by_role("heading", name="Overview").hover()
    expect(tip).to_be_hidden()


def test_the_strip_is_one_tab_stop_and_arrows_and_enter_choose(page: Page, dashboard: Dashboard):
    opened(page, dashboard, f"overview?{AT_36}")
    assert page.locator(".strip [tabindex]").count() == 1
    token(page, 36).focus()
    focused = "() => Number(ROOT_OF.activeElement?.dataset.position ?? -1)".replace("ROOT_OF", ROOT_OF)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.evaluate(focused) == 38
    assert page.locator(".strip [tabindex]").count() == 1
    expect(page.get_by_role("tooltip")).to_contain_text("position 38")
    assert re.search(r"position 38.*max ULPs [\d,]+.*KL", token(page, 38).get_attribute("aria-label") or "")
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
    expect(page.get_by_role("heading", name="Top tokens at position 1", exact=True)).to_be_visible()
    expect(page.get_by_role("option", selected=True)).to_have_attribute("data-position", "1")
    page.keyboard.press("Escape")
    expect(page.get_by_role("tooltip")).to_be_hidden()


@pytest.mark.thorough
def test_after_a_click_the_arrow_keys_go_on_from_there(page: Page, dashboard: Dashboard):
    opened(page, dashboard, f"overview?{AT_36}")
    token(page, 50).click()
    expect(page.get_by_role("heading", name="Top tokens at position 50", exact=True)).to_be_visible()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("heading", name="Top tokens at position 51", exact=True)).to_be_visible()
    expect(page.locator(".strip .here")).to_have_attribute("data-position", "51")


@pytest.mark.thorough
def test_the_selected_token_is_scrolled_into_the_strip(page: Page, dashboard: Dashboard):
    opened(page, dashboard, "overview?run=fresh-against-cached&prompt=1&position=286")
    expect(token(page, 286)).to_be_attached()
    inside = """() => { const box = ROOT_OF.querySelector('.strip').getBoundingClientRect(),
      at = ROOT_OF.querySelector('.here').getBoundingClientRect();
      return at.top >= box.top && at.bottom <= box.bottom; }""".replace("ROOT_OF", ROOT_OF)
    assert page.evaluate(inside)
    page.keyboard.press("p")
    page.keyboard.press("p")
    expect(page.get_by_role("heading", name="Top tokens at position 36", exact=True)).to_be_visible()
    assert page.evaluate(inside)


@pytest.mark.thorough
def test_a_step_sends_no_figures_of_the_strip_again_and_builds_nothing_anew(page: Page, dashboard: Dashboard):
    frames: list[bytes] = []
    page.on("websocket", lambda socket: socket.on("framereceived", lambda frame: frames.append(_bytes(frame))))
    opened(page, dashboard, f"overview?{AT_36}")
    assert any(b"reference_margin" in frame for frame in frames)
    page.evaluate(f"{ROOT_OF}.querySelectorAll('.strip .token').forEach((e) => (e.isOld = true))")
    frames.clear()
    token(page, 40).click()
    expect(page.get_by_role("heading", name="Top tokens at position 40", exact=True)).to_be_visible()
    settle(page)
    assert frames
    assert not any(b"reference_margin" in frame for frame in frames)
    frames.clear()
    page.get_by_role("combobox", name=re.compile("Color by")).click()
    page.get_by_role("option", name="max ULPs", exact=True).click()
    expect(page.locator(".legend .unit")).to_have_text("max ULPs of bfloat16, log scale")
    assert any(b"reference_margin" in frame for frame in frames)  # the twin: a new colour is sent
    assert page.evaluate(f"[...{ROOT_OF}.querySelectorAll('.strip .token')].filter((e) => e.isOld).length") == 287
    expect(page.locator(".strip .here")).to_have_attribute("data-position", "40")


def _bytes(frame: bytes | str) -> bytes:
    return frame if isinstance(frame, bytes) else frame.encode()


def test_token_texts_are_text_whatever_they_are(page: Page, dashboard: Dashboard):
    run = run_of(dashboard, "hostile", HOSTILE)
    page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
    opened(page, dashboard, f"overview?run={run}")
    expect(token(page, 0)).to_have_text("<img·src=x·onerror=alert(1)>")
    said = [token(page, place).inner_text() for place in range(len(HOSTILE))]
    assert said[1:4] == ["</span>", "a·b", "↵"] or said[1:4] == ["</span>", "a·b", "↵\n"]
    assert said[4:] == ["⇥", "\\x202eevil", "∅", "\\x01", "\\x200b", "$x$", "[l](http://x.example)", "&amp;"]
    token(page, 0).hover()
    expect(page.get_by_role("tooltip")).to_contain_text("<img")
    assert page.evaluate(f"{ROOT_OF}.querySelectorAll('img, a, script').length") == 0


@pytest.mark.thorough
def test_4096_tokens_are_shown_and_chosen_without_a_wait(browser: Browser, dashboard: Dashboard):
    """Measured inside the page: from the click to the frame that shows the selection, and the strip's own share of the
    page's load.
    """
    words = [
        "import",
        " re",
        "\n",
        "def",
        " __init__",
        "(",
        "self",
        ",",
        ")",
        ":",
        "\n    ",
        " token",
        " =",
        " None",
        " return",
        " <b>",
    ]
    run = run_of(dashboard, "long-prompt", [words[i] for i in np.random.default_rng(1).integers(0, len(words), LONG)])
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    opened(page, dashboard, f"overview?run={run}&position=100")
    expect(token(page, LONG - 1)).to_be_attached()
    settle(page)
    shown, answered = [], []
    for position in (2000, 140, 4000, 3000, 150):
        times = page.evaluate(
            """async (position) => {
              const token = ROOT_OF.querySelector(`[data-position='${position}']`);
              const start = performance.now();
              const until = (is) => new Promise((done) => {
                const look = () =>
                  (is() ? requestAnimationFrame(() => done(performance.now() - start)) : setTimeout(look, 4));
                look();
              });
              token.click();
              return [await until(() => token.classList.contains('here')),
              await until(() => [...document.querySelectorAll('h3')]
                .some((h) => h.textContent.endsWith(' ' + position)))];
            }""".replace("ROOT_OF", ROOT_OF),
            position,
        )
        shown.append(times[0])
        answered.append(times[1])
        settle(page)
    print(
        f"4096 tokens: selection shown in {statistics.median(shown):.0f} ms, figures of the position in"
        f" {statistics.median(answered):.0f} ms"
    )
    assert all(here < there for here, there in zip(shown, answered, strict=True))  # it does not wait for the server
    rebuilt = min(  # of three: other processes share the machine
        page.evaluate(
            """() => { const strip = ROOT_OF.querySelector('.strip'); const start = performance.now();
              const parts = [...strip.childNodes].map((n) => n.cloneNode(true)); strip.replaceChildren(...parts);
                strip.offsetHeight; return performance.now() - start; }""".replace("ROOT_OF", ROOT_OF)
        )
        for _ in range(3)
    )
    print(f"building and laying out {LONG} tokens: {rebuilt:.0f} ms")
    page.context.close()
