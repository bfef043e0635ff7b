"""The address of the first page."""

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from app.routes import ROUTES


@pytest.mark.parametrize(
    ("address", "target"),
    [("/runs", "./"), ("/runs?q=llama", "./?q=llama")],
)
def test_the_address_of_the_first_page_leads_to_the_root(address, target):
    answer = TestClient(Starlette(routes=ROUTES)).get(address, follow_redirects=False)
    assert answer.status_code == 307
    assert answer.headers["location"] == target
