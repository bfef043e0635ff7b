"""The upload page in a real Chromium: from the picker to the open run, and every way in which an upload may break off
and go on.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect

from core.text import size
from tests.browser.driving import ROOT, Dashboard, open_saved, picture, settle, start
from tests.browser.test_accessibility import faults
from tests.waiting import until

DUMP = ROOT / "sample_runs" / "dumps" / "six_calls.npz"
PIECES = re.compile(r"/api/uploads/[0-9a-f]{32}$")


@pytest.fixture
def opened(page: Page, dashboard: Dashboard) -> Page:
    shutil.rmtree(dashboard.store / ".uploads", ignore_errors=True)  # what another test left
    page.goto(f"{dashboard.url}/upload")
    settle(page)
    return page


def choose(page: Page, *files: Path) -> None:
    page.locator("input[type=file]").set_input_files(files)


def row(page: Page, name: str):
    return page.locator("li").filter(has_text=name)


def large(folder: Path, megabytes: int, name: str = "large.npz") -> Path:
    """A dump of two sides: noise, of which no byte can be guessed."""
    rows = megabytes * 1_000_000 // 2 // 4 // 50_000
    noise = np.random.default_rng(0)
    np.savez(
        folder / name,
        **{side: noise.standard_normal((rows, 50_000), dtype=np.float32) for side in ("reference", "variant")},
    )
    return folder / name


def test_a_dump_is_chosen_understood_saved_and_opened(opened: Page, dashboard: Dashboard):
    choose(opened, DUMP)
    expect(opened.get_by_text("Understood as")).to_be_visible()
    expect(row(opened, "six_calls.npz")).to_contain_text(f"{size(DUMP.stat().st_size)}, arrived")
    opened.get_by_label("Name of the run").fill("From the picker")
    opened.get_by_role("button", name="Save as a run").click()
    open_saved(opened, "From the picker")
    expect(opened.locator("h1")).to_have_text("Overview")
    assert "from-the-picker" in opened.url
    assert list((dashboard.store / ".uploads").glob("*/file/six_calls.npz")) == []


@pytest.mark.thorough
def test_a_broken_network_is_outlived_and_what_had_arrived_is_not_sent_again(opened: Page, tmp_path: Path):
    """The first three pieces are answered by nobody; of 40 MB in pieces of 32 MB the first is then sent once."""
    sent: list[int] = []
    failures = 3

    def flaky(route):
        nonlocal failures
        if route.request.method != "PATCH":
            return route.continue_()
        if failures:
            failures -= 1
            return route.abort("connectionreset")
        sent.append(int(route.request.headers["upload-offset"]))
        return route.continue_()

    opened.route(PIECES, flaky)
    choose(opened, large(tmp_path, 40))
    expect(row(opened, "large.npz")).to_contain_text("the server cannot be reached; next attempt in")
    picture(opened, "upload-retrying")
    expect(row(opened, "large.npz")).to_contain_text("arrived")
    assert sent == [0, 32 << 20]
    opened.get_by_role("button", name="Remove large.npz").click()
    expect(row(opened, "large.npz")).to_have_count(0)


@pytest.mark.thorough
def test_a_proxy_that_takes_small_bodies_only_gets_small_pieces(opened: Page, tmp_path: Path):
    def narrow(route):
        body = int(route.request.headers.get("content-length") or 0) or len(route.request.post_data_buffer or b"")
        if route.request.method == "PATCH" and body > 5 << 20:
            return route.fulfill(status=413, content_type="text/html", body="<html>413 Request Entity Too Large</html>")
        return route.continue_()

    opened.route(PIECES, narrow)
    choose(opened, large(tmp_path, 20))
    expect(row(opened, "large.npz")).to_contain_text("arrived")
    opened.get_by_role("button", name="Remove large.npz").click()


@pytest.mark.thorough
def test_an_answer_that_is_none_of_an_upload_server_is_a_refusal(opened: Page):
    """A page of a proxy's, with status 200, says nothing of what has arrived."""
    opened.route(
        PIECES,
        lambda route: (
            route.fulfill(status=200, content_type="text/html", body="<html>Sign in</html>")
            if route.request.method == "PATCH"
            else route.continue_()
        ),
    )
    choose(opened, DUMP)
    expect(row(opened, "six_calls.npz")).to_contain_text("the server answers with 200")
    opened.unroute(PIECES)
    opened.get_by_role("button", name="Retry now six_calls.npz").click()
    expect(row(opened, "six_calls.npz")).to_contain_text("arrived")
    opened.get_by_role("button", name="Remove six_calls.npz").click()


