"""A viewer without a browser: one websocket session that speaks Streamlit's protocol, opens pages, sets widgets and
waits for the script to end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import urlencode

import websockets
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.Delta_pb2 import Delta
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from streamlit.proto.WidgetStates_pb2 import WidgetState

PATIENCE_SECONDS = 60.0
_CLOSED = -1
_TEXTS = {"alert": "body", "markdown": "body", "heading": "body", "exception": "message"}
_BUTTONS = ("button",)
_VALUES = ("number_input", "selectbox", "text_input", "text_area", "button_group", "multiselect")


@dataclass
class Drawn:
    """What one run of the script drew: (kind, text) of its texts, the ids of its widgets by their keys, and by id what
    they show.
    """

    texts: list[tuple[str, str]] = field(default_factory=list)
    widgets: dict[str, str] = field(default_factory=dict)
    values: dict[str, WidgetState] = field(default_factory=dict)
    set_values: dict[str, WidgetState] = field(default_factory=dict)
    elements: int = 0

    def take(self, delta: Delta) -> None:
        popover = delta.add_block.popover
        if popover.id:  # the script wants to know whether it is open
            self.widgets[popover.id.split("-", 2)[-1]] = popover.id
            self.values[popover.id] = WidgetState(id=popover.id, bool_value=popover.open)
        if not delta.HasField("new_element"):
            return
        self.elements += 1
        kind = delta.new_element.WhichOneof("type")
        element = getattr(delta.new_element, kind) if kind else None
        if kind in _TEXTS:
            self.texts.append((kind, getattr(element, _TEXTS[kind])))
        elif kind in (*_BUTTONS, *_VALUES) and element is not None:
            self.widgets[element.id.split("-", 2)[-1]] = element.id
            if kind in _VALUES and (state := _shown(kind, element)) is not None:
                self.values[element.id] = state
                if element.set_value:  # the script says so, whatever was shown
                    self.set_values[element.id] = state

    def says(self, words: str) -> bool:
        return any(words in text for _, text in self.texts)

    @property
    def exceptions(self) -> list[str]:
        return [text for kind, text in self.texts if kind == "exception"]


def _shown(kind: str, element: Any) -> WidgetState | None:
    """What a widget shows as it is drawn: a browser says that of all of them with everything it asks."""
    state = WidgetState(id=element.id)
    if kind == "number_input":
        state.double_value = element.value if element.set_value else element.default
    elif kind in ("text_input", "text_area"):
        state.string_value = element.value if element.set_value else element.default
    elif kind == "selectbox":
        value = element.raw_value if element.set_value else None
        if value is None and element.HasField("default") and element.default < len(element.options):
            value = element.options[element.default]
        if value is None:
            return None
        state.string_value = value
    else:
        chosen = (
            element.raw_values if element.set_value else [_option(element.options[place]) for place in element.default]
        )
        state.string_array_value.data.extend(chosen)
    return state


def _option(option: Any) -> str:
    return option if isinstance(option, str) else option.content


class Session:
    """`async with Session(url) as viewer: await viewer.open("overview", run=...)`; every step gives its seconds. url:
    http://host:port.
    """

    def __init__(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        self._address = url.replace("http", "ws", 1) + "/_stcore/stream"
        self._url, self._headers = url, headers or {}
        self._query, self._page = "", ""
        self._ended: asyncio.Queue[int] = asyncio.Queue()
        self._timers: dict[str, asyncio.Task[None]] = {}
        self._values: dict[str, WidgetState] = {}  # what the widgets of the page show
        self._cached: dict[str, ForwardMsg] = {}
        self._drawing = self.drawn = Drawn()
        self.received_bytes = self.fragments = 0

    async def __aenter__(self) -> Self:
        self._socket = await websockets.connect(
            self._address,
            subprotocols=[websockets.Subprotocol("streamlit")],
            max_size=None,
            additional_headers=self._headers,
        )
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._reading.cancel()
        with suppress(asyncio.CancelledError, websockets.ConnectionClosed):
            await self._reading
        await self._socket.close()

    async def open(self, page: str, **query: str) -> float:
        """Go to a page by its address. Seconds until its script has ended."""
        self._page, self._query = page, urlencode(query)
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        return await self._run()

    async def set(self, key: str, value: bool | float | str) -> float:
        """Put a value into a number or text field, by its key; True opens a popover. Seconds until the script has
        ended.
        """
        state = WidgetState(id=self.drawn.widgets[key])
        if isinstance(value, bool):
            state.bool_value = value
        elif isinstance(value, str):
            state.string_value = value
        else:
            state.double_value = value
        return await self._run(state)

    async def press(self, key: str, **fields: str) -> float:
        """Press a button, by its key, with the fields of its form as they were filled. Seconds until the script has
        ended.
        """
        filled = [WidgetState(id=self.drawn.widgets[name], string_value=text) for name, text in fields.items()]
        return await self._run(*filled, WidgetState(id=self.drawn.widgets[key], trigger_value=True))

    async def rerun(self) -> float:
        """The same once more. Seconds until the script has ended."""
        return await self._run()

    async def _run(self, *states: WidgetState) -> float:
        while not self._ended.empty():
            self._ended.get_nowait()
        began = time.perf_counter()
        await self._send(states)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (status := await self._ended.get()) != ForwardMsg.FINISHED_SUCCESSFULLY:
                if status == _CLOSED:
                    raise ConnectionError("the server closed the session")
        return time.perf_counter() - began

    async def _send(self, states: tuple[WidgetState, ...] = (), fragment: str = "") -> None:
        message = BackMsg()
        asked = message.rerun_script
        asked.query_string, asked.page_name, asked.fragment_id = self._query, self._page, fragment
        asked.is_auto_rerun = bool(fragment)
        now = {state.id: state for state in states}
        asked.widget_states.widgets.extend((self._values | now).values())
        self._values |= {name: state for name, state in now.items() if not state.HasField("trigger_value")}
        asked.cached_message_hashes.extend(self._cached)
        asked.context_info.url = f"{self._url}/{self._page}"
        await self._socket.send(message.SerializeToString())

    async def _read(self) -> None:
        try:
            await self._receive()
        finally:
            self._ended.put_nowait(_CLOSED)

    async def _receive(self) -> None:
        async for raw in self._socket:
            self.received_bytes += len(raw)
            message = ForwardMsg.FromString(raw if isinstance(raw, bytes) else raw.encode())
            if message.HasField("ref_hash"):
                message = self._cached.get(message.ref_hash, message)
            elif message.metadata.cacheable and message.hash:
                self._cached[message.hash] = message
            self._take(message)

    def _take(self, message: ForwardMsg) -> None:
        kind = message.WhichOneof("type")
        if kind == "new_session":
            self._drawing = Drawn()
        elif kind == "delta":
            self._drawing.take(message.delta)
        elif kind == "page_info_changed":  # the script wrote the address bar
            self._query = message.page_info_changed.query_string
        elif kind == "auto_rerun":
            again = message.auto_rerun
            if (old := self._timers.get(again.fragment_id)) is not None:
                old.cancel()
            self._timers[again.fragment_id] = asyncio.create_task(self._repeat(again.fragment_id, again.interval))
        elif kind == "script_finished":
            if message.script_finished == ForwardMsg.FINISHED_SUCCESSFULLY:
                self.drawn = self._drawing
                known = self._values
                self._values = {
                    name: known.get(name, state) for name, state in self.drawn.values.items()
                } | self.drawn.set_values
            self.fragments += message.script_finished == ForwardMsg.FINISHED_FRAGMENT_RUN_SUCCESSFULLY
            self._ended.put_nowait(message.script_finished)

    async def _repeat(self, fragment: str, seconds: float) -> None:
        """What a browser does for a part of a page that is drawn again by itself."""
        while True:
            await asyncio.sleep(seconds)
            with suppress(websockets.ConnectionClosed):
                await self._send(fragment=fragment)
