"""axe finds no serious fault on any page, in both themes, wide and narrow; and it does find one that is planted."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from app.main import PAGES
from tests.browser.driving import Dashboard, settle

AXE = (files("axe_playwright_python") / "axe.min.js").read_text()
SELECTION = "run=batch-1-against-n&variant=prefill&position=30"
SERIOUS = ("serious", "critical")


def faults(page: Page) -> list[str]:
    """`rule: element` of every serious violation of WCAG 2 A and AA."""
    page.evaluate(AXE)
    found: dict[str, Any] = page.evaluate(
        "() => axe.run(document, {runOnly: {type: 'tag', values: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa']}})"
    )
    return [
        f"{violation['id']}: {node['target']} {node['html'][:160]}"
        for violation in found["violations"]
        if violation["impact"] in SERIOUS
        for node in violation["nodes"]
    ]


def opened(browser: Browser, dashboard: Dashboard, address: str, scheme: str, width: int) -> Page:
    page = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme).new_page()  # type: ignore[arg-type]
    page.goto(f"{dashboard.url}/{address}")
    settle(page)
    page.wait_for_timeout(600)
    return page


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", [name for name, _ in PAGES])
def test_no_page_has_a_serious_fault(name, scheme, browser: Browser, dashboard: Dashboard):
    address = f"{'' if name == 'runs' else name}?{SELECTION}" + ("&with=fresh-against-cached" if name == "compare" else "")
    page = opened(browser, dashboard, address, scheme, 1280)
    assert faults(page) == []
    page.context.close()


@pytest.mark.parametrize("name", [name for name, _ in PAGES])
def test_nor_on_a_telephone(name, browser: Browser, dashboard: Dashboard):
    page = opened(browser, dashboard, f"{'' if name == 'runs' else name}?{SELECTION}", "light", 390)
    assert faults(page) == []
    page.context.close()


def test_a_planted_fault_is_found(browser: Browser, dashboard: Dashboard):
    page = opened(browser, dashboard, f"flips?{SELECTION}", "light", 1280)
    page.evaluate(
        """() => {
            const faint = document.createElement('p');
            faint.textContent = 'faint'; faint.style.color = '#dddddd'; faint.style.background = '#ffffff';
            const button = document.createElement('button');
            document.querySelector('[data-testid=stMain] h1').parentElement.append(faint, button);
        }"""
    )
    rules = {fault.split(":")[0] for fault in faults(page)}
    assert {"color-contrast", "button-name"} <= rules
    page.context.close()