@pytest.mark.thorough
def test_files_wait_for_the_library_that_sends_them(page: Page, dashboard: Dashboard):
    page.route("**/assets/tus-*", lambda route: route.abort("connectionreset"))
    page.goto(f"{dashboard.url}/upload")
    settle(page)
    choose(page, DUMP)
    expect(row(page, "six_calls.npz")).to_contain_text("the server cannot be reached; next attempt in")
    page.unroute("**/assets/tus-*")
    expect(row(page, "six_calls.npz")).to_contain_text("arrived")
    page.get_by_role("button", name="Remove six_calls.npz").click()


@pytest.mark.thorough
def test_an_upload_is_paused_left_reloaded_and_goes_on_when_the_file_is_chosen_again(
    opened: Page, dashboard: Dashboard, tmp_path: Path
):
    held: list = []
    opened.route(
        PIECES,
        lambda route: (
            held.append(route) if route.request.headers.get("upload-offset", "0") != "0" else route.continue_()
        ),
    )
    file = large(tmp_path, 48)
    choose(opened, file)
    expect(row(opened, "large.npz")).to_contain_text("33.6 MB of", timeout=20_000)  # 32 MiB
    opened.get_by_role("button", name="Pause large.npz").click()
    expect(row(opened, "large.npz")).to_contain_text("paused")
    opened.get_by_role("link", name="Runs", exact=True).click()
    expect(opened.locator("h1")).to_have_text("Runs")
    opened.get_by_role("link", name="Upload", exact=True).click()
    expect(row(opened, "large.npz")).to_contain_text("paused")
    opened.unroute(PIECES)
    opened.reload()
    settle(opened)
    expect(row(opened, "large.npz")).to_contain_text("choose the same file again")
    picture(opened, "upload-unfinished")
    offsets: list[str] = []
    opened.on(
        "request",
        lambda request: offsets.append(request.headers["upload-offset"]) if request.method == "PATCH" else None,
    )
    choose(opened, file)
    expect(row(opened, "large.npz")).to_contain_text("arrived")
    assert offsets == [str(32 << 20)]
    (path,) = (dashboard.store / ".uploads").glob("*/file/large.npz")
    assert path.read_bytes() == file.read_bytes()
    opened.reload()
    expect(opened.get_by_role("checkbox", name="large.npz")).to_be_checked()  # a reload loses no choice
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
def test_a_server_that_is_killed_and_started_again_gets_the_rest(browser: Browser, own: Dashboard, tmp_path: Path):
    page = browser.new_context().new_page()
    page.goto(f"{own.url}/upload")
    settle(page)
    stalled: list = []
    page.route(
        PIECES,
        lambda route: (
            stalled.append(route) if route.request.headers.get("upload-offset", "0") != "0" else route.continue_()
        ),
    )
    file = large(tmp_path, 48)
    choose(page, file)
    expect(row(page, "large.npz")).to_contain_text("33.6 MB of", timeout=20_000)
    for _ in range(1200):  # the first piece is out, and may not be answered yet; the page's own events go on meanwhile
        if stalled:
            break
        page.wait_for_timeout(50)
    own.process.kill()
    own.process.wait(20)
    stalled[-1].abort("connectionreset")
    expect(row(page, "large.npz")).to_contain_text("next attempt in")
    page.unroute(PIECES)
    again = start(own.store, port=int(own.url.rsplit(":", 1)[1]))
    try:
        expect(row(page, "large.npz")).to_contain_text("arrived")
        (path,) = (own.store / ".uploads").glob("*/file/large.npz")
        assert path.read_bytes() == file.read_bytes()
    finally:
        again.process.kill()
        again.process.wait(20)


