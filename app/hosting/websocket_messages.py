"""Messages that a browser may send over its websocket, by role: Streamlit acts on whatever comes."""

from __future__ import annotations

from google.protobuf.message import DecodeError
from starlette.types import Message
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.runtime.runtime_util import get_max_widget_state_size_bytes

from app.hosting.identity import Identity

# A run of the page's script and its end, a sign of life, and rows of a table or a download that is made when it is
# asked for. Not let through: clear_cache and set_run_on_save, which act on the whole server, load_git_info, and the
# orders that Streamlit has for its own tests.
READING = frozenset({"rerun_script", "stop_script", "app_heartbeat", "backend_operation_request"})
CHANGING = frozenset({"file_urls_request"})  # where a file that is dropped on a page goes


def is_passed(message: Message, identity: Identity) -> bool:
    """Return whether a message goes on to Streamlit. What is no order of the browser's (a disconnect) does; a text, or
    bytes that are no such order, does not.
    """
    if message["type"] != "websocket.receive":
        return True
    sent = message.get("bytes")
    if sent is None:
        return False
    if len(sent) > get_max_widget_state_size_bytes():
        return True  # unread: Streamlit closes the websocket for its size
    order = BackMsg()
    try:
        order.ParseFromString(sent)
    except DecodeError:
        return False
    return order.WhichOneof("type") in (READING | CHANGING if identity.may_edit else READING)
