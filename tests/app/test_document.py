"""The document of all pages: Streamlit's own, with where the server is said before any of its code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from app import navigation
from app.shell import document


@pytest.fixture
def client() -> TestClient:
    async def other(_: object) -> PlainTextResponse:
        return PlainTextResponse("Streamlit's own answer")

    pages = [page.name for page in navigation.PAGES]
    return TestClient(Starlette(routes=[*document.routes(pages), Route("/{rest:path}", other)]))


@pytest.mark.parametrize(
    "address", ["/", *(f"/{page.name}" for page in navigation.PAGES[1:]), "/overview?run=a&position=3"]
)
def test_every_page_has_streamlits_document_with_our_scripts_before_its_own(client: TestClient, address: str):
    answer = client.get(address)
    assert answer.headers["content-type"].startswith("text/html")
    assert answer.headers["cache-control"] == "no-cache"
    plain = document.INDEX.read_text(encoding="utf-8")
    before, scripts, after = answer.text.partition(document.OURS)
    assert document.TOLD in scripts
    assert "ulpscopeEarlyKeys" in scripts
    assert before + after == plain
    assert 'href="./favicon.png"' in plain
    assert "<script" not in before  # or Streamlit's code would look before it is said
    assert "</head>" not in before


def test_the_icon_that_streamlits_document_names_is_ours(client: TestClient):
    assert client.get("/favicon.png").content == document.ICON.read_bytes()


def test_garbage_is_collected_again_once_the_modules_are_loaded():
    code = "import gc, app.__main__; before = gc.isenabled(); import app.main; print(before, gc.isenabled())"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "True"]


@pytest.mark.parametrize(("address", "led_to"), [("/runs", "./"), ("/runs?q=llama", "./?q=llama")])
def test_the_address_of_the_first_page_leads_to_the_root(client: TestClient, address: str, led_to: str):
    answer = client.get(address, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (307, led_to)


@pytest.mark.parametrize("address", ["/nowhere", "/overview/", "/overview/deeper", "/static/js/index.js"])
def test_any_other_address_is_left_to_streamlit(client: TestClient, address: str):
    assert client.get(address, follow_redirects=False).text == "Streamlit's own answer"


def test_a_streamlit_whose_document_has_no_head_is_served_as_it_is(tmp_path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "index.html").write_text("<html><body>later</body></html>")
    monkeypatch.setattr(document, "INDEX", tmp_path / "index.html")
    document.document.cache_clear()
    try:
        assert document.document() == "<html><body>later</body></html>"
    finally:
        document.document.cache_clear()
