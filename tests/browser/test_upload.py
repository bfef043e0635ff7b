"""The upload page in a real Chromium: drop, progress, a broken network, a reload, a killed server, cancel."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.browser.driving import ROOT, Dashboard, open_saved, picture, settle, start
from tests.browser.test_accessibility import faults
from tests.waiting import until

DUMP = ROOT / "sample_runs" / "dumps" / "six_calls.npz"
PARTS = re.compile(r"/api/uploads/[0-9a-f]+\?")
FIRST = "8.4 MB of"  # 8 MiB, a part


@pytest.fixture
def opened(page: Page, dashboard: Dashboard) -> Page:
    page.goto(f"{dashboard.url}/upload")
    settle(page)
    return page


def choose(page: Page, *files: Path) -> None:
    page.locator("input[type=file]").set_input_files(files)


def row(page: Page, name: str):
    return page.locator("ul[aria-label=Files] li").filter(has_text=name)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dump of 20 MB: three parts."""
    path, noise = tmp_path_factory.mktemp("large") / "large.npz", np.random.default_rng(0)
    np.savez(path, **{side: noise.standard_normal((50, 50_000), dtype=np.float32) for side in ("reference", "variant")})
    return path


def held(page: Page) -> list[Route]:
    """Requests of every part but the first, which are not answered."""
    found: list[Route] = []
    page.route(PARTS, lambda route: _continue(route) if _first(route) == 0 else found.append(route))
    return found


def _first(route: Route) -> int:
    return int(re.match(r"bytes (\d+)", route.request.headers.get("content-range", "bytes 0"))[1])


def _continue(route: Route) -> None:
    route.continue_()


def test_a_dump_is_dropped_saved_and_opened(opened: Page, dashboard: Dashboard) -> None:
    opened.evaluate(
        """([bytes, name]) => {
          const transfer = new DataTransfer();
          transfer.items.add(new File([new Uint8Array(bytes)], name));
          for (const type of ["dragover", "drop"])
            document.dispatchEvent(new DragEvent(type, { dataTransfer: transfer, bubbles: true, cancelable: true }));
        }""",
        [list(DUMP.read_bytes()), "six_calls.npz"],
    )
    expect(row(opened, "six_calls.npz")).to_contain_text("arrived")
    opened.get_by_label("Name of the run").fill("From a drop")
    opened.get_by_role("button", name="Save as a run").click()
    expect(row(opened, "six_calls.npz")).to_have_count(0)
    open_saved(opened, "From a drop")
    expect(opened.locator("h1")).to_have_text("Overview")
    assert "from-a-drop" in opened.url
    assert list(dashboard.store.glob(".uploads/*/data/six_calls.npz")) == []


@pytest.mark.thorough
def test_after_a_reload_the_same_file_goes_on_at_its_offset(opened: Page, dashboard: Dashboard, large: Path) -> None:
    waiting = held(opened)
    choose(opened, large)
    expect(row(opened, "large.npz")).to_contain_text(FIRST)
    picture(opened, "upload-under-way")
    opened.get_by_role("link", name="Runs", exact=True).click()  # it goes on while another page is looked at
    expect(opened.locator("h1")).to_have_text("Runs")
    opened.get_by_role("link", name="New run", exact=True).click()
    expect(row(opened, "large.npz")).to_contain_text(FIRST)
    assert waiting
    opened.unroute(PARTS)
    opened.reload()
    settle(opened)
    expect(row(opened, "large.npz")).to_contain_text("choose or drop the same file again")
    picture(opened, "upload-unfinished")
    firsts: list[str] = []
    opened.on("request", lambda asked: firsts.append(asked.headers["content-range"]) if asked.method == "PUT" else None)
    choose(opened, large)
    expect(row(opened, "large.npz")).to_contain_text("arrived")
    assert int(re.match(r"bytes (\d+)", firsts[0])[1]) >= 8 << 20
    (path,) = dashboard.store.glob(".uploads/*/data/large.npz")
    assert path.read_bytes() == large.read_bytes()
    opened.reload()
    expect(row(opened, "large.npz")).to_contain_text("arrived")
    opened.get_by_role("button", name="Remove large.npz").click()
    expect(row(opened, "large.npz")).to_have_count(0)
    until(lambda: not path.exists())


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Dashboard]:
    running = start(tmp_path / "own" / "runs")
    yield running
    running.process.kill()
    running.process.wait(20)


@pytest.mark.thorough
def test_a_server_that_is_killed_and_started_again_gets_the_rest(browser: Browser, own: Dashboard, large: Path) -> None:
    page = browser.new_context().new_page()
    page.goto(f"{own.url}/upload")
    settle(page)
    waiting = held(page)
    choose(page, large)
    expect(row(page, "large.npz")).to_contain_text(FIRST)
    page.wait_for_timeout(500)
    own.process.kill()
    own.process.wait(20)
    waiting[-1].abort("connectionreset")
    expect(row(page, "large.npz")).to_contain_text("the server cannot be reached; next attempt in")
    page.unroute(PARTS)
    again = start(own.store, port=int(own.url.rsplit(":", 1)[1]))
    try:
        expect(row(page, "large.npz")).to_contain_text("arrived")
        (path,) = own.store.glob(".uploads/*/data/large.npz")
        assert path.read_bytes() == large.read_bytes()
    finally:
        again.process.kill()
        again.process.wait(20)


@pytest.mark.thorough
def test_a_proxy_that_takes_small_bodies_gets_small_parts(opened: Page, large: Path) -> None:
    def narrow(route: Route) -> None:
        if len(route.request.post_data_buffer or b"") > 3 << 20:
            route.fulfill(status=413, content_type="text/html", body="<html>413 Request Entity Too Large</html>")
        else:
            route.continue_()

    opened.route(PARTS, narrow)
    choose(opened, large)
    expect(row(opened, "large.npz")).to_contain_text("arrived")
    opened.get_by_role("button", name="Remove large.npz").click()


@pytest.mark.thorough
def test_cancel_and_every_button_by_keys_without_a_serious_fault(
    opened: Page, dashboard: Dashboard, large: Path, tmp_path: Path
) -> None:
    odd = tmp_path / "odd.npz"
    odd.write_bytes(b"no dump at all")
    held(opened)
    opened.get_by_role("button", name="Choose files").focus()
    with opened.expect_file_chooser() as chooser:
        opened.keyboard.press("Enter")
    chooser.value.set_files([odd, large])
    expect(row(opened, "large.npz")).to_contain_text(FIRST)
    expect(opened.get_by_text("is no dump", exact=False).or_(opened.get_by_text("begins with"))).to_be_visible()
    for scheme in ("light", "dark"):
        opened.emulate_media(color_scheme=scheme)
        for width in (1280, 390):
            opened.set_viewport_size({"width": width, "height": 900})
            settle(opened)
            assert faults(opened) == []
            assert opened.evaluate("document.documentElement.scrollWidth") <= width
            picture(opened, f"upload-rows-{scheme}-{width}")
    opened.get_by_role("button", name="Cancel large.npz").focus()
    opened.keyboard.press("Enter")
    opened.get_by_role("button", name="Remove odd.npz").focus()
    opened.keyboard.press("Enter")
    expect(opened.locator("ul[aria-label=Files] li")).to_have_count(0)
    until(lambda: not list(dashboard.store.glob(".uploads/*/data/*")))
