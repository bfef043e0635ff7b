"""A limit on how long the head of a request takes to arrive: uvicorn waits for ever for one that has begun, or never
does.

`streamlit run` makes the server and takes no protocol of ours, so the two methods of uvicorn's own through which
everything passes are wrapped; they are of asyncio, and all that is asked of uvicorn beside is its h11 connection.
"""

from __future__ import annotations

import asyncio
import logging
from functools import wraps

from uvicorn.protocols.http.auto import AutoHTTPProtocol
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 30.0  # from the connection, or the first byte of a later head, to the empty line
REST_SECONDS = 300.0  # for the rest of a body whose request was answered before its end
_TIMER = "_ulpscope_head_timer"
_NO_WEBSOCKET = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_log = logging.getLogger(__name__)


def limit(protocol: type[H11Protocol] = H11Protocol) -> None:
    """Let connections of a protocol end on which no whole head comes in time, nor the rest of an answered body."""
    if AutoHTTPProtocol is not H11Protocol:
        _log.warning("uvicorn reads requests with %s: a head may take for ever.", AutoHTTPProtocol.__name__)
    if _TIMER in vars(protocol):  # limited already
        return
    made, received = protocol.connection_made, protocol.data_received

    @wraps(made)
    def connection_made(self: H11Protocol, transport: asyncio.Transport) -> None:
        made(self, transport)
        _watch(self)

    @wraps(received)
    def data_received(self: H11Protocol, data: bytes) -> None:
        received(self, data)
        if not _is_dropped_on_the_way(self):
            _watch(self)

    setattr(protocol, _TIMER, None)
    protocol.connection_made = connection_made  # type: ignore[method-assign]
    protocol.data_received = data_received  # type: ignore[method-assign]


def _is_dropped_on_the_way(connection: H11Protocol) -> bool:
    """Refuse a websocket that is none, for its request has a body: uvicorn hands the head over, hears that it cannot be
    read, and leaves the connection open for ever.
    """
    successor = connection.transport.get_protocol()
    if successor is connection or getattr(successor, "handshake_initiated", True):
        return False
    connection.transport.write(_NO_WEBSOCKET)
    connection.transport.close()
    return True


def _watch(connection: H11Protocol) -> None:
    """Wait for a whole head from now on, unless that has begun already; not while a request is being answered."""
    timer, state = getattr(connection, _TIMER), connection.conn.our_state.__name__
    if state in ("SEND_RESPONSE", "SEND_BODY"):
        if timer is not None:
            timer.cancel()
            setattr(connection, _TIMER, None)
    elif timer is None:  # not anew with every byte, or one a second would do
        seconds = REST_SECONDS if state == "DONE" else HEAD_SECONDS
        setattr(connection, _TIMER, connection.loop.call_later(seconds, connection.transport.close))
