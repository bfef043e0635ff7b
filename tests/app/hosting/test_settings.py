"""The configuration of a running server: what it would not have started with, it does not take up."""

from __future__ import annotations

import io
import logging
from pathlib import Path

import numpy as np
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.testclient import TestClient

from app.hosting import live_settings
from app.hosting.identity import LOCAL, NOBODY, current
from app.hosting.middleware import Gate
from app.routes import ROUTES
from app.shell import store_changes
from core.configuration import SignIn
from core.errors import ConfigurationError
from tests.app.hosting.serving import EDITOR, VIEWER, client, forget, sign_in

GOOD = f"""
[hosting]
trusted_proxies = ["10.0.0.7"]
[sign_in]
editor_password = "{EDITOR}"
viewer_password = "{VIEWER}"
"""
BAD = {
    "nothing": "",
    "cut off before the sign-in": GOOD[: GOOD.index("[sign_in]")],
    "cut off in a word": GOOD[: GOOD.index("editor_password") + 9],
    "no network": GOOD.replace("10.0.0.7", "10.9.9.9/8"),
    "a header of two lines": GOOD.replace("[sign_in]", 'frame_ancestors = ["https://x;\\n y"]\n[sign_in]'),
    "an address that is none": GOOD.replace("[sign_in]", 'public_url = "https://["\n[sign_in]'),
    "a port that is none": GOOD.replace("[sign_in]", 'public_url = "https://x:99999"\n[sign_in]'),
    "an issuer that is none": GOOD
    + 'oidc_issuer = "https://["\noidc_client_id = "a"\noidc_client_secret = "b"\nviewers = ["*"]\n',
    "no attempts": GOOD + "attempts = 0\n",
    "hours without end": GOOD + "session_hours = 1e308\n",
    "minutes without end": GOOD + "attempt_minutes = 1e308\n",
    "hours in 400 digits": GOOD + f"session_hours = {'9' * 400}\n",
    "bytes in 400 digits": GOOD + f'[limits]\nfile_bytes = "{"9" * 400}"\n',
    "a number of 5000 digits": GOOD + f"[limits]\nfile_bytes = {'9' * 5000}\n",
    "a number of 5000 digits to base 16": GOOD + f"[limits]\nfile_bytes = 0x{'f' * 5000}\n",
    "5000 brackets": GOOD + "[limits]\nfile_bytes = " + "[" * 5000,
    "one password for two roles": GOOD.replace(VIEWER, EDITOR),
    "a password too short": GOOD.replace(VIEWER, "short"),
    "no text": b"\xff\xfe",
}
LOCAL_HEADERS = {"host": "127.0.0.1:8501"}


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    found = tmp_path / "ulpscope.toml"
    monkeypatch.setenv("ULPSCOPE_CONFIG", str(found))
    monkeypatch.setenv("ULPSCOPE_SAMPLES", "")
    return found


def _write(path: Path, text: str | bytes) -> None:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())


@pytest.mark.spread(6)
@pytest.mark.parametrize("case", BAD)
def test_what_a_server_would_not_start_with_leaves_what_is_in_force(case, path, caplog):
    _write(path, GOOD)
    browser = client()
    assert sign_in(browser, EDITOR).status_code == 303
    _write(path, BAD[case])
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            assert browser.get("/api/x").status_code == 200
            assert client().get("/health").status_code == 200
            assert client().get("/api/x", headers=LOCAL_HEADERS).status_code == 401
    assert sign_in(client(), EDITOR).status_code == 303
    assert sign_in(client(), VIEWER).headers["location"] == "/"
    assert live_settings.now_in_force().sign_in == SignIn(editor_password=EDITOR, viewer_password=VIEWER)
    assert caplog.text.count("stays as it was") == 1  # and not once a second
    assert EDITOR not in caplog.text
    if case not in ("nothing", "cut off before the sign-in"):  # which a server on loopback does start with
        forget()
        with pytest.raises(ConfigurationError):
            live_settings.now_in_force()


def test_what_holds_is_taken_up(path):
    """The twin: the file is read all the same."""
    _write(path, GOOD)
    browser = client()
    sign_in(browser, EDITOR)
    _write(path, GOOD.replace(EDITOR, "another horse") + "attempts = 7\n")
    assert browser.get("/api/x").status_code == 401
    assert sign_in(browser, "another horse").status_code == 303
    assert live_settings.now_in_force().sign_in.attempts == 7


def test_a_server_without_a_sign_in_takes_one_up_and_never_lets_it_go(path):
    _write(path, "")
    assert client().get("/api/x", headers=LOCAL_HEADERS).status_code == 200
    assert current() == LOCAL
    _write(path, GOOD)
    assert client().get("/api/x", headers=LOCAL_HEADERS).status_code == 401
    _write(path, "")
    assert client().get("/api/x", headers=LOCAL_HEADERS).status_code == 401
    assert current() == NOBODY  # a script whose header was lost is no local editor either


def _answers(server: TestClient) -> list[int]:
    dump = io.BytesIO()
    np.savez(dump, a=np.zeros((2, 8), np.float32), b=np.ones((2, 8), np.float32))
    tus = {"Tus-Resumable": "1.0.0", "Upload-Length": "5"}
    return [
        server.get("/api/runs").status_code,
        server.get("/api/openapi.json").status_code,
        server.get("/api/uploads").status_code,
        server.post("/api/uploads", headers=tus).status_code,
        server.put("/api/runs/x?wait=0", content=dump.getvalue()).status_code,
    ]


def test_the_api_goes_by_the_same_configuration_as_the_pages(path, store, monkeypatch):
    monkeypatch.setattr("app.shell.jobs.Jobs._run", lambda *_: None)
    store_changes.jobs.clear()
    with client(Starlette(routes=ROUTES, middleware=[Middleware(Gate)])) as server:
        _write(path, GOOD + "[limits]\nfile_bytes = 2000\n")
        assert sign_in(server, EDITOR).status_code == 303
        before = _answers(server)
        assert before == [200, 200, 200, 201, 202]
        for broken in (GOOD + "[limits]\nfile_bytes = 2\n[", ""):
            _write(path, broken)
            assert _answers(server) == before
        _write(path, GOOD + "[limits]\nfile_bytes = 2\n")  # the twin: the limit is the one in force
        assert _answers(server)[3:] == [413, 413]
    store_changes.jobs().stop()
    store_changes.jobs.clear()
