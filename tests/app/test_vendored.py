"""Libraries that browsers fetch: each is the file that its publisher has, with its licence beside it."""

from __future__ import annotations

import hashlib

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from app.components import plots, vendored
from app.upload import panel

# SHA-256 of the files as they are in the packages of plotly.js-cartesian-dist-min 4.1.1 and tus-js-client 4.3.1.
PUBLISHED = {
    plots.LIBRARY: "79542150855a52c567260e3137095dbe2b744e6d702a5cabe67da246942fba7a",
    panel.LIBRARY: "8cbb1b63fccc3bba0ae73ad1deb160ce046c3750851d0c3e94921ae3ef070eb8",
}


def test_there_is_no_library_but_those_that_are_used_each_with_a_licence():
    assert set(vendored.FOLDER.glob("*.js")) == set(PUBLISHED)
    licences = {file.stem.removeprefix("LICENSE-") for file in vendored.FOLDER.glob("LICENSE-*.txt")}
    assert licences == {"plotly", "tus-js-client"}


@pytest.mark.parametrize("library", PUBLISHED, ids=lambda library: library.name)
def test_a_library_is_the_published_file_and_browsers_keep_it(library):
    answer = TestClient(Starlette(routes=vendored.ROUTES)).get(f"/{vendored.address(library)}")
    assert answer.status_code == 200
    assert answer.content == library.read_bytes()
    assert hashlib.sha256(answer.content).hexdigest() == PUBLISHED[library]
    assert answer.headers["content-type"].startswith("text/javascript")
    assert "immutable" in answer.headers["cache-control"]