@pytest.mark.thorough
def test_three_hundred_megabytes_pass_the_server_flat_and_are_understood_in_another_process(
    browser: Browser, own: Dashboard, tmp_path: Path
):
    page = browser.new_context().new_page()
    page.goto(f"{own.url}/upload")
    settle(page)
    choose(page, DUMP)
    expect(page.get_by_text("Understood as")).to_be_visible()  # what one dump loads is loaded
    before = memory_bytes(own)
    choose(page, large(tmp_path, 300))
    expect(row(page, "large.npz")).to_contain_text(re.compile(r"MB/s, about \d+ s left"))
    picture(page, "upload-under-way")
    expect(row(page, "large.npz")).to_contain_text("arrived", timeout=120_000)
    expect(page.get_by_text("Understood as")).to_have_count(2)
    assert memory_bytes(own) - before < 60 << 20
    page.get_by_role("button", name="Save as a run").last.click()
    expect(page.get_by_text("large — done")).to_be_visible(timeout=120_000)
    assert memory_bytes(own) - before < 60 << 20


def memory_bytes(dashboard: Dashboard) -> int:
    """The most that the server had resident so far."""
    status = Path(f"/proc/{dashboard.process.pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status).group(1)) * 1024


@pytest.mark.thorough
def test_cancel_stops_an_upload_and_leaves_nothing(opened: Page, dashboard: Dashboard, tmp_path: Path):
    opened.route(
        PIECES, lambda route: None if route.request.headers.get("upload-offset", "0") != "0" else route.continue_()
    )
    choose(opened, large(tmp_path, 48, "cancelled.npz"))
    expect(row(opened, "cancelled.npz")).to_contain_text("33.6 MB of", timeout=20_000)
    opened.get_by_role("button", name="Cancel cancelled.npz").click()
    expect(row(opened, "cancelled.npz")).to_have_count(0)
    until(lambda: not list((dashboard.store / ".uploads").glob("*/file/cancelled.npz")))


@pytest.mark.thorough
def test_a_bar_with_files_in_every_state_has_no_serious_fault_in_both_themes_wide_and_narrow(
    opened: Page, tmp_path: Path
):
    opened.route(
        PIECES, lambda route: None if route.request.headers.get("upload-offset", "0") != "0" else route.continue_()
    )
    odd = tmp_path / "odd.npz"
    odd.write_bytes(os.urandom(100))
    choose(opened, large(tmp_path, 48), DUMP, odd)
    expect(row(opened, "large.npz")).to_contain_text("33.6 MB of", timeout=20_000)
    expect(opened.get_by_text("Understood as")).to_be_visible()
    for scheme in ("light", "dark"):
        opened.emulate_media(color_scheme=scheme)
        for width in (1280, 390):
            opened.set_viewport_size({"width": width, "height": 900})
            settle(opened)
            assert faults(opened) == []
            assert opened.evaluate("document.documentElement.scrollWidth") <= width
            picture(opened, f"upload-rows-{scheme}-{width}")
    for name in ("Cancel large.npz", "Remove six_calls.npz", "Remove odd.npz"):
        opened.get_by_role("button", name=name).click()
    expect(opened.locator("li.row")).to_have_count(0)


@pytest.mark.thorough
def test_the_picker_and_every_button_are_reached_by_keys(opened: Page):
    opened.get_by_role("button", name="Choose files").focus()
    with opened.expect_file_chooser() as chooser:
        opened.keyboard.press("Enter")
    chooser.value.set_files(DUMP)
    expect(opened.get_by_role("checkbox", name="six_calls.npz")).to_be_checked()
    opened.get_by_role("button", name="Choose files").focus()
    opened.keyboard.press("Tab")
    opened.keyboard.press("Space")
    expect(opened.get_by_role("checkbox", name="six_calls.npz")).not_to_be_checked()
    opened.keyboard.press("Tab")
    opened.keyboard.press("Enter")
    expect(opened.locator("li.row")).to_have_count(0)
    expect(opened.get_by_role("button", name="Choose files")).to_be_focused()
