"""The Capture page: what it starts."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from core.runs.store.store import Store
from tests.browser.driving import Dashboard, choose, picture, serving, settle, visit

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    """One of its own: jobs are listed for every viewer, and these tests leave some behind."""
    with serving(tmp_path_factory.mktemp("capture-page") / "runs") as running:
        yield running
    Store(running.store).sweep()
    assert list(running.store.glob(".partial-*")) == []  # no process holds a dropped file any more


def command(page: Page) -> str:
    """The equivalent command, as the page shows it for copying."""
    shown = page.locator("pre code").first
    if not shown.is_visible():
        page.get_by_text("CLI command").click()
    expect(shown).to_be_visible()
    return shown.inner_text()


def fill(page: Page, label: str, text: str) -> None:
    field = page.get_by_role("textbox", name=label)
    field.fill(text)
    field.press("Tab")
    settle(page)


@pytest.mark.thorough
def test_a_dropped_file_of_prompts_is_counted_captured_and_gone(page: Page, dashboard: Dashboard):
    visit(page, dashboard, "capture")
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
    visit(page, dashboard, "capture")
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
