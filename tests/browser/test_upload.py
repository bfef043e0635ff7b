"""The upload page in a real Chromium: drop, a killed server, a narrow proxy, cancel; test_jobs.py
has the rest.
"""

import pytest
from playwright.sync_api import expect

from tests.browser.driving import BACK, press, settle, visit
from tests.browser.test_accessibility import faults
from tests.browser.test_jobs import PARTS, choose_file, expect_file, first_byte, large_dump, row
from tests.serving import ROOT, serving
from tests.waiting import until

DUMP = ROOT / "sample_runs" / "dumps" / "six_calls.npz"
FIRST = "8.4 MB of"  # 8 MiB, a part


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    return large_dump(tmp_path_factory.mktemp("large"))


@pytest.fixture
def opened(page, dashboard):
    visit(page, dashboard, "upload")
    return page


def held(page):
    """Requests of every part but the first, which are not answered."""
    found = []
    page.route(
        PARTS,
        lambda route: route.continue_() if first_byte(route.request) <= 0 else found.append(route),
    )
    return found


def test_a_dump_is_dropped(opened):
    opened.evaluate(
        """([bytes, name]) => {
          const transfer = new DataTransfer();
          transfer.items.add(new File([new Uint8Array(bytes)], name));
          const event = { dataTransfer: transfer, bubbles: true, cancelable: true };
          for (const type of ["dragover", "drop"])
            document.dispatchEvent(new DragEvent(type, event));
        }""",
        [list(DUMP.read_bytes()), "six_calls.npz"],
    )
    expect_file(opened, "six_calls.npz", "arrived")
    expect(opened.get_by_label("Name of the run")).to_have_value("six_calls")
    press(opened, "Remove six_calls.npz")
    expect(row(opened, "six_calls.npz")).to_have_count(0)


@pytest.fixture
def own(tmp_path):
    with serving(tmp_path / "own" / "runs") as running:
        yield running


@pytest.mark.thorough
def test_a_server_that_is_killed_and_started_again_gets_the_rest(browser, own, large):
    page = browser.new_context().new_page()
    visit(page, own, "upload")
    waiting = held(page)
    choose_file(page, large)
    expect_file(page, "large.npz", FIRST)
    page.wait_for_timeout(500)
    own.process.kill()
    own.process.wait(20)
    waiting[-1].abort("connectionreset")
    expect_file(page, "large.npz", "the server cannot be reached; next attempt in")
    page.unroute(PARTS)
    with serving(own.store, port=int(own.url.rsplit(":", 1)[1])):
        expect_file(page, "large.npz", "arrived")
        (path,) = own.store.glob(".uploads/*/data/large.npz")
        assert path.read_bytes() == large.read_bytes()


@pytest.mark.thorough
def test_a_proxy_that_takes_small_bodies_gets_small_parts(opened, large):
    def narrow(route):
        if len(route.request.post_data_buffer or b"") > 3 << 20:
            route.fulfill(
                status=413,
                content_type="text/html",
                body="<html>413 Request Entity Too Large</html>",
            )
        else:
            route.continue_()

    opened.route(PARTS, narrow)
    choose_file(opened, large)
    expect_file(opened, "large.npz", "arrived")
    press(opened, "Remove large.npz")


@pytest.mark.thorough
def test_cancel_and_every_button_by_keys_without_a_serious_fault(
    opened,
    dashboard,
    large,
    tmp_path,
):
    odd = tmp_path / "odd.npz"
    odd.write_bytes(b"no dump at all")
    held(opened)
    opened.get_by_role("button", name="Choose files").focus()
    with opened.expect_file_chooser() as chooser:
        opened.keyboard.press("Enter")
    chooser.value.set_files([odd, large])
    expect_file(opened, "large.npz", FIRST)
    expect(
        opened.get_by_text("is no dump", exact=False).or_(opened.get_by_text("begins with")),
    ).to_be_visible()
    for scheme in BACK:
        opened.emulate_media(color_scheme=scheme)
        for width in (1280, 390):
            opened.set_viewport_size({"width": width, "height": 900})
            settle(opened)
            assert faults(opened) == []
            assert opened.evaluate("document.documentElement.scrollWidth") <= width
    opened.get_by_role("button", name="Cancel large.npz").focus()
    opened.keyboard.press("Enter")
    opened.get_by_role("button", name="Remove odd.npz").focus()
    opened.keyboard.press("Enter")
    expect(opened.locator("ul[aria-label=Files] li")).to_have_count(0)
    until(lambda: not list(dashboard.store.glob(".uploads/*/data/*")))
