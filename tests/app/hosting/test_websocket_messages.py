"""Orders that a browser may give over its websocket, and sessions that are resumed by who began them alone."""

from __future__ import annotations

import httpx2
import pytest
import streamlit as st
import websockets
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.sync.client import connect

from app.capture.preview import previews
from app.hosting import websocket_messages
from app.hosting.middleware import Gate
from app.repeats.pairwise_job import _pool
from app.shell.once import Once
from app.shell.store_changes import jobs
from app.upload.inspections import looks
from tests.app.hosting.servers import serving
from tests.app.hosting.serving import EDITOR, VIEWER, client, form_of, set_up, sign_in

ORDERS = sorted(field.name for field in BackMsg.DESCRIPTOR.fields)
VIEWERS = ["app_heartbeat", "backend_operation_request", "rerun_script", "stop_script"]
EDITORS = sorted([*VIEWERS, "file_urls_request"])
LAST = b"\x20"  # no such order: the field 4 with its value cut off


async def _orders(websocket: WebSocket) -> None:
    """Say of all that arrives which order it is, until one whose script asks for 'over'."""
    await websocket.accept()
    found = []
    async for order in websocket.iter_bytes():
        read = BackMsg.FromString(order)
        if read.rerun_script.query_string == "over":
            break
        found.append(read.WhichOneof("type"))
    await websocket.send_json(found)


def _order(name: str) -> bytes:
    order = BackMsg()
    value = getattr(order, name)
    if isinstance(value, bool):
        setattr(order, name, True)
    else:
        value.SetInParent()
    return order.SerializeToString()


def _arrives(sent: list[bytes | str], role: str | None = None) -> list[str]:
    """Orders that come through the gate to Streamlit of those that a role sends; None: without a sign-in."""
    app = Starlette(routes=[WebSocketRoute("/_stcore/stream", _orders)], middleware=[Middleware(Gate)])
    browser = client(app)
    if role is not None:
        sign_in(browser, VIEWER if role == "viewer" else EDITOR)
    over = BackMsg()
    over.rerun_script.query_string = "over"
    headers = {"host": "localhost"} if role is None else {}
    with browser.websocket_connect("/_stcore/stream", headers=headers) as websocket:
        for each in (*sent, over.SerializeToString()):
            websocket.send_text(each) if isinstance(each, str) else websocket.send_bytes(each)
        return websocket.receive_json()


@pytest.mark.parametrize(("role", "passed"), [("viewer", VIEWERS), ("editor", EDITORS), (None, EDITORS)])
def test_of_all_orders_that_streamlit_knows_those_pass_that_a_role_needs(role, passed, monkeypatch):
    if role is not None:
        set_up(monkeypatch, sign_in_editor_password=EDITOR, sign_in_viewer_password=VIEWER)
    assert {"clear_cache", "set_run_on_save", "debug_shutdown_runtime"} < set(ORDERS)
    assert _arrives([_order(name) for name in ORDERS], role) == [name for name in ORDERS if name in passed]
    with monkeypatch.context() as planted:
        planted.setattr(websocket_messages, "is_passed", lambda message, identity: True)
        assert _arrives([_order(name) for name in ORDERS], role) == ORDERS


def test_what_is_no_order_is_not_passed_on_and_the_last_of_two_in_one_message_counts():
    clear, rerun = _order("clear_cache"), _order("rerun_script")
    assert _arrives(["clear_cache", "", b"", b"\xff\xff", LAST, rerun + b"\x01", rerun + clear]) == []
    assert _arrives([clear + rerun, rerun]) == ["rerun_script", "rerun_script"]


@pytest.mark.parametrize("of_server", [jobs, looks, previews, _pool])
def test_no_clearing_of_caches_takes_jobs_looks_or_pools(of_server, tmp_path, monkeypatch):
    monkeypatch.setenv("ULPSCOPE_STORE", str(tmp_path))
    before = of_server()
    st.cache_resource.clear()
    st.cache_data.clear()
    assert of_server() is before


def test_what_a_server_has_once_is_made_once_whoever_asks_and_anew_only_after_an_error():
    asked = []

    @Once
    def made() -> object:
        asked.append(1)
        if len(asked) == 1:
            raise OSError("no directory")
        return object()

    with pytest.raises(OSError, match="no directory"):
        made()
    assert made() is made()
    assert len(asked) == 2


def _session_of(url: str, cookies: dict[str, str], resumed: str = "") -> str:
    """Id of the session that Streamlit gives to a browser with these cookies which asks for `resumed`."""
    asked = ["streamlit", "none", *([resumed] if resumed else [])]
    with connect(
        f"{url.replace('http', 'ws', 1)}/_stcore/stream",
        subprotocols=[websockets.Subprotocol(each) for each in asked],
        additional_headers={"cookie": "; ".join(f"{name}={value}" for name, value in cookies.items())},
        max_size=None,
    ) as websocket:
        websocket.send(_order("rerun_script"))
        while True:
            said = ForwardMsg.FromString(websocket.recv(120))
            if said.HasField("new_session"):
                return said.new_session.initialize.session_id


def _cookies(url: str, secret: str) -> dict[str, str]:
    with httpx2.Client(base_url=url) as browser:
        form = {"form": form_of(browser.get("/sign-in").text), "next": "/", "secret": secret}
        assert browser.post("/sign-in", data=form).status_code == 303
        return dict(browser.cookies.items())


def test_a_session_is_resumed_by_whoever_began_it_and_by_nobody_else_who_knows_its_id(store, tmp_path):
    with serving(store, tmp_path / "log", sign_in_editor_password=EDITOR, sign_in_viewer_password=VIEWER) as url:
        ada = _cookies(url, EDITOR)
        session = _session_of(url, ada)
        for other in (_cookies(url, VIEWER), _cookies(url, EDITOR)):  # the second has signed in with the same password
            assert _session_of(url, other, session) != session
        assert _session_of(url, ada, session) == session
