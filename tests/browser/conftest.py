"""One dashboard on a store of its own and one browser for all browser tests: Chromium, or the
Firefox at ULPSCOPE_FIREFOX.
"""

import os
from pathlib import Path

import pytest
from playwright.sync_api import expect, sync_playwright

from tests.browser.driving import FIREFOX, chromium, close_tabs, new_tab
from tests.serving import serving

expect.set_options(
    timeout=120_000,
)  # as long as a page may take if others are at work: how long it does take is for the benchmarks
HERE = f"{Path(__file__).parent}{os.sep}"


def pytest_collection_modifyitems(items):
    """All are browser tests. Of a test with many cases the first is run by `make test`, the others
    are thorough (`make thorough`): a page takes seconds to open, and the cases that matter beyond
    it have unit and page tests. Every page is looked at in one theme by `make test`.
    """
    begun = set()
    for item in items:
        if not str(item.path).startswith(HERE):
            continue
        item.add_marker(pytest.mark.browser)
        function = (item.path, getattr(item, "originalname", item.name))
        if function in begun and item.path.name != "test_accessibility.py":
            item.add_marker(pytest.mark.thorough)
        begun.add(function)


@pytest.fixture(scope="session")
def dashboard(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("dashboard") / "runs") as running:
        yield running


@pytest.fixture(scope="session")
def browser():
    with sync_playwright() as playwright:
        # the sandbox needs user namespaces, which containers often lack; the rest saves requests
        options = [
            "--no-sandbox",
            "--disable-gpu",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
        ]
        if FIREFOX:
            launched = playwright.firefox.launch(
                channel="moz-firefox",
                executable_path=FIREFOX,
                firefox_user_prefs={"dom.events.testing.asyncClipboard": True},
            )
        else:
            launched = playwright.chromium.launch(executable_path=chromium(), args=options)
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def visitor(browser):
    """The browser profile of most tests: one, so that it fetches and compiles the dashboard's
    scripts once.
    """
    return browser.new_context(viewport={"width": 1280, "height": 900})


@pytest.fixture(autouse=True)
def no_page_stays_open(browser, visitor):
    """Viewers that a test opened are gone after it: each keeps asking the server for news."""
    yield
    for context in browser.contexts:
        if context is not visitor:
            context.close()


def what_went_wrong(page):
    """Requests that failed and what the browser's console says of errors, as they come: printed
    with a test that fails.
    """
    problems = []
    page.on("requestfailed", lambda request: problems.append(f"{request.url}: {request.failure}"))
    page.on(
        "response",
        lambda answer: (
            problems.append(f"{answer.url}: {answer.status}") if answer.status >= 400 else None
        ),
    )
    page.on(
        "console",
        lambda message: (
            problems.append(f"console: {message.text}") if message.type == "error" else None
        ),
    )
    page.on("pageerror", lambda error: problems.append(f"error: {error}"))
    return problems


@pytest.fixture
def page(visitor, dashboard):
    """A new viewer. Fails if the page asked anything of the outside, or showed a traceback."""
    tab = new_tab(visitor, dashboard)
    problems = what_went_wrong(tab)
    outside = []
    tab.on(
        "request",
        lambda request: (
            None
            if request.url.startswith((dashboard.url, "data:", "blob:"))
            else outside.append(request.url)
        ),
    )
    yield tab
    print(
        *problems,
        f"at the end: {tab.locator('body').inner_text()[:1500]}",
        sep="\n",
    )  # captured: shown if the test fails
    exceptions = tab.locator("[data-testid=stException]").count()
    if tab.url.startswith(dashboard.url):
        tab.evaluate("() => { localStorage.clear(); sessionStorage.clear(); }")
    close_tabs(visitor)
    visitor.clear_cookies()
    # Firefox was given none, and knows no command for it
    if not FIREFOX:
        visitor.clear_permissions()
    assert exceptions == 0
    assert outside == []
