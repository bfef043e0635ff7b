"""One dashboard on a store of its own and one Chromium for all browser tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.browser.driving import Dashboard, chromium, start


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All are browser tests. Of a test with many cases the first is run by `make test`, the others are thorough (`make thorough`): a
    page takes seconds to open, and the cases that matter beyond it have unit and page tests. Accessibility opens every page.
    """
    begun = set()
    for item in items:
        if Path(__file__).parent not in item.path.parents:
            continue
        item.add_marker(pytest.mark.browser)
        function = (item.path, getattr(item, "originalname", item.name))
        if function in begun and item.path.name != "test_accessibility.py":
            item.add_marker(pytest.mark.thorough)
        begun.add(function)


@pytest.fixture(scope="session")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    running = start(tmp_path_factory.mktemp("dashboard") / "runs")
    yield running
    running.process.terminate()
    running.process.wait(20)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        options = [
            "--no-sandbox",
            "--disable-gpu",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
        ]
        launched = playwright.chromium.launch(executable_path=chromium(), args=options)
        yield launched
        launched.close()


@pytest.fixture
def page(browser: Browser, dashboard: Dashboard) -> Iterator[Page]:
    """A new viewer. Fails if the page asked anything of the outside, or showed a traceback."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    opened = context.new_page()
    outside: list[str] = []
    opened.on(
        "request",
        lambda request: None if request.url.startswith((dashboard.url, "data:", "blob:")) else outside.append(request.url),
    )
    yield opened
    exceptions = opened.locator("[data-testid=stException]").count()
    context.close()
    assert exceptions == 0
    assert outside == []
