"""One selection in a real Chromium: steps and keys, the link that restores a view, Back, and links to what is not
there.
"""

from __future__ import annotations

import re
from contextlib import suppress
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Page, TimeoutError, expect

from tests.browser.driving import Dashboard, settle
from tests.waiting import until

# Prompt 1 of this run has 287 positions and flips at 30, 36 and 239; its largest difference is at 204.
AT_36 = "run=fresh-against-cached&variant=decode&prompt=1&position=36"


def opened(page: Page, dashboard: Dashboard, path: str) -> None:
    page.goto(f"{dashboard.url}/{path}")
    settle(page)
    if "position=" in path and not path.startswith(("?", "new_run")):  # pages of the store have no steps
        page.locator(".st-key-worst button").wait_for(state="attached")  # the keys work from then on


def expect_position(page: Page, position: int) -> None:
    expect(page.get_by_role("heading", name=f"Top tokens at position {position}", exact=True)).to_be_visible(
        timeout=60_000
    )
    expect(page).to_have_url(re.compile(rf"[?&]position={position}(&|$)"))


@pytest.mark.parametrize(("key", "position"), [("n", 239), ("j", 37), ("k", 35), ("p", 30), ("w", 204)])
def test_a_key_steps_the_position(page: Page, dashboard: Dashboard, key: str, position: int):
    opened(page, dashboard, f"near_ties?{AT_36}")
    page.get_by_label("Position, 0 to 286").click()
    page.keyboard.press(key)  # in a field it stays there
    page.get_by_role("heading", name="Near ties").click()
    assert "position=36" in page.url
    page.keyboard.press(key)
    expect_position(page, position)


def link_of(page: Page) -> str:
    page.get_by_test_id("stSidebarUserContent").get_by_role("button", name="Link to this view").click()
    link = page.get_by_test_id("stPopoverBody").locator("code").inner_text()
    page.keyboard.press("Escape")
    return link.strip()


def parts(url: str) -> tuple[str, dict[str, list[str]]]:
    """Path and query: a browser keeps `:` in an address that it was given, and a page writes `%3A`."""
    return urlsplit(url).path, parse_qs(urlsplit(url).query)


VIEWS = {  # the gallery is at the bare address
    "": "search=fresh&flips=only",
    "overview": "colour=mean-ulps",
    "near_ties": "threshold=17",
    "heatmap": "rows=470:500&tokens=128:512",
    "flips": "",
    "internals": "tab=kv_cache&of=all-prompts&measure=neq_share&kind=value",
    "new_run": "tab=capture",
}


def shown(page: Page) -> list[str]:
    """What a reader sees: the text of the page and of the sidebar, and what every control holds."""
    return page.evaluate("""() => {
          const seen = [document.querySelector('[data-testid=stMain]').innerText,
            document.querySelector('[data-testid=stSidebarUserContent]').innerText];
          document.querySelectorAll('input, [role=slider]')
            .forEach((e) => seen.push(e.ariaLabel + '=' + (e.value ?? e.ariaValueNow)));
          document.querySelectorAll('[role=radio], [role=switch], [role=checkbox]')
            .forEach((e) => seen.push(e.innerText + '=' + (e.ariaChecked ?? e.checked)));
          const strip = [...document.querySelectorAll('[data-testid=stBidiComponentIsolated]')]
            .map((e) => e.shadowRoot).find((r) => r && r.querySelector('.strip'));
          if (strip) {
            seen.push('here ' + strip.querySelector('.here')?.dataset.position,
              strip.querySelector('.legend').innerText);
            seen.push([...strip.querySelectorAll('.strip .token')].map((e) => e.style.backgroundColor).join());
          }
          return seen;
        }""")


def expect_shown(page: Page, expected: list[str]) -> None:
    """Once everything has arrived; charts and previews of a command come in later than the script ends."""
    until(lambda: shown(page) == expected, seconds=15, about=lambda: f"{shown(page)} is not {expected}")


def choose(page: Page, label: str, option: str) -> None:
    """An option of a select box, opened again where a redraw closed it."""
    for _ in range(3):
        page.get_by_role("combobox", name=re.compile(label)).click()
        with suppress(TimeoutError):
            page.get_by_role("option", name=option, exact=True).click(timeout=4_000)
            break
    settle(page)


@pytest.mark.parametrize("name", VIEWS)
def test_the_link_opens_as_exactly_the_same_view_for_a_new_viewer(
    page: Page, browser: Browser, dashboard: Dashboard, name: str
):
    opened(page, dashboard, f"{name}?{AT_36}&{VIEWS[name]}")
    link = link_of(page)
    settle(page)
    assert parts(link) == parts(page.url)
    said = {key: values[-1] for key, values in parse_qs(urlsplit(link).query).items()}
    assert said == {key: values[-1] for key, values in parse_qs(f"{AT_36}&{VIEWS[name]}").items()}
    other = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    other.goto(link)
    settle(other)
    assert parts(other.url) == parts(page.url)
    if name != "new_run":  # nothing of a run is on it, and its preview of a command is another one for every viewer
        expect_shown(other, shown(page))
    other.context.close()


def test_back_undoes_a_setting_and_a_step_one_at_a_time(page: Page, dashboard: Dashboard):
    opened(page, dashboard, f"overview?{AT_36}")
    choose(page, "Color by", "KL")
    expect(page).to_have_url(re.compile("colour=kl"))
    settle(page)
    page.keyboard.press("Escape")
    page.get_by_role("heading", name="Overview").click()
    page.keyboard.press("n")
    expect_position(page, 239)
    settle(page)
    page.get_by_role("link", name="Near ties", exact=True).click()
    expect(page.locator("h1")).to_have_text("Near ties")
    settle(page)
    assert "colour" not in page.url
    page.go_back()
    expect(page.locator("h1")).to_have_text("Overview")
    expect_position(page, 239)
    settle(page)
    assert "colour=kl" in page.url
    page.go_back()
    expect_position(page, 36)
    settle(page)
    assert "colour=kl" in page.url
    page.go_back()
    expect(page).not_to_have_url(re.compile("colour"))
    settle(page)
    expect(page.locator(".legend .unit").get_by_text("largest difference, logits")).to_be_visible()
    page.go_forward()
    expect(page.locator(".legend .unit").get_by_text("KL, nats, log scale")).to_be_visible()
