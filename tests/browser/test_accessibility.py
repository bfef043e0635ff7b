"""axe finds no serious fault on any page, in both themes, wide and narrow; and it does find one that is planted."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import pytest
from playwright.sync_api import Page

from app.main import PAGES
from tests.browser.driving import Dashboard, pause, settle

AXE = (files("axe_playwright_python") / "axe.min.js").read_text()
SELECTION = "run=batch-1-against-n&variant=prefill&position=30"
LOOKED_CLOSER = ("layers", "kernels")  # pages of what this run alone holds
CLOSER = "run=where-it-starts&variant=prefill&position=30"
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


def opened(page: Page, dashboard: Dashboard, address: str) -> None:
    page.goto(f"{dashboard.url}/{address}")
    settle(page)
    pause(page, 150)


@pytest.mark.parametrize("name", [page.name for page in PAGES])
def test_no_page_has_a_serious_fault(name, page: Page, dashboard: Dashboard):
    """One visit: light, then as narrow as a telephone, then dark and wide again."""
    page.emulate_media(color_scheme="light")
    opened(
        page,
        dashboard,
        f"{'' if name == 'runs' else name}?{CLOSER if name in LOOKED_CLOSER else SELECTION}"
        + ("&with=fresh-against-cached" if name == "compare" else ""),
    )
    assert faults(page) == []
    page.set_viewport_size({"width": 390, "height": 844})
    pause(page, 150)
    assert faults(page) == []
    page.set_viewport_size({"width": 1280, "height": 900})
    page.emulate_media(color_scheme="dark")
    page.reload()
    settle(page)
    pause(page, 150)
    assert (
        page.evaluate("getComputedStyle(document.querySelector('[data-testid=stApp]')).backgroundColor")
        == "rgb(17, 21, 27)"
    )
    assert faults(page) == []


def test_a_planted_fault_is_found(page: Page, dashboard: Dashboard):
    opened(page, dashboard, f"flips?{SELECTION}")
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
