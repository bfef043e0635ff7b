"""The document of all pages: Streamlit's own, with where the server is said before any of its code."""

from __future__ import annotations

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


@pytest.mark.parametrize(("address", "led_to"), [("/runs", "./"), ("/runs?q=llama", "./?q=llama")])
def test_the_address_of_the_first_page_leads_to_the_root(client: TestClient, address: str, led_to: str):
    answer = client.get(address, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (307, led_to)
